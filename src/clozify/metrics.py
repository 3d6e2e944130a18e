"""From scores to probabilities, and how good predictions are: scikit-learn's metrics, named as in the task."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """q(l | x) over the last axis."""
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = exp / exp.sum(axis=-1, keepdims=True)
    return shares


def accuracy(truth: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """The share of rows whose label was found."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predicted))


def macro_f1(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> float:
    """The mean of the labels' F1 scores; a label that is neither there nor predicted counts as 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=range(labels), average="macro", zero_division=0))


def evaluate(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> dict[str, float]:
    """The metrics that a task may name."""
    return {"accuracy": accuracy(truth, predicted), "macro_f1": macro_f1(truth, predicted, labels)}


def detailed_metrics(
    truth: NDArray[np.integer], probabilities: NDArray[np.floating], names: list[str]
) -> dict[str, Any]:
    """All there is to say about one classifier: also each label's precision and recall, confusion and calibration."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predicted = probabilities.argmax(axis=-1)
    places = range(len(names))
    precision, recall, f1, rows = precision_recall_fscore_support(truth, predicted, labels=places, zero_division=0)
    return {
        **evaluate(truth, predicted, len(names)),
        "calibration_error": calibration_error(truth, probabilities),
        "labels": {
            name: {
                "precision": float(precision[n]),
                "recall": float(recall[n]),
                "f1": float(f1[n]),
                "rows": int(rows[n]),
            }
            for n, name in enumerate(names)
        },
        "confusion": confusion_matrix(truth, predicted, labels=places).tolist(),
    }


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
