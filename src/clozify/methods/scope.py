"""A score for rows that belong to none of the labels: the distance of a row's state from those of rows of the task.

A row's state z(x) is the mean of the classifier's last states over its tokens, less the mean of the reference rows'
states. With N(x) the k nearest reference rows,

    out-of-scope score(x) = 1 - mean_{r in N(x)} cos(z(x), z(r))

The reference rows are labelled and unlabelled rows of the training. Each unlabelled one's distance from the others says
which scores rows of the task have. The classifier's logits are not used: a row that is like none of the task may well
get a high probability. benchmarks/out_of_scope.py compares this score with others.
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
    vectors: NDArray[np.int8]  # (reference rows, hidden); only their directions count
    in_scope: NDArray[np.float32]  # the scores of unlabelled rows, ascending; empty where there were too few

    @classmethod
    def fit(cls, states: NDArray[Any], is_labeled: NDArray[np.bool_]) -> Scope:
        """From the states of reference rows, (rows, hidden), some of which are labelled."""
        mean = states.astype(np.float64).mean(axis=0)
        vectors = _unit(states - mean)
        rounded = np.round(127 * vectors / np.abs(vectors).max(axis=1, keepdims=True).clip(1e-12)).astype(np.int8)
        scope = cls(mean.astype(np.float32), rounded, np.zeros(0, dtype=np.float32))
        unlabeled = np.flatnonzero(~is_labeled)
        if len(unlabeled) <= NEIGHBOURS:
            return scope
        scores = scope._distances(vectors[unlabeled], exclude=unlabeled)
        return cls(scope.mean, scope.vectors, np.sort(scores).astype(np.float32))

    @cached_property
    def _reference(self) -> NDArray[np.float32]:
        """The reference rows' vectors with length 1."""
        return _unit(self.vectors).astype(np.float32)

    def scores(self, states: NDArray[Any]) -> NDArray[np.float64]:
        """The out-of-scope scores of rows with these states, (rows, hidden): (rows,)."""
        return self._distances(_unit(states - self.mean.astype(np.float64)))

    def threshold(self, rejected: float) -> float | None:
        """The score that a fraction `rejected` of the rows of the task exceed at most; None with too few of them."""
        rank = math.ceil((1 - rejected) * (len(self.in_scope) + 1) - 1e-9)  # the k-th smallest
        return None if rank > len(self.in_scope) else float(self.in_scope[rank - 1])

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


def _unit(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """The vectors with length 1."""
    vectors = np.asarray(vectors, dtype=np.float64)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12))
