"""The ensemble: weights w(p) and combined scores s_M (section 3.3, step 2).

s_M(l | x) = 1/Z sum_p w(p) s_p(l | x)

A member is one fine-tuned model: a pair and a seed. w(p) is the accuracy of its pair on T before training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import CHUNK_ROWS


def pair_weights(accuracies: Sequence[float] | None, pairs: int, weighting: str) -> list[float]:
    """w(p): the pairs' accuracies on T before training; 1 for every pair without T, or if `weighting` is "uniform"."""
    return [1.0] * pairs if accuracies is None or weighting == "uniform" else list(accuracies)


def combine_scores(scores: Sequence[NDArray[np.floating[Any]]], weights: Sequence[float]) -> NDArray[np.float64]:
    """s_M: the weighted mean of the members' raw scores, (rows, labels) each; weights that are all 0 count as equal."""
    w = np.asarray(weights, dtype=np.float64)
    w = w if w.sum() > 0 else np.ones_like(w)
    total = np.zeros(scores[0].shape, dtype=np.float64)
    for weight, member_scores in zip(w / w.sum(), scores, strict=True):
        total += weight * member_scores
    return total


class LazyScores(ABC):
    """Scores of many rows, (rows, labels), computed when they are indexed from arrays that may be on disk."""

    scores: Sequence[Any]  # of each member or teacher, (rows, labels)

    def __len__(self) -> int:
        return len(self.scores[0])

    @abstractmethod
    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        """The combined scores of these rows: (rows, labels)."""

    def chunks(self, size: int = CHUNK_ROWS) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield `(start, scores)` of consecutive chunks of rows."""
        for start in range(0, len(self), size):
            yield start, self[start : start + size]


class Ensemble(LazyScores):
    """s_M of any rows."""

    def __init__(self, scores: Sequence[NDArray[np.floating[Any]]], weights: Sequence[float]) -> None:
        self.scores, self.weights = scores, weights

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        """s_M of these rows: (rows, labels)."""
        return combine_scores([member_scores[rows] for member_scores in self.scores], self.weights)
