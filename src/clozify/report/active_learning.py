"""Active learning: how informative a label for each unlabelled row would be, and which rows to label next.

With H the entropy in units of log |L|, and p the mean of the members' probabilities p_m by their weights, the
uncertainty of a row is H(p) and its disagreement H(p) - mean of H(p_m), which is 0 where all members agree (query by
committee). A row's informativeness is the sum of both; with a single member it is the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import Rows, chunk_rows
from clozify.methods.ensemble import combine_scores

CANDIDATES_PER_LABEL = 50  # at least; never fewer than the rows to select
LIKELIEST_ROWS = 5  # for each label, in case no row is predicted as it
COMPARED_CHARACTERS = 1_000  # of each text


@dataclass(frozen=True)
class Informativeness:
    """The members' predictions for every unlabelled row, each array (rows,)."""

    predicted: NDArray[np.int64]  # by the ensemble
    uncertainty: NDArray[np.float64]
    disagreement: NDArray[np.float64]
    likeliest: NDArray[np.int64] | None = None  # (labels, some): the rows with the highest probability of each label

    @property
    def total(self) -> NDArray[np.float64]:
        """Uncertainty plus disagreement."""
        return self.uncertainty + self.disagreement


def measure_informativeness(scores: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> Informativeness:
    """Informativeness of every row, from each member's raw scores, (rows, labels)."""
    rows, labels = scores[0].shape
    result = Informativeness(np.empty(rows, dtype=np.int64), np.empty(rows), np.empty(rows))
    likeliest: NDArray[np.int64] = np.empty((0, labels), dtype=np.int64)  # (rows, labels)
    highest: NDArray[np.float64] = np.empty((0, labels))
    size = chunk_rows(labels * len(scores))
    for start in range(0, rows, size):
        chunk = slice(start, start + size)
        raw = [np.asarray(member_scores[chunk], dtype=np.float32) for member_scores in scores]
        probabilities = [softmax(member_scores.astype(np.float64), axis=-1) for member_scores in raw]
        mean = combine_scores(probabilities, weights)  # (rows, labels)
        indices = np.repeat(np.arange(start, start + len(mean))[:, None], labels, axis=1)
        highest, likeliest = np.concatenate([highest, mean]), np.concatenate([likeliest, indices])
        best = np.argsort(-highest, axis=0, kind="stable")[:LIKELIEST_ROWS]
        highest = np.take_along_axis(highest, best, axis=0)
        likeliest = np.take_along_axis(likeliest, best, axis=0)
        entropy_of_mean = _entropy(mean)
        mean_entropy = combine_scores([_entropy(p)[:, None] for p in probabilities], weights)[:, 0]
        result.predicted[chunk] = combine_scores(raw, weights).argmax(axis=-1)
        result.uncertainty[chunk] = entropy_of_mean / np.log(labels)
        result.disagreement[chunk] = np.maximum(entropy_of_mean - mean_entropy, 0) / np.log(labels)
    return replace(result, likeliest=likeliest.T)


def _entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    entropy: NDArray[np.float64] = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=-1)
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
    """Indices of the rows to label next, best first.

    Each step takes, among the rows predicted as the label with the fewest rows so far (`label_counts` of the labelled
    rows, plus those selected), the one with the largest informativeness times distance to the nearest selected row.
    The distance is 1 - the cosine of TF-IDF vectors of character n-grams; without the texts (`unlabeled`) it is 1.
    Where no row is predicted as a label without labelled rows, those with the highest probability of it stand for it.
    """
    gains, counts = informativeness.total, label_counts.astype(np.int64).copy()
    limit = max(count, CANDIDATES_PER_LABEL)
    candidates_per_label = []
    for label in range(len(label_counts)):
        of_label = eligible[informativeness.predicted[eligible] == label]
        if not len(of_label) and not label_counts[label] and informativeness.likeliest is not None:
            of_label = np.intersect1d(informativeness.likeliest[label], eligible)
        candidates_per_label.append(of_label[np.argsort(-gains[of_label], kind="stable")[:limit]])
    candidates = np.concatenate(candidates_per_label)
    if len(candidates) == 0:
        return candidates
    labels = np.repeat(np.arange(len(label_counts)), [len(of_label) for of_label in candidates_per_label])
    vectors = None if unlabeled is None else _tfidf_vectors(unlabeled, candidates)
    selected: list[int] = []
    gain = gains[candidates] + 1e-9  # so that distance still orders rows without any informativeness
    remaining = np.ones(len(candidates), dtype=bool)
    distance = np.ones(len(candidates))
    while len(selected) < count and remaining.any():
        fewest = counts[labels[remaining]].min()
        index = int(np.where(remaining & (counts[labels] == fewest), gain * distance, -1.0).argmax())
        selected.append(int(candidates[index]))
        remaining[candidates == candidates[index]] = False  # a row may stand for two labels
        counts[labels[index]] += 1
        if vectors is not None:
            similarity = (vectors @ vectors[index].T).toarray().ravel()
            distance = np.minimum(distance, np.clip(1 - similarity, 0, 1))
    return np.array(selected, dtype=np.int64)


def _tfidf_vectors(rows: Rows, indices: NDArray[np.int64]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    selected = rows.select(indices)
    fields = [selected.texts(field) for field in rows.task.fields]
    texts = [" ".join(values)[:COMPARED_CHARACTERS] for values in zip(*fields, strict=True)]
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit_transform(texts).tocsr()
