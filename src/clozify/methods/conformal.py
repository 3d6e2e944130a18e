"""Conformal prediction sets: labels that contain the true one, or all true ones, for a chosen fraction of the rows.

Split conformal prediction on p, the probability that a model gives to the true label of a held-out row, of which there
are n: with k = floor((1 - level) (n + 1)), the k-th smallest p is the threshold, and a row's set has the labels whose
probability is at or above it. A new row's p is equally likely to rank anywhere among the n, so its set contains the
true label with probability 1 - k / (n + 1) >= level. A set is never empty: it always has the most probable label.

With several labels a row, p is the lowest probability of its true labels, 1 for a row without any: the set contains all
true labels with the same probability. It always has the predicted labels, and is empty where none comes near.

The held-out rows were scored by models that were trained without them, so on fewer rows than the model that the sets
are for, and a classifier that is distilled from such models has other probabilities than they: with the threshold above
its sets contain the true label too often (benchmarks/RESULTS.md). Where its probabilities of unlabelled rows are known,
its threshold t is therefore

    log t = (n log t_n + m log t_u) / (n + m),   sum over labels of p(l | x) [p(l | x) >= t_u] = level on average,

where t_u is what the calibrated classifier itself expects, counted as m = 50 rows, and t_n is between the two held-out
values next to the rank (1 - level) (n + 1) / f; errors of k folds' models are larger by 1 / f = (k / (k - 1))^0.2. This
is an estimate, without the guarantee above.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.methods.reliability import LEARNING_CURVE

EXPECTED_ROWS = 50  # m
LEVELS = np.round(np.arange(0.5, 0.995, 0.01), 2)  # that t_u is computed for


def fewest_rows(level: float) -> int:
    """How many held-out rows a level takes at least; with fewer, every set would have all labels."""
    return math.ceil(1 / (1 - level) - 1e-9) - 1


def set_threshold(true_probability: NDArray[Any], level: float) -> float:
    """The lowest probability of a label in a set, from held-out rows' lowest probability of a true label, (rows,)."""
    count = len(true_probability)
    rank = math.floor((1 - level) * (count + 1) + 1e-9)  # the k-th smallest
    return 0.0 if rank < 1 else float(np.sort(true_probability)[rank - 1])


def expected_thresholds(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """t_u at each of `LEVELS`, from a classifier's probabilities of unlabelled rows, (rows, labels)."""
    descending = np.sort(probabilities, axis=None)[::-1].astype(np.float64)
    coverage = np.cumsum(descending) / len(probabilities)  # of sets whose threshold is that probability
    index = np.searchsorted(coverage, LEVELS - 1e-9)
    return np.asarray(descending[np.minimum(index, len(descending) - 1)])


def classifier_threshold(
    true_probability: NDArray[Any], level: float, folds: int, expected: NDArray[np.floating[Any]]
) -> float:
    """t: the lowest probability of a label in a classifier's set; `expected` is t_u at each of `LEVELS`."""
    count = len(true_probability)
    rank = (1 - level) * (count + 1) * (folds / (folds - 1)) ** LEARNING_CURVE
    held_out = np.interp(rank, np.arange(count + 1), [0.0, *np.sort(true_probability)])
    logs = np.log(np.maximum([held_out, np.interp(level, LEVELS, expected)], np.finfo(np.float64).tiny))
    return float(np.exp(np.average(logs, weights=[count, EXPECTED_ROWS])))


def prediction_sets(
    probabilities: NDArray[Any], threshold: float, predicted: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Whether each label is in a row's set, (rows, labels).

    With several labels a row, `predicted` has 1 for the predicted ones, (rows, labels).
    """
    sets: NDArray[np.bool_] = probabilities >= threshold
    if predicted is not None:
        return np.asarray(sets | (predicted == 1))
    sets[np.arange(len(sets)), probabilities.argmax(axis=1)] = True
    return sets
