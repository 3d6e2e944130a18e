"""Label errors by confident learning (Northcutt et al., 2021), on cross-fitted probabilities.

p(l | x) comes from label vectors (`methods/frozen.py`) that were fitted on folds without x, to the states of all
patterns together. With t_j, the mean of p(j | x) over the rows that are labelled j, a row's confident label is the
likeliest j with p(j | x) >= t_j. Rows whose confident label is another one than their own, and likelier, are likely
label errors; the lower p(y | x) is, the likelier. They are counted off the diagonal of the confident joint.

Two things make p better than that of the method `frozen`, whose scores are for the best label, not for how sure it is:

- The words' scores are multiplied by the number of `WORD_SCALES` with the highest likelihood of the held-out labels;
  as they are, they are too sure of themselves.
- Rows are cross-fitted twice. The second time, the errors of the first are left out of the rows that are fitted on.

With several labels a row, every label is a question of its own with the answers yes and no, and confident learning is
applied to each: a label that a row has is superfluous, or one that it does not have is missing. A row with such a label
is a likely error; the lower the lowest probability of its wrong answers, the likelier.

cleanlab 2.9 has the same formulas (`filter_by="confident_learning"`, `rank_by="self_confidence"`: the same rows in the
same order on twenty random matrices); its `multilabel_classification` judges each label for itself, too. It is not
used: they are ten lines here, and importing cleanlab loads all of its modules, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.methods import multilabel
from clozify.methods.frozen import Centre, fit_label_vectors, log_likelihood, probabilities_of

FOLDS = 5
WORD_SCALES = (1.0, 0.3)
FITS = len(WORD_SCALES) * (1 + FOLDS) + FOLDS  # of `cross_fit`
MIN_ROWS = 2  # of a label: its rows are judged only where others of it are left to fit on


@dataclass(frozen=True)
class JointStates:
    """The states of rows in several patterns, and the words' vectors, as if of one pattern."""

    states: NDArray[Any]  # (rows, states): h(x) of every pattern, then p(x) of every pattern
    words: NDArray[np.float64]  # (labels, width)
    centre: Centre

    @classmethod
    def of(cls, states: Sequence[NDArray[Any]], words: Sequence[NDArray[np.float64]]) -> JointStates:
        """Of each pattern's states, (rows, states), and words' vectors, (labels, width); scores are the mean's."""
        width = words[0].shape[1]
        joined = np.concatenate([*(each[:, :width] for each in states), *(each[:, width:] for each in states)], axis=1)
        vectors = np.concatenate(words, axis=1) / len(words)
        return cls(joined, vectors, Centre.of([joined], vectors.shape[1]))

    def first(self, rows: int) -> JointStates:
        """The first rows, with the centre of all."""
        return replace(self, states=self.states[:rows])


@dataclass(frozen=True)
class LabelErrors:
    """What confident learning says about the labels of some rows."""

    order: NDArray[np.int64]  # all rows, errors first, then by the probability of their own label, the lowest first
    is_error: NDArray[np.bool_]  # (rows,)
    suggestions: NDArray[np.int64]  # (rows,): the confident label, else the likeliest; or 0 and 1, (rows, labels)


def find_label_errors(probabilities: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> LabelErrors:
    """The rows whose labels are likely wrong; probabilities are (rows, labels), by models that did not see the row.

    The only row of a label is no error: models without it cannot know the label.
    """
    confident = confident_labels(probabilities, labels)
    rows = np.arange(len(labels))
    judged = np.bincount(labels, minlength=1)[labels] >= MIN_ROWS
    own = np.where(judged, probabilities[rows, labels], np.inf)
    is_error = (confident >= 0) & (probabilities[rows, confident] > own)
    return LabelErrors(
        order=np.lexsort((own, ~is_error)),
        is_error=is_error,
        suggestions=np.where(confident >= 0, confident, probabilities.argmax(axis=1)),
    )


def find_label_set_errors(probabilities: NDArray[np.float64], targets: NDArray[np.integer[Any]]) -> LabelErrors:
    """The rows with missing or superfluous labels, from probabilities and matrices of 0 and 1, (rows, labels) each.

    The suggestions are the targets without the errors.
    """
    is_wrong = np.zeros(targets.shape, dtype=bool)
    for label in range(targets.shape[1]):
        of_label = probabilities[:, label]
        is_wrong[:, label] = find_label_errors(np.stack([1 - of_label, of_label], axis=1), targets[:, label]).is_error
    own = np.where(targets == 1, probabilities, 1 - probabilities)  # of each answer
    is_error: NDArray[np.bool_] = np.asarray(is_wrong.any(axis=1))
    lowest = np.where(is_error, np.where(is_wrong, own, np.inf).min(axis=1), own.min(axis=1))
    return LabelErrors(
        order=np.lexsort((lowest, ~is_error)),
        is_error=is_error,
        suggestions=np.where(is_wrong, 1 - targets, targets).astype(np.int64),
    )


def confident_labels(probabilities: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Each row's likeliest label among those whose threshold t_j it reaches; -1 where it reaches none: (rows,)."""
    rows = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, probabilities[np.arange(len(labels)), labels], probabilities.shape[1])
    thresholds = np.where(rows > 0, sums / np.maximum(rows, 1), np.inf)  # (labels,)
    reached = np.where(probabilities >= thresholds - 1e-12, probabilities, -1.0)
    return np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), -1)


