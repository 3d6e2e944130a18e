"""Active learning: how uncertain the ensemble is about each unlabelled row, and which rows to label next.

With q the ensemble's probabilities, the uncertainty of a row is 1 - (q1 - q2): one minus the margin between its two
highest probabilities. Rows are selected one at a time, each time the one with the highest

    uncertainty / sqrt(1 + n_l)

where n_l is how many rows have the row's predicted label l, labelled or selected so far; labels without any row come
first. Rows that are worded like a selected one are skipped. Where rows may have several labels, the uncertainty is the
mean over the labels of 1 - |2 q_l - 1|.

The members' disagreement is shown, but does not decide: H(p) - mean of H(p_m), with H the entropy in units of log |L|
and p the mean of the members' probabilities p_m by their weights (query by committee); where rows may have several
labels, H is the mean over the labels of the entropy of having it or not, in units of log 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from clozify.data.rows import Rows, chunk_rows
from clozify.methods.ensemble import combine_scores

CANDIDATES_PER_LABEL = 50  # at least; never fewer than the rows to select
LIKELIEST_ROWS = 5  # for each label, in case no row is predicted as it
COMPARED_CHARACTERS = 1_000  # of each text
ALIKE = 0.5  # cosine of two texts' TF-IDF vectors from which on they are worded alike


@dataclass(frozen=True)
class Informativeness:
    """What the members' scores say about every unlabelled row, each array (rows,)."""

    predicted: NDArray[np.int64]  # by the ensemble: the label with the highest score
    uncertainty: NDArray[np.float64]
    disagreement: NDArray[np.float64]
    likeliest: NDArray[np.int64] | None = None  # (labels, some): the rows with the highest probability of each label


def measure_informativeness(
    scores: Sequence[NDArray[np.float32]], weights: Sequence[float], multilabel: bool = False
) -> Informativeness:
    """Informativeness of every row, from each member's raw scores, (rows, labels)."""
    rows, labels = scores[0].shape
    result = Informativeness(np.empty(rows, dtype=np.int64), np.empty(rows), np.empty(rows))
    likeliest: NDArray[np.int64] = np.empty((0, labels), dtype=np.int64)  # (rows, labels)
    highest: NDArray[np.float64] = np.empty((0, labels))
    size = chunk_rows(labels * len(scores))
    for start in range(0, rows, size):
        chunk = slice(start, start + size)
        raw = [np.asarray(member_scores[chunk], dtype=np.float32) for member_scores in scores]
        if multilabel:
            probabilities = [expit(member_scores.astype(np.float64)) for member_scores in raw]
            entropy, unit = _mean_binary_entropy, np.log(2)
        else:
            probabilities = [softmax(member_scores.astype(np.float64), axis=-1) for member_scores in raw]
            entropy, unit = _entropy, np.log(labels)
        mean = combine_scores(probabilities, weights)  # (rows, labels)
        indices = np.repeat(np.arange(start, start + len(mean))[:, None], labels, axis=1)
        highest, likeliest = np.concatenate([highest, mean]), np.concatenate([likeliest, indices])
        best = np.argsort(-highest, axis=0, kind="stable")[:LIKELIEST_ROWS]
        highest = np.take_along_axis(highest, best, axis=0)
        likeliest = np.take_along_axis(likeliest, best, axis=0)
        entropy_of_mean, combined = entropy(mean), combine_scores(raw, weights)
        mean_entropy = combine_scores([entropy(p)[:, None] for p in probabilities], weights)[:, 0]
        result.predicted[chunk] = combined.argmax(axis=-1)
        result.uncertainty[chunk] = _uncertainty(combined, multilabel)
        result.disagreement[chunk] = np.maximum(entropy_of_mean - mean_entropy, 0) / unit
    return replace(result, likeliest=likeliest.T)


def _uncertainty(scores: NDArray[np.float64], multilabel: bool) -> NDArray[np.float64]:
    """One minus the margin of the two highest probabilities; the mean of 1 - |2 q_l - 1| of several labels a row."""
    if multilabel:
        uncertainty: NDArray[np.float64] = (1 - np.abs(2 * expit(scores) - 1)).mean(axis=-1)
        return uncertainty
    highest = np.sort(softmax(scores, axis=-1), axis=-1)[:, -2:]  # (rows, 2)
    return 1 - np.diff(highest, axis=-1)[:, 0]


