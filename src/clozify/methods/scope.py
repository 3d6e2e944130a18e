"""A score for rows that belong to none of the labels: the distance of a row's state from those of rows of the task.

A row's state z(x) is the mean of the classifier's last states over its tokens, less the mean of the reference rows'
states; of an ensemble, the states are those of its member with the highest weight, in its
pattern. With N(x) the k nearest reference rows,

    out-of-scope score(x) = 1 - mean_{r in N(x)} cos(z(x), z(r))

The reference rows are labelled and unlabelled rows of the training. Each unlabelled one's distance from the others says
which scores rows of the task have; where there are too few of them for the level that is asked for, the labelled ones'
distances do so, too. A classifier that was trained on the labelled rows alone finds these more alike than new rows, so
there the scores of folds of them are used instead, by classifiers that were trained without the fold. The classifier's
logits are not used: a row that is like none of the task may well get a high probability. benchmarks/out_of_scope.py
compares this score with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEIGHBOURS = 1
CHUNK_ROWS = 4_096  # rows whose similarities with all reference rows are in memory at a time


@dataclass(frozen=True)
class Scope:
    """The reference rows, and the scores of rows of the task."""

    mean: NDArray[np.float32]  # (hidden,)
    vectors: NDArray[np.int8]  # (reference rows, hidden), labelled ones first; only their directions count
    in_scope: NDArray[np.float32]  # the scores of unlabelled or held-out rows, ascending; empty with too few

    @classmethod
    def fit(cls, states: NDArray[Any], is_labeled: NDArray[np.bool_]) -> Scope:
        """From the states of reference rows, (rows, hidden), some of which are labelled."""
        order = np.argsort(~is_labeled, kind="stable")
        states, is_labeled = states[order], is_labeled[order]
        mean = states.astype(np.float64).mean(axis=0)
        vectors = _unit(states - mean)
        rounded = np.round(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True).clip(1e-12)).astype(np.int8)
        scope = cls(mean.astype(np.float32), rounded, np.zeros(0, dtype=np.float32))
        unlabeled = np.flatnonzero(~is_labeled)
        if len(unlabeled) <= NEIGHBOURS:
            return scope
        scores = scope._distances(vectors[unlabeled], exclude=unlabeled)
        return scope.with_in_scope(scores)

    @classmethod
    def fit_to_half(cls, states: NDArray[Any], limit: int, seed: int = 0) -> Scope:
        """From the states of rows, (rows, hidden), of which a random half, or `limit`, are reference rows.

        The scores of the others are independent of each other given the reference rows, as those of new rows are. Each
        row's distance from all others is not: compared with new rows, it gives false alarms too often.
        """
        order = np.random.default_rng(seed).permutation(len(states))
        count = min(len(states) // 2, limit)
        scope = cls.fit(states[order[:count]], np.ones(count, dtype=bool))
        return scope.with_in_scope(scope.scores(states[order[count:]]))

    @cached_property
    def _reference(self) -> NDArray[np.float32]:
        """The reference rows' vectors with length 1."""
        return _unit(self.vectors).astype(np.float32)

    def with_in_scope(self, scores: NDArray[Any]) -> Scope:
        """The same reference rows with other scores of rows of the task."""
        return Scope(self.mean, self.vectors, np.sort(scores).astype(np.float32))

    def scores(self, states: NDArray[Any]) -> NDArray[np.float64]:
        """The out-of-scope scores of rows with these states, (rows, hidden): (rows,)."""
        return self._distances(_unit(states - self.mean.astype(np.float64)))

    @cached_property
    def _labeled_scores(self) -> NDArray[np.float64]:
        """The labelled reference rows' distances from the others; none where there are no others."""
        labeled = len(self.vectors) - len(self.in_scope)  # none with scores of held-out rows, which replace them
        if len(self.vectors) <= NEIGHBOURS or labeled < 1:
            return np.zeros(0)
        return self._distances(_unit(self.vectors[:labeled]), exclude=np.arange(labeled))

    def reference_scores(self, rejected: float) -> NDArray[np.floating[Any]]:
        """The scores of rows of the task that a threshold is chosen on, ascending.

        They are those of the unlabelled or held-out rows; where these are too few for the fraction `rejected`, those of
        the labelled reference rows are added.
        """
        if _rank(len(self.in_scope), rejected) <= len(self.in_scope):
            return self.in_scope
        return np.sort(np.concatenate([self.in_scope, self._labeled_scores]))

    def threshold(self, rejected: float) -> float | None:
        """The score that a fraction `rejected` of the rows of the task exceed at most; None with too few of them."""
        scores = self.reference_scores(rejected)
        rank = _rank(len(scores), rejected)
        return None if rank > len(scores) else float(scores[rank - 1])

    def _distances(self, vectors: NDArray[np.float64], exclude: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """1 less the mean cosine of the nearest reference rows; `exclude` is one of them for each row."""
        reference, distances = self._reference, np.empty(len(vectors))
        for start in range(0, len(vectors), CHUNK_ROWS):
            chunk_vectors = vectors[start : start + CHUNK_ROWS].astype(np.float32)
            similarities = chunk_vectors @ reference.T  # (chunk, reference rows)
            if exclude is not None:
                chunk = exclude[start : start + CHUNK_ROWS]
                similarities[np.arange(len(chunk)), chunk] = -np.inf
            count = min(NEIGHBOURS, len(reference))
            nearest = np.partition(similarities, -count, axis=1)[:, -count:]
            distances[start : start + CHUNK_ROWS] = 1 - nearest.mean(axis=1)
        return distances


def _rank(rows: int, rejected: float) -> int:
    """k, so that a new row's score exceeds the k-th smallest of `rows` scores with probability `rejected` at most."""
    return math.ceil((1 - rejected) * (rows + 1) - 1e-9)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """The vectors with length 1."""
    vectors = np.asarray(vectors, dtype=np.float64)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12))
