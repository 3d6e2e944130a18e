"""Metrics of predictions: scikit-learn's, by the names that a task uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

DENSE_LABELS = 100  # with more labels, the confused labels are listed instead of a matrix of all


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

    @property
    def f1_interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval of F1; None for a label without rows.

        F1 = 2 J / (1 + J), where J is the fraction of correct ones among the rows that have the label, are predicted
        to have it, or both; the interval of J is Wilson's.
        """
        if not self.rows:
            return None
        correct = self.recall * self.rows
        rows = self.rows + (correct / self.precision - correct if correct else 0.0)
        low, high = (2 * bound / (1 + bound) for bound in wilson_interval(correct / rows, rows))
        return low, high


class GroupMetrics(BasicMetrics):
    """Predictions as groups of labels: a row is right if the predicted label is in the true label's group."""

    errors: int  # rows whose label is wrong
    errors_across: int  # of these, the rows whose group is wrong, too
    groups: dict[str, LabelMetrics]


class Evaluation(BasicMetrics):
    """All metrics of a set of predictions: also calibration, each label's, and what is confused.

    `confusion` is None with more than `DENSE_LABELS` labels, else `confused`; `groups` where the task has none.
    """

    calibration_error: float
    labels: dict[str, LabelMetrics]
    confusion: list[list[int]] | None = None  # [true label][predicted label]; None with several labels a row
    confused: list[tuple[str, str, int]] | None = None  # true label, predicted label, rows; most rows first
    groups: GroupMetrics | None = None


class Grouping(Protocol):
    """The groups of a task's labels, as `config/groups.py` has them."""

    names: list[str]

    @property
    def indices(self) -> NDArray[np.int64]:
        """Each label's group as an index into `names`: (labels,)."""


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


def wilson_interval(accuracy: float, rows: float) -> tuple[float, float]:
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
    groups: Grouping | None = None,
    predicted: NDArray[np.integer] | None = None,
) -> Evaluation:
    """All metrics of one classifier's predictions; probabilities are (rows, labels).

    The most probable label is predicted; with several labels a row, `predicted` is a matrix of 0 and 1 as `truth` is.
    """
    from sklearn.metrics import confusion_matrix

    predicted = probabilities.argmax(axis=-1) if predicted is None else predicted
    one_label = truth.ndim == 1
    is_dense = len(names) <= DENSE_LABELS
    return Evaluation(
        **basic_metrics(truth, predicted, len(names)).model_dump(),
        calibration_error=calibration_error(truth, probabilities),
        labels=_label_metrics(truth, predicted, names),
        confusion=confusion_matrix(truth, predicted, labels=range(len(names))).tolist()
        if is_dense and one_label
        else None,
        confused=None if is_dense or not one_label else confused_labels(truth, predicted, names),
        groups=None if groups is None or not one_label else group_metrics(truth, predicted, groups),
    )


def _label_metrics(
    truth: NDArray[np.integer], predicted: NDArray[np.integer], names: Sequence[str]
) -> dict[str, LabelMetrics]:
    from sklearn.metrics import precision_recall_fscore_support

    indices = range(len(names))
    precision, recall, f1, rows = precision_recall_fscore_support(truth, predicted, labels=indices, zero_division=0)
    return {
        name: LabelMetrics(precision=float(precision[i]), recall=float(recall[i]), f1=float(f1[i]), rows=int(rows[i]))
        for i, name in enumerate(names)
    }


def confused_labels(
    truth: NDArray[np.integer], predicted: NDArray[np.integer], names: Sequence[str]
) -> list[tuple[str, str, int]]:
    """The true and the predicted label of all errors, each pair with its number of rows; most rows first."""
    wrong = np.flatnonzero(truth != predicted)
    cells, rows = np.unique(np.stack([truth[wrong], predicted[wrong]]), axis=1, return_counts=True)
    return [
        (names[cells[0, index]], names[cells[1, index]], int(rows[index])) for index in np.argsort(-rows, kind="stable")
    ]


def group_metrics(truth: NDArray[np.integer], predicted: NDArray[np.integer], groups: Grouping) -> GroupMetrics:
    """The metrics of the labels' groups."""
    true_groups, predicted_groups = groups.indices[truth], groups.indices[predicted]
    return GroupMetrics(
        **basic_metrics(true_groups, predicted_groups, len(groups.names)).model_dump(),
        errors=int((truth != predicted).sum()),
        errors_across=int((true_groups != predicted_groups).sum()),
        groups=_label_metrics(true_groups, predicted_groups, groups.names),
    )


def calibration_error(truth: NDArray[np.integer], probabilities: NDArray[np.floating], bins: int = 15) -> float:
    """The expected calibration error: the mean of |accuracy - confidence| over bins of equally many rows.

    Rows are sorted by confidence into the bins. With several labels a row, every probability of a label is compared
    with how often the label is there.
    """
    if truth.ndim == 2:
        confidence, correct = probabilities.ravel(), truth.ravel() == 1
    else:
        confidence, correct = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == truth  # (rows,)
    parts = np.array_split(np.argsort(confidence, kind="stable"), bins)
    errors = [abs(correct[part].mean() - confidence[part].mean()) * len(part) for part in parts if len(part)]
    return float(sum(errors) / len(confidence))