def cross_fit(
    joint: JointStates,
    labels: NDArray[np.integer[Any]],
    groups: NDArray[np.integer[Any]] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float64]:
    """p(l | x) of each row by label vectors that were not fitted on it: (rows, labels).

    Labels are (rows,) or, with several a row, 0 and 1, (rows, labels). Rows of one group, such as copies of a text, are
    in the same fold. `advance` is called for each of `FITS` fits.
    """
    groups = np.arange(len(labels)) if groups is None else groups
    folds = split_folds(labels, groups, seed=0)
    best, settings = -np.inf, (joint, 0.0)
    several, everything = labels.ndim == 2, np.ones(len(labels), dtype=bool)
    for scale in WORD_SCALES:
        scaled = replace(joint, words=scale * joint.words)
        penalty = fit_label_vectors(scaled.states, labels, scaled.words, scaled.centre)[1] or 0.0
        advance(1)
        scores = held_out_scores(scaled, labels, folds, penalty, everything, advance)
        likelihood = log_likelihood(scores, labels)
        if likelihood > best:
            best, settings, probabilities = likelihood, (scaled, penalty), probabilities_of(scores, several)
    errors = find_label_set_errors(probabilities, labels) if several else find_label_errors(probabilities, labels)
    trusted = trusted_rows(errors.is_error, labels)
    scaled, penalty = settings
    folds = split_folds(labels, groups, seed=1)
    return probabilities_of(held_out_scores(scaled, labels, folds, penalty, trusted, advance), several)


def held_out_scores(
    joint: JointStates,
    labels: NDArray[np.integer[Any]],
    folds: NDArray[np.int64],
    penalty: float,
    trusted: NDArray[np.bool_],
    advance: Callable[[int], None],
) -> NDArray[np.float64]:
    """Raw scores of each fold's rows by label vectors fitted on the trusted rows of the other folds: (rows, labels)."""
    scores = np.zeros((len(labels), len(joint.words)))
    for fold in range(FOLDS):
        held_out, fitted = folds == fold, (folds != fold) & trusted
        if held_out.any():
            vectors, _ = fit_label_vectors(joint.states[fitted], labels[fitted], joint.words, joint.centre, penalty)
            scores[held_out] = vectors.scores(joint.states[held_out])
        advance(1)
    return scores


def split_folds(labels: NDArray[np.integer[Any]], groups: NDArray[np.integer[Any]], seed: int) -> NDArray[np.int64]:
    """Each row's fold, (rows,): the rows of a label are dealt out in turn, in random order; a group stays together."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    if labels.ndim == 2:
        return multilabel.split_folds(labels[first], FOLDS, seed)[group]
    order = np.random.default_rng(seed).permutation(len(first))
    order = order[np.argsort(labels[first][order], kind="stable")]  # of groups, by the labels of their first rows
    folds = np.empty(len(first), dtype=np.int64)
    folds[order] = np.arange(len(first)) % FOLDS
    return folds[group]


def trusted_rows(is_error: NDArray[np.bool_], labels: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """The rows without errors, (rows,); all rows of a label that would lose more than half."""
    if labels.ndim == 2:
        of_label = labels == 1
        most = (of_label & is_error[:, None]).sum(axis=0) > of_label.sum(axis=0) / 2  # (labels,)
        return np.asarray(~is_error | (of_label & most).any(axis=1))
    lost = np.bincount(labels, is_error) > np.bincount(labels) / 2  # (labels,)
    return np.asarray(~is_error | lost[labels])
