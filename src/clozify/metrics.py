"""How good predictions are: scikit-learn's metrics, named as in the task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict


class BasicMetrics(BaseModel):
    """The metrics that a task may name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: float
    macro_f1: float


class LabelMetrics(BaseModel):
    """One label's precision, recall and F1, and how many rows have it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    precision: float
    recall: float
    f1: float
    rows: int


class Evaluation(BasicMetrics):
    """Predictions against the true labels: scores, calibration, each label, and the confusion matrix."""

    calibration_error: float
    labels: dict[str, LabelMetrics]
    confusion: list[list[int]]  # [true label][predicted label]


def accuracy(truth: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """The share of rows whose label was found."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predicted))


def macro_f1(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> float:
    """The mean of the labels' F1 scores; a label that is neither there nor predicted counts as 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=range(labels), average="macro", zero_division=0))


def basic_metrics(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> BasicMetrics:
    """Accuracy and macro-F1."""
    return BasicMetrics(accuracy=accuracy(truth, predicted), macro_f1=macro_f1(truth, predicted, labels))


def detailed_metrics(
    truth: NDArray[np.integer], probabilities: NDArray[np.floating], names: Sequence[str]
) -> Evaluation:
    """Everything that is measured of one classifier; probabilities are (rows, labels)."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predicted = probabilities.argmax(axis=-1)
    numbers = range(len(names))
    precision, recall, f1, rows = precision_recall_fscore_support(truth, predicted, labels=numbers, zero_division=0)
    per_label = {
        name: LabelMetrics(precision=float(precision[n]), recall=float(recall[n]), f1=float(f1[n]), rows=int(rows[n]))
        for n, name in enumerate(names)
    }
    return Evaluation(
        accuracy=accuracy(truth, predicted),
        macro_f1=macro_f1(truth, predicted, len(names)),
        calibration_error=calibration_error(truth, probabilities),
        labels=per_label,
        confusion=confusion_matrix(truth, predicted, labels=numbers).tolist(),
    )


def calibration_error(truth: NDArray[np.integer], probabilities: NDArray[np.floating], bins: int = 10) -> float:
    """The expected calibration error: how far confidence and accuracy lie apart, over bins of confidence."""
    confidence = probabilities.max(axis=-1)
    right = probabilities.argmax(axis=-1) == truth
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for number in range(bins):
        inside = bin_of == number
        if inside.any():
            total += abs(right[inside].mean() - confidence[inside].mean()) * inside.mean()
    return float(total)
