"""Whether two results differ by more than chance on the same rows, and intervals of F1.

With a_i the fraction of a result's trainings that label row i correctly, and b_i that of another result, the accuracies
differ by the mean of d_i = b_i - a_i over n rows.

- Test. If both were equally good, each d_i could as well have the other sign:
  p = P(|sum_i s_i d_i| >= |sum_i d_i|) over all signs s_i, computed exactly. With one training each, this is McNemar's
  exact test.
- Interval (Agresti and Min, 2005): half a row is added to each of the four cases that two results can have on a row,
  so that with n' = n + 2 rows the mean is m = sum_i d_i / n', the variance v = (1 + sum_i d_i^2) / n' - m^2, and the
  interval m +- (1.96 sqrt(v / n') + c), where c, half the step that a changed sign makes, is for agreement with the
  exact test: of 5,644 cases with up to 59 rows that one result alone labels correctly, both say the same in 99.5%.

F1 is no mean over rows; its intervals are percentiles over resamples of the rows (bootstrap), but on each side at least
as wide as the accuracy's: where no row is wrong, no resample has an error. The same resamples are used for every
result, so that differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Z = 1.959964
RESAMPLES = (200, 1000)  # fewest and most; fewer with many rows
RESAMPLED_ROWS = 20_000_000  # in all resamples
LEVEL = 0.95


@dataclass(frozen=True)
class HitCounts:
    """How many of a result's trainings label each row correctly: (rows,)."""

    counts: NDArray[np.int64]
    trainings: int

    @property
    def accuracy(self) -> float:
        """The mean accuracy of the trainings."""
        return float(self.counts.mean() / self.trainings)


@dataclass(frozen=True)
class PairedDifference:
    """The accuracy of a result minus that of another on the same rows."""

    rows: int
    difference: float
    low: float  # of the 95% interval
    high: float
    p_value: float
    better: int  # rows that this result labels correctly more often than the other one
    worse: int


def paired_difference(hits: HitCounts, other: HitCounts) -> PairedDifference:
    """The difference of two results that labelled the same rows."""
    scale = math.lcm(hits.trainings, other.trainings)
    steps = hits.counts * (scale // hits.trainings) - other.counts * (scale // other.trainings)  # d_i times the scale
    low, high = _interval(steps / scale, _smallest_step(steps) / scale)
    return PairedDifference(
        rows=len(steps),
        difference=float(steps.mean() / scale),
        low=low,
        high=high,
        p_value=sign_test(steps),
        better=int((steps > 0).sum()),
        worse=int((steps < 0).sum()),
    )


def _smallest_step(steps: NDArray[np.int64]) -> int:
    """Half of what a changed sign changes the sum by, at least."""
    return int(np.gcd.reduce(np.abs(steps))) or 1


def _interval(differences: NDArray[np.float64], step: float) -> tuple[float, float]:
    """The interval of Agresti and Min of the mean, with a correction for continuity."""
    rows = len(differences)
    mean = differences.sum() / (rows + 2)
    variance = (1 + (differences**2).sum()) / (rows + 2) - mean**2
    half = Z * math.sqrt(variance / (rows + 2)) + step / rows
    return max(-1.0, float(mean - half)), min(1.0, float(mean + half))


def sign_test(steps: NDArray[np.int64]) -> float:
    """p: the probability that random signs of these whole numbers, (rows,), have as large a sum."""
    from scipy.signal import convolve
    from scipy.stats import binom

    sizes, counts = np.unique(np.abs(steps[steps != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    sizes = sizes // np.gcd.reduce(sizes)
    total = abs(int(np.repeat(sizes, counts).sum()))  # of all sizes
    observed = abs(int(steps.sum())) // _smallest_step(steps)
    distribution = np.ones(1)  # of half the sum and half the total
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        positive = np.zeros(size * count + 1)
        positive[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        distribution = convolve(distribution, positive)
    sums = 2 * np.arange(total + 1) - total
    return float(min(1.0, distribution[np.abs(sums) >= observed].sum()))


@dataclass(frozen=True)
class F1Samples:
    """F1 of a result on resamples of the rows; the mean over its trainings."""

    macro: NDArray[np.float64]  # (resamples,)
    micro: NDArray[np.float64]  # (resamples,)


def resample_f1(
    truth: NDArray[np.integer[Any]], predicted: Sequence[NDArray[np.integer[Any]]], labels: int, seed: int = 0
) -> F1Samples:
    """F1 on resamples of the rows, the same ones for the same number of rows.

    `truth` and each training's predictions are (rows,), or with several labels a row (rows, labels) of 0 and 1.
    """
    rows, rng = len(truth), np.random.default_rng(seed)
    resamples = min(max(RESAMPLED_ROWS // rows, RESAMPLES[0]), RESAMPLES[1])
    macro, micro = np.zeros(resamples), np.zeros(resamples)
    for number in range(resamples):
        weights = np.bincount(rng.integers(rows, size=rows), minlength=rows).astype(np.float64)
        for of_training in predicted:
            correct, total = _counts(truth, of_training, weights, labels)
            macro[number] += (2 * correct / np.maximum(total, 1)).mean()  # 0 for a label that occurs nowhere
            micro[number] += 2 * correct.sum() / max(total.sum(), 1)
    return F1Samples(macro / len(predicted), micro / len(predicted))


def _counts(
    truth: NDArray[Any], predicted: NDArray[Any], weights: NDArray[np.float64], labels: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each label's rows that are predicted correctly, and its true and its predicted rows together: (labels,)."""
    if truth.ndim == 2:
        both: NDArray[np.float64] = weights @ (truth * predicted).astype(np.float64)
        return both, np.asarray(weights @ truth.astype(np.float64) + weights @ predicted.astype(np.float64))
    right = truth == predicted
    correct = np.asarray(np.bincount(truth[right], weights[right], labels), dtype=np.float64)
    return correct, np.asarray(
        np.bincount(truth, weights, labels) + np.bincount(predicted, weights, labels), np.float64
    )


def f1_interval(
    f1: float, samples: NDArray[np.float64], accuracy: float, accuracy_interval: tuple[float, float]
) -> tuple[float, float]:
    """The 95% interval of an F1, or of a difference of two, from its resamples and from the accuracy's interval."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (
        min(float(low), f1 - (accuracy - accuracy_interval[0])),
        max(float(high), f1 + (accuracy_interval[1] - accuracy)),
    )
