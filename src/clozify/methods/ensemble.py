"""Combining the members' scores into soft labels (section 3.3, step 2).

In: raw scores of every member and the members' weights. Out: s_M(l | x) = 1/Z sum_p w(p) s_p(l | x), of all rows or of
those that are asked for, and its softmax at the temperature T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import CHUNK_ROWS


def combine_scores(scores: Sequence[NDArray[np.floating[Any]]], weights: Sequence[float]) -> NDArray[np.float64]:
    """The weighted mean of the members' raw scores, each (rows, labels); weights that are all 0 count as equal."""
    given = np.asarray(weights, dtype=np.float64)
    given = given if given.sum() > 0 else np.ones_like(given)
    total = np.zeros(scores[0].shape, dtype=np.float64)
    for weight, of_member in zip(given / given.sum(), scores, strict=True):
        total += weight * of_member
    return total


class Ensemble:
    """s_M of the rows that are asked for; the members' scores stay where they are, which is on the disk."""

    def __init__(self, scores: Sequence[NDArray[np.floating[Any]]], weights: Sequence[float]) -> None:
        self.scores, self.weights = scores, weights

    def __len__(self) -> int:
        return len(self.scores[0])

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, labels)"""
        return combine_scores([of_member[rows] for of_member in self.scores], self.weights)

    def chunks(self, size: int = CHUNK_ROWS) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """`(start, scores)` of consecutive stretches of rows."""
        for start in range(0, len(self), size):
            yield start, self[start : start + size]


def soft_labels(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float32]:
    """q: the distribution over labels at a temperature, (rows, labels)."""
    probabilities: NDArray[np.float64] = softmax(scores / temperature, axis=-1)
    return probabilities.astype(np.float32)
