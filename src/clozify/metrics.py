"""Metrics of predictions: scikit-learn's, by the names that a task uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class BasicMetrics(BaseModel):
    """The metrics that a task may name; with several labels a row, `accuracy` is the exact match of all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: float
    macro_f1: float
    micro_f1: float | None = None  # with several labels a row alone

    @property
    def main(self) -> float:
        """The accuracy or, with several labels a row, micro-F1."""
        return self.accuracy if self.micro_f1 is None else self.micro_f1

    @model_serializer(mode="wrap")
    def _without_micro_f1(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialize(self)
        return {name: value for name, value in content.items() if name != "micro_f1" or value is not None}


class LabelMetrics(BaseModel):
    """Precision, recall and F1 of one label, and the number of rows that have it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: float
    recall: float
    f1: float
    rows: int


class Evaluation(BasicMetrics):
    """All metrics of a set of predictions: also calibration, each label's, and the confusion matrix."""

    calibration_error: float
    labels: dict[str, LabelMetrics]
    confusion: list[list[int]] | None = None  # [true label][predicted label]; None with several labels a row


def accuracy(truth: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """The fraction of rows that are predicted correctly."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predicted))


def macro_f1(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> float:
    """The mean of the labels' F1 scores; a label that is neither true nor predicted anywhere counts as 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=range(labels), average="macro", zero_division=0))


def micro_f1(truth: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """F1 of all decisions together, of several labels a row: (rows, labels) twice."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average="micro", zero_division=0))


def mean_micro_f1(metrics: Sequence[Any]) -> float | None:
    """The mean micro-F1 of metrics with that field; None with one label a row."""
    values = [value for each in metrics if (value := each.micro_f1) is not None]
    return float(np.mean(values)) if values else None


def average_precision(truth: NDArray[np.integer], scores: NDArray[np.floating]) -> float:
    """The area under the curve of precision and recall of all decisions together; 0 where no row has a label."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, scores, average="micro")) if truth.any() else 0.0


def wilson_interval(accuracy: float, rows: int) -> tuple[float, float]:
    """The 95% confidence interval of an accuracy that was measured on `rows` rows, by Wilson's formula.

    (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n). It stays within 0 and 1 and holds for few rows, too.
    """
    z = 1.959964
    scale = 1 + z * z / rows
    centre = (accuracy + z * z / (2 * rows)) / scale
    half = z * math.sqrt(accuracy * (1 - accuracy) / rows + (z / (2 * rows)) ** 2) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def basic_metrics(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> BasicMetrics:
    """Accuracy and macro-F1; also micro-F1 of several labels a row, whose truth and predictions are (rows, labels)."""
    return BasicMetrics(
        accuracy=accuracy(truth, predicted),
        macro_f1=macro_f1(truth, predicted, labels),
        micro_f1=micro_f1(truth, predicted) if truth.ndim == 2 else None,
    )


def detailed_metrics(
    truth: NDArray[np.integer],
    probabilities: NDArray[np.floating],
    names: Sequence[str],
    predicted: NDArray[np.integer] | None = None,
) -> Evaluation:
    """All metrics of one classifier's predictions; probabilities are (rows, labels).

    The most probable label is predicted; with several labels a row, `predicted` is a matrix of 0 and 1 as `truth` is.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predicted = probabilities.argmax(axis=-1) if predicted is None else predicted
    indices = range(len(names))
    precision, recall, f1, rows = precision_recall_fscore_support(truth, predicted, labels=indices, zero_division=0)
    per_label = {
        name: LabelMetrics(precision=float(precision[i]), recall=float(recall[i]), f1=float(f1[i]), rows=int(rows[i]))
        for i, name in enumerate(names)
    }
    return Evaluation(
        **basic_metrics(truth, predicted, len(names)).model_dump(),
        calibration_error=calibration_error(truth, probabilities),
        labels=per_label,
        confusion=confusion_matrix(truth, predicted, labels=indices).tolist() if truth.ndim == 1 else None,
    )


def calibration_error(truth: NDArray[np.integer], probabilities: NDArray[np.floating], bins: int = 10) -> float:
    """The expected calibration error: the mean over rows of |accuracy - confidence| of the row's bin of confidence.

    With several labels a row, every probability of a label is compared with how often the label is there.
    """
    if truth.ndim == 2:
        confidence, correct = probabilities.ravel(), truth.ravel() == 1
    else:
        confidence, correct = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == truth  # (rows,)
    bin_indices = np.minimum((confidence * bins).astype(int), bins - 1)
    error = 0.0
    for index in range(bins):
        in_bin = bin_indices == index
        if in_bin.any():
            error += abs(correct[in_bin].mean() - confidence[in_bin].mean()) * in_bin.mean()
    return float(error)
