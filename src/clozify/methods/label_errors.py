"""Label errors by confident learning (Northcutt et al., 2021), on cross-fitted probabilities.

p(l | x) is the mean over the pairs of softmax(s(. | x)), with label vectors (`methods/frozen.py`) that were fitted on
folds without x. With t_j, the mean of p(j | x) over the rows that are labelled j, a row's confident label is the
likeliest j with p(j | x) >= t_j. Rows whose confident label is another one than their own are likely label errors;
the lower p(y | x) is, the likelier. They make up the off-diagonal counts of the confident joint.

Label vectors that were fitted on wrong labels are worse at finding them. So the rows are cross-fitted twice: the second
time the errors of the first are left out of the rows that vectors are fitted on.

cleanlab has the same formulas (`filter_by="confident_learning"`, `rank_by="self_confidence"`, which give the same rows
in the same order). It is not used, since they are ten lines, and importing it takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.methods.frozen import Centre, fit_label_vectors

FOLDS = 5
MIN_ROWS = 2  # of a label: its rows are scored only where others of it are left to fit on


@dataclass(frozen=True)
class PairStates:
    """The states of all rows in one pattern, and the words' vectors of one of its pairs."""

    states: NDArray[Any]  # (rows, states)
    words: NDArray[np.float64]  # (labels, width)
    centre: Centre


@dataclass(frozen=True)
class LabelErrors:
    """What confident learning says about the labels of some rows."""

    order: NDArray[np.int64]  # all rows, errors first, then by the probability of their own label, the lowest first
    is_error: NDArray[np.bool_]  # (rows,)
    suggestions: NDArray[np.int64]  # the confident label, else the likeliest one: (rows,)


def find_label_errors(probabilities: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> LabelErrors:
    """The rows whose labels are likely wrong; probabilities are (rows, labels), by models that did not see the row."""
    confident = confident_labels(probabilities, labels)
    is_error = (confident >= 0) & (confident != labels)
    own = probabilities[np.arange(len(labels)), labels]
    return LabelErrors(
        order=np.lexsort((own, ~is_error)),
        is_error=is_error,
        suggestions=np.where(confident >= 0, confident, probabilities.argmax(axis=1)),
    )


def confident_labels(probabilities: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Each row's likeliest label among those whose threshold t_j it reaches; -1 where it reaches none: (rows,)."""
    rows = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.zeros(probabilities.shape[1])
    np.add.at(sums, labels, probabilities[np.arange(len(labels)), labels])
    thresholds = np.where(rows > 0, sums / np.maximum(rows, 1), np.inf)  # (labels,)
    reached = np.where(probabilities >= thresholds - 1e-12, probabilities, -1.0)
    return np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), -1)


def split_folds(labels: NDArray[np.integer[Any]], count: int, seed: int) -> NDArray[np.int64]:
    """Each row's fold, (rows,): the rows of a label are dealt out to the folds in turn, in random order."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(labels)) % count
    return folds


def cross_fit(
    pairs: Sequence[PairStates],
    labels: NDArray[np.integer[Any]],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float64]:
    """p(l | x) of each row by label vectors that were not fitted on it: (rows, labels).

    `advance` is called after each fit, of which there are `fits(pairs)`.
    """
    penalties = [fit_label_vectors(each.states, labels, each.words, each.centre)[1] for each in pairs]
    advance(len(pairs))
    count = min(FOLDS, len(labels))
    probabilities, is_error = np.zeros((len(labels), len(pairs[0].words))), np.zeros(len(labels), dtype=bool)
    for seed in range(2):
        folds = split_folds(labels, count, seed)
        probabilities[:] = 0.0
        for each, penalty in zip(pairs, penalties, strict=True):
            for fold in range(count):
                held_out = folds == fold
                fitted = np.flatnonzero(~held_out & ~is_error)
                vectors, _ = fit_label_vectors(each.states[fitted], labels[fitted], each.words, each.centre, penalty)
                probabilities[held_out] += softmax(vectors.scores(each.states[held_out]), axis=1) / len(pairs)
                advance(1)
        is_error = find_label_errors(probabilities, labels).is_error
    return probabilities


def fits(pairs: Sequence[PairStates]) -> int:
    """How many times `cross_fit` calls `advance` for, one by one."""
    return len(pairs) * (1 + 2 * FOLDS)
