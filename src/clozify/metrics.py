"""How good predictions are: scikit-learn's metrics, by the name that the task gives (appendix C)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def accuracy(truth: NDArray[np.integer], predicted: NDArray[np.integer]) -> float:
    """The share of rows whose label was found."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predicted))


def macro_f1(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> float:
    """The mean of the labels' F1 scores; a label that is neither there nor predicted counts as 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, labels=range(labels), average="macro", zero_division=0))


def evaluate(truth: NDArray[np.integer], predicted: NDArray[np.integer], labels: int) -> dict[str, float]:
    """All metrics of one list of predictions."""
    return {"accuracy": accuracy(truth, predicted), "macro_f1": macro_f1(truth, predicted, labels)}
