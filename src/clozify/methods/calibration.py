"""Calibration of untrained pairs: a label's probability is divided by its mean over the data.

This corrects for words that the model prefers in any context. It assumes that the labels are about equally frequent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from clozify.data.rows import NO_LABEL, chunk_rows

# benchmarks/calibration.py measures these; its results are in benchmarks/RESULTS.md
MIN_ROWS, MIN_ROWS_PER_LABEL = 10, 2
MAX_DISTANCE = 0.2  # total variation between the labels' shares and equal ones; beyond it calibration may do harm
MAX_P_VALUE = 0.01  # of a chi-squared test for equal shares: few rows are unbalanced by chance


def mean_probabilities(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Each label's mean probability over the rows, (..., labels); scores are (..., rows, labels), maybe on disk."""
    rows = scores.shape[-2]
    total: NDArray[np.float64] = np.zeros((*scores.shape[:-2], scores.shape[-1]))
    size = chunk_rows(scores.size // rows)
    for start in range(0, rows, size):
        chunk = np.asarray(scores[..., start : start + size, :], dtype=np.float64)
        total += softmax(chunk, axis=-1).sum(axis=-2)
    total /= rows
    return total


def calibrate(scores: NDArray[np.floating[Any]], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """s'(l|x) = log softmax(s)(l) - log prior(l), with each label's mean probability as the prior, (..., labels)."""
    calibrated: NDArray[np.float64] = log_softmax(np.asarray(scores, dtype=np.float64), axis=-1)
    calibrated -= np.log(prior)[..., None, :]
    return calibrated


def min_rows(labels: int) -> int:
    """The fewest rows to calibrate on by default: from there on accuracy does not fall on average."""
    return max(MIN_ROWS, MIN_ROWS_PER_LABEL * labels)


def imbalance_warnings(labels: NDArray[np.int16], names: Sequence[str]) -> list[str]:
    """A warning where the rows' labels (indices or NO_LABEL) are so unequally frequent that calibration may do harm."""
    from scipy.stats import chisquare

    counts = np.bincount(labels[labels != NO_LABEL], minlength=len(names))
    if not counts.any():
        return []
    shares = counts / counts.sum()
    distance = np.abs(shares - 1 / len(names)).sum() / 2
    if distance <= MAX_DISTANCE or chisquare(counts).pvalue > MAX_P_VALUE:
        return []
    most = int(shares.argmax())
    return [
        f"The labels are unbalanced ({100 * shares[most]:.0f}% of the labelled rows are '{names[most]}'), but "
        "calibration assumes about equal shares and may lower the accuracy; compare with --no-calibrate "
        "(in Python: calibrate=False)."
    ]
