"""Selective classification: which rows to answer, so that the answers are right often enough.

A row is answered where its confidence, the probability of the predicted label, is at or above a threshold. With A the
rows that a threshold answers, of n held-out rows in all, of which E are predicted wrongly:

- coverage |A| / n, risk E / |A|;
- for a coverage c, the threshold is the k-th largest confidence with k = ceil(c (n + 1)): a new row is answered with
  probability k / (n + 1) at least, since it is equally likely to rank anywhere among the n;
- for a risk r, it is the lowest threshold whose risk is at most r with a confidence of 80%: the largest p with
  P(at most E errors in |A| answers, each wrong with probability p) >= 0.2, the one-sided bound of Clopper and Pearson,
  is at most r. E / |A| itself would be too low with few rows, the more so as the threshold is chosen on them
  (benchmarks/selective.py compares rules).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from clozify.metrics import wilson_interval

CONFIDENCE = 0.8  # that the risk is at most what was asked for


@dataclass(frozen=True)
class OperatingPoint:
    """What a threshold does on held-out rows."""

    threshold: float  # rows with at least this confidence are answered
    rows: int
    answered: int
    correct: int  # of the answered rows

    @property
    def coverage(self) -> float:
        """The fraction of rows that are answered."""
        return self.answered / self.rows

    @property
    def accuracy(self) -> float | None:
        """The fraction of the answers that are right; None where no row is answered."""
        return self.correct / self.answered if self.answered else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the accuracy (Wilson)."""
        return None if self.accuracy is None else wilson_interval(self.accuracy, self.answered)


@dataclass(frozen=True)
class RiskCoverage:
    """The risk of every coverage: of the most confident row alone, of the two most confident ones, and so on."""

    thresholds: NDArray[np.float64]  # (points,), descending; rows of equal confidence are one point
    coverage: NDArray[np.float64]  # (points,), ascending to 1
    risk: NDArray[np.float64]  # (points,)
    answered: NDArray[np.int64]  # (points,), rows
    errors: NDArray[np.int64]  # (points,), of the answered rows

    @property
    def upper_risk(self) -> NDArray[np.float64]:
        """The upper bound of every point's risk, with a confidence of `CONFIDENCE`."""
        right = self.answered - self.errors
        bound: NDArray[np.float64] = betaincinv(self.errors + 1, np.maximum(right, 1), CONFIDENCE)
        return np.where(right > 0, bound, 1.0)

    @property
    def area(self) -> float:
        """The mean risk over all coverages, the area under the curve."""
        widths = np.diff(self.coverage, prepend=0.0)
        return float((widths * self.risk).sum())


def risk_coverage(confidence: NDArray[Any], correct: NDArray[np.bool_]) -> RiskCoverage:
    """The risk-coverage curve of rows with these confidences, (rows,), and right or wrong predictions, (rows,)."""
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = np.asarray(confidence, dtype=np.float64)[order]
    errors = np.cumsum(~np.asarray(correct, dtype=bool)[order])
    last = np.flatnonzero(np.append(np.diff(sorted_confidence) != 0, True))  # of each run of equal confidences
    answered = last + 1
    return RiskCoverage(sorted_confidence[last], answered / len(order), errors[last] / answered, answered, errors[last])


def operating_point(confidence: NDArray[Any], correct: NDArray[np.bool_], threshold: float) -> OperatingPoint:
    """What a threshold does on these rows."""
    answered = np.asarray(confidence) >= threshold
    return OperatingPoint(
        float(threshold), len(answered), int(answered.sum()), int(np.asarray(correct)[answered].sum())
    )


def threshold_for_coverage(confidence: NDArray[Any], coverage: float) -> float:
    """The threshold that answers a new row with at least this probability; 0 where only that does."""
    count = len(confidence)
    rank = math.ceil(coverage * (count + 1) - 1e-9)  # the k-th largest
    return 0.0 if rank > count else float(np.sort(confidence)[count - rank])


def threshold_for_risk(confidence: NDArray[Any], correct: NDArray[np.bool_], max_risk: float) -> float | None:
    """The lowest threshold whose risk's upper bound is at most `max_risk`; None where no threshold's is."""
    curve = risk_coverage(confidence, correct)
    within = np.flatnonzero(curve.upper_risk <= max_risk + 1e-9)
    if not len(within):
        return None
    return 0.0 if within[-1] == len(curve.thresholds) - 1 else float(curve.thresholds[within[-1]])
