"""Statistics over draws: means with intervals, paired differences, ranks over data sets, and the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over draws with its 95% interval by Student's t; without one where there is a single draw."""

    mean: float
    low: float | None
    high: float | None
    draws: int
    deviation: float | None = None  # the standard deviation, with n - 1 degrees of freedom

    def clipped(self, lowest: float = 0.0) -> Estimate:
        """The same with an interval within `lowest` and 1: 0 for fractions, -1 for their differences."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(lowest, self.low), high=min(1.0, self.high))


@dataclass(frozen=True)
class Rank:
    """The ranks of a method over blocks, each a data set with a number of rows a label; 1 is the best."""

    mean: float
    best: float
    worst: float
    blocks: int


def estimate(values: Sequence[float]) -> Estimate:
    """mean +- t(0.975, n - 1) * s / sqrt(n), with the standard deviation s of n - 1 degrees of freedom."""
    from scipy.stats import t

    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    deviation = float(np.std(values, ddof=1))
    margin = float(t.ppf((1 + LEVEL) / 2, count - 1)) * deviation / count**0.5
    return Estimate(mean, mean - margin, mean + margin, count, deviation)


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Estimate | None:
    """The mean of the differences on the draws that both have; None without any."""
    draws = sorted(values.keys() & reference.keys())
    return estimate([values[draw] - reference[draw] for draw in draws]).clipped(-1.0) if draws else None


def ranks(accuracies: NDArray[np.float64]) -> list[Rank]:
    """The ranks of methods by mean accuracy, (blocks, methods); equal ones share the mean of their ranks."""
    from scipy.stats import rankdata

    table = rankdata(-accuracies, axis=1)  # (blocks, methods)
    return [Rank(float(column.mean()), float(column.min()), float(column.max()), len(column)) for column in table.T]


def frontier(costs: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Which points no other beats: none costs at most as much and gains at least as much, one of both strictly."""
    points = list(zip(costs, gains, strict=True))
    return [
        not any(
            other_cost <= cost and other_gain >= gain and (other_cost < cost or other_gain > gain)
            for other_cost, other_gain in points
        )
        for cost, gain in points
    ]
