"""Combining the members' scores into soft labels (section 3.3, step 2).

In: raw scores of every member and the members' weights. Out: s_M(l | x) = 1/Z sum_p w(p) s_p(l | x), and its softmax
at the temperature T.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clozify.metrics import softmax


def combine(scores: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> NDArray[np.float64]:
    """The weighted mean of the members' raw scores, each (rows, labels); weights that are all 0 count as equal."""
    given = np.asarray(weights, dtype=np.float64)
    given = given if given.sum() > 0 else np.ones_like(given)
    total = np.zeros(scores[0].shape, dtype=np.float64)
    for weight, of_member in zip(given / given.sum(), scores, strict=True):
        total += weight * of_member
    return total


def soft_labels(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float32]:
    """q: the distribution over labels at a temperature, (rows, labels)."""
    return softmax(scores / temperature).astype(np.float32)