def _entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    entropy: NDArray[np.float64] = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=-1)
    return entropy


def _mean_binary_entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the labels of the entropy of having the label or not: (rows,)."""
    entropy: NDArray[np.float64] = _entropy(np.stack([probabilities, 1 - probabilities], axis=-1)).mean(axis=-1)
    return entropy


def eligible_rows(unlabeled: Rows, excluded: Sequence[Rows] = ()) -> NDArray[np.int64]:
    """Indices of the rows that may be suggested: not empty, each text once, and none that occurs in `excluded`."""
    fingerprints = unlabeled.fingerprints()
    eligible = np.zeros(len(fingerprints), dtype=bool)
    eligible[np.unique(fingerprints, return_index=True)[1]] = True
    for rows in excluded:
        eligible &= ~np.isin(fingerprints, rows.fingerprints())
    empty = np.ones(len(fingerprints), dtype=bool)
    for start, stop in unlabeled.chunks():
        for field in unlabeled.task.fields:
            empty[start:stop] &= np.array([not text for text in unlabeled.texts(field, start, stop)], dtype=bool)
    return np.flatnonzero(eligible & ~empty)


def select_rows(
    informativeness: Informativeness,
    count: int,
    eligible: NDArray[np.int64],
    label_counts: NDArray[np.int64],
    unlabeled: Rows | None = None,
) -> NDArray[np.int64]:
    """Indices of the rows to label next, best first: each the highest uncertainty / sqrt(1 + n_l) of those left.

    n_l counts the rows of the predicted label, labelled (`label_counts`) or selected; labels with n_l = 0 come first.
    Where no row is predicted as a label without labelled rows, those with the highest probability of it stand for it. A
    row is skipped where the cosine of its TF-IDF vector of character n-grams with a selected row's is `ALIKE` or more,
    as long as others are left; without the texts (`unlabeled`), none is.
    """
    uncertainty, counts = informativeness.uncertainty, label_counts.astype(np.int64).copy()
    limit = max(count, CANDIDATES_PER_LABEL)
    candidates_per_label = []
    for label in range(len(label_counts)):
        of_label = eligible[informativeness.predicted[eligible] == label]
        if not len(of_label) and not label_counts[label] and informativeness.likeliest is not None:
            of_label = np.intersect1d(informativeness.likeliest[label], eligible)
        candidates_per_label.append(of_label[np.argsort(-uncertainty[of_label], kind="stable")[:limit]])
    candidates = np.concatenate(candidates_per_label)
    if len(candidates) == 0:
        return candidates
    labels = np.repeat(np.arange(len(label_counts)), [len(of_label) for of_label in candidates_per_label])
    vectors = None if unlabeled is None else _tfidf_vectors(unlabeled, candidates)
    selected: list[int] = []
    remaining = np.ones(len(candidates), dtype=bool)
    alike = np.zeros(len(candidates), dtype=bool)  # worded like a selected row
    while len(selected) < count and remaining.any():
        allowed = remaining & ~alike if (remaining & ~alike).any() else remaining
        value = uncertainty[candidates] / np.sqrt(1 + counts[labels]) + (counts[labels] == 0)
        index = int(np.where(allowed, value, -1.0).argmax())
        selected.append(int(candidates[index]))
        remaining[candidates == candidates[index]] = False  # a row may stand for two labels
        counts[labels[index]] += 1
        if vectors is not None:
            alike |= (vectors @ vectors[index].T).toarray().ravel() >= ALIKE
    return np.array(selected, dtype=np.int64)


def _tfidf_vectors(rows: Rows, indices: NDArray[np.int64]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    selected = rows.select(indices)
    fields = [selected.texts(field) for field in rows.task.fields]
    texts = [" ".join(values)[:COMPARED_CHARACTERS] for values in zip(*fields, strict=True)]
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit_transform(texts).tocsr()
