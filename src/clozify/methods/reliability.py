"""How good a result is, without a test set: its accuracy, and a temperature at which its probabilities say so.

T is split into folds; models that are trained without a fold score it. With y'_i the label that they give row i,

    e = sum_i w_i [y'_i != y_i] / sum_i w_i,    w_i = pi(y_i) / (n(y_i) / n)

estimates the error on rows whose labels are as frequent as among the unlabelled rows: pi is the result's mean
probability of a label there, n(l) the number of rows of T with the label l. Without unlabelled rows w_i = 1. The models
of k folds have seen (k - 1) / k of the rows that the result has; errors fall about as n^-0.2 with n labelled rows
(benchmarks/RESULTS.md), so the accuracy is estimated as

    a = 1 - e ((k - 1) / k)^0.2.

The 95% interval is Wilson's for n' = (sum w)^2 / sum w^2 rows.

A classifier is calibrated on the unlabelled rows: its temperature is the one at which its mean confidence there is

    a* = (n' a + m c) / (n' + m),

with c its mean confidence before, which counts as m = 100 rows: soft labels at the temperature 2 leave a classifier
that is nearly calibrated, and fifty rows do not know better. An ensemble has the temperature with the highest posterior
density, from the likelihood of the held-out rows and a normal prior of log T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax

from clozify.metrics import wilson_interval

CONFIDENCE_ROWS = 100  # m
LEARNING_CURVE = 0.2  # of errors with the number of labelled rows
WEIGHT_RANGE = (0.2, 5.0)  # of a labelled row
LOG_TEMPERATURES = (-3.0, 3.0)


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of labelled rows by models that were not trained on them."""

    scores: NDArray[Any]  # (rows, labels)
    truth: NDArray[np.integer[Any]]  # (rows,)
    folds: int
    out_of_scope: NDArray[Any] | None = None  # out-of-scope scores by these models, (rows,), where there are any

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each row gets its label: (rows,)."""
        return np.asarray(self.scores.argmax(axis=-1) == self.truth)

    def probabilities(self, temperature: float) -> NDArray[np.float64]:
        """The softmax at a temperature, (rows, labels)."""
        return np.asarray(softmax(self.scores.astype(np.float64) / temperature, axis=-1))


@dataclass(frozen=True)
class AccuracyEstimate:
    """An accuracy with its 95% interval, and the number of rows that it is worth."""

    accuracy: float
    low: float
    high: float
    rows: float  # n'

    def lowered(self, difference: float) -> AccuracyEstimate:
        """The estimate for a result that is less accurate by a difference."""
        low, high = max(0.0, self.low - difference), max(0.0, self.high - difference)
        return AccuracyEstimate(max(0.0, self.accuracy - difference), low, high, self.rows)


def label_weights(truth: NDArray[np.integer[Any]], shares: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """w: how often each labelled row's label occurs in `shares`, (labels,), for once in T: (rows,)."""
    counts = np.bincount(truth, minlength=len(shares))
    ratios = shares * len(truth) / np.maximum(counts, 1)
    return np.asarray(np.clip(ratios, *WEIGHT_RANGE)[truth])


def estimate_accuracy(held_out: HeldOutScores, shares: NDArray[np.floating[Any]] | None = None) -> AccuracyEstimate:
    """a with its interval; `shares` is pi, (labels,), where there are unlabelled rows."""
    weights = np.ones(len(held_out.truth)) if shares is None else label_weights(held_out.truth, shares)
    error = float(np.average(~held_out.correct, weights=weights))
    accuracy = 1 - error * ((held_out.folds - 1) / held_out.folds) ** LEARNING_CURVE
    rows = float(weights.sum() ** 2 / (weights**2).sum())
    low, high = wilson_interval(accuracy, rows)
    return AccuracyEstimate(accuracy, low, high, rows)


def target_confidence(estimate: AccuracyEstimate, confidence: float) -> float:
    """a*: the estimate and a classifier's mean confidence on unlabelled rows, each by the rows that it is worth."""
    total = estimate.rows * estimate.accuracy + CONFIDENCE_ROWS * confidence
    return total / (estimate.rows + CONFIDENCE_ROWS)


def match_confidence(scores: NDArray[Any], confidence: float) -> float:
    """The temperature at which the mean probability of the predicted labels is `confidence`; scores (rows, labels).

    Where no temperature does it, the nearest end of `LOG_TEMPERATURES`.
    """
    scores = scores.astype(np.float64)

    def surplus(log_temperature: float) -> float:
        return float(softmax(scores / np.exp(log_temperature), axis=-1).max(axis=-1).mean()) - confidence

    low, high = LOG_TEMPERATURES
    if surplus(low) <= 0 or surplus(high) >= 0:  # the confidence falls with the temperature
        return float(np.exp(low if surplus(low) <= 0 else high))
    return float(np.exp(brentq(surplus, low, high, xtol=1e-5)))


def most_likely_temperature(held_out: HeldOutScores, centre: float, spread: float) -> float:
    """The temperature of the highest posterior density; log T has a normal prior around log `centre`."""
    scores, rows = held_out.scores.astype(np.float64), np.arange(len(held_out.truth))

    def loss(log_temperature: float) -> float:
        likelihood = log_softmax(scores / np.exp(log_temperature), axis=-1)[rows, held_out.truth].sum()
        return float(((log_temperature - np.log(centre)) / spread) ** 2 / 2 - likelihood)

    return float(np.exp(minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded").x))
