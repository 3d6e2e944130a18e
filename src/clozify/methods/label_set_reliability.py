"""How good a result with several labels a row is, without a test set: its micro-F1 and its exact match.

T is split into folds; models that are trained without a fold score it. The thresholds of a fold are chosen on the
scores of the other folds, so that no row has part in choosing those that decide about it. With tp, fp and fn the
decisions of all rows, and k folds,

    F1 = 2 tp / (2 tp + fp + fn),    f = 1 - (1 - F1) ((k - 1) / k)^0.1

is the estimate of micro-F1; the factor is for models that have seen fewer rows than the result. The exponent is half of
that in `methods/reliability.py`: the folds spread every label's rows evenly, so that of many rare labels the models
miss fewer than models of as many random rows would (benchmarks/RESULTS.md). The exact match, the fraction of rows whose
labels are all right, has the same factor, and Wilson's interval.

The 95% interval of micro-F1 is a bootstrap over rows: f of `RESAMPLES` samples of rows with replacement, from their
2.5th to their 97.5th percentile. Of few rows, most of them right, samples hardly vary, and the interval is too narrow:
four rows are added before, two of them right and two wrong, as Agresti and Coull do for the interval of a proportion.
On made-up rows of a true F1 of 0.93, the interval of 12 rows then contains it in 92% of the draws, without them in 80%.
Samples do not vary the models and thresholds, which all rows of a fold share: both sides are lengthened by a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from clozify.data.decision import label_set_confidence
from clozify.methods.multilabel import choose_thresholds
from clozify.metrics import wilson_interval

RESAMPLES = 2_000
ADDED_ROWS = 2  # that are right, and as many that are wrong
PERCENTILES = (2.5, 97.5)
LENGTHENED = 1.1  # how much longer both sides of the interval are than the bootstrap's
LEARNING_CURVE = 0.1  # of errors with the number of labelled rows


@dataclass(frozen=True)
class HeldOutLabelSets:
    """Scores of labelled rows by models that were not trained on them, and thresholds that others were chosen for."""

    scores: NDArray[np.float64]  # logits, (rows, labels)
    targets: NDArray[np.integer[Any]]  # 0 and 1, (rows, labels)
    thresholds: NDArray[np.float64]  # of logits, chosen without the row's fold: (rows, labels)
    folds: int
    out_of_scope: NDArray[Any] | None = None  # out-of-scope scores by these models, (rows,), where there are any

    @property
    def predicted(self) -> NDArray[np.int8]:
        """1 for every label at or above its threshold, (rows, labels)."""
        return (self.scores >= self.thresholds).astype(np.int8)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether all labels of a row are right: (rows,)."""
        return np.asarray((self.predicted == self.targets).all(axis=1))

    @property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of exactly the predicted labels: (rows,)."""
        return label_set_confidence(expit(self.scores), self.predicted)

    @property
    def true_probability(self) -> NDArray[np.float64]:
        """The lowest probability of a row's true labels, 1 where it has none: (rows,)."""
        return np.asarray(np.where(self.targets == 1, expit(self.scores), 1.0).min(axis=1))

    def at_temperature(self, temperature: float) -> HeldOutLabelSets:
        """The same for a model whose scores are these divided by a temperature."""
        return replace(self, scores=self.scores / temperature, thresholds=self.thresholds / temperature)


@dataclass(frozen=True)
class LabelSetEstimate:
    """Micro-F1 and the exact match, each with its 95% interval."""

    micro_f1: float
    micro_f1_interval: tuple[float, float]
    exact_match: float
    exact_match_interval: tuple[float, float]


def thresholds_without_fold(
    scores: NDArray[Any], targets: NDArray[Any], assigned: NDArray[np.integer[Any]], metric: str, shrinkage: float
) -> NDArray[np.float64]:
    """Each row's thresholds, chosen on the rows of other folds: (rows, labels); `assigned` are the folds, (rows,).

    Where no other row has a label, none is predicted.
    """
    thresholds = np.full(targets.shape, np.inf)
    for fold in np.unique(assigned):
        others = assigned != fold
        if targets[others].any():
            thresholds[~others] = choose_thresholds(scores[others], targets[others], metric, shrinkage)
    return thresholds


def estimate_label_sets(held_out: HeldOutLabelSets, seed: int = 0) -> LabelSetEstimate:
    """The estimated micro-F1 and exact match; the bootstrap's samples are drawn with `seed`."""
    counts = decision_counts(held_out.targets, held_out.predicted)
    learned = ((held_out.folds - 1) / held_out.folds) ** LEARNING_CURVE
    micro_f1 = 1 - (1 - float(f1_of(counts.sum(axis=0)))) * learned
    samples = 1 - (1 - bootstrap_f1(counts, seed)) * learned
    low, high = (micro_f1 + LENGTHENED * (np.percentile(samples, PERCENTILES) - micro_f1)).tolist()
    exact_match = 1 - float(np.mean(~held_out.correct)) * learned
    return LabelSetEstimate(
        micro_f1,
        (max(0.0, min(low, micro_f1)), min(1.0, max(high, micro_f1))),
        exact_match,
        wilson_interval(exact_match, len(held_out.targets)),
    )


def decision_counts(targets: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.float64]:
    """tp, fp and fn of each row, (rows, 3), from matrices of 0 and 1."""
    true, chosen = targets == 1, predicted == 1
    decisions = (true & chosen, ~true & chosen, true & ~chosen)
    return np.stack([each.sum(axis=1) for each in decisions], axis=1).astype(np.float64)


def f1_of(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of tp, fp and fn, (..., 3); 0 where there are none, as scikit-learn has it."""
    tp, fp, fn = np.moveaxis(counts, -1, 0)
    return np.asarray(2 * tp / np.maximum(2 * tp + fp + fn, 1e-12))


def bootstrap_f1(counts: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """F1 of samples of rows with replacement, from tp, fp and fn of each row and of the added ones: (samples,)."""
    labels = max((counts[:, 0] + counts[:, 2]).mean(), 1e-12)  # of a row
    right, wrong = [labels, 0.0, 0.0], [0.0, labels, labels]
    counts = np.concatenate([counts, [right] * ADDED_ROWS, [wrong] * ADDED_ROWS])
    rows = len(counts)
    times = np.random.default_rng(seed).multinomial(rows, np.full(rows, 1 / rows), size=RESAMPLES)
    return f1_of(times @ counts)
