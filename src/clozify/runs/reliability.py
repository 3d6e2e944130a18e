"""How far a run's result can be trusted, from labelled rows that models scored without having seen them.

The record is `reliability.json`, in the folder of a method's results and in its `classifier/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from clozify.runs.metrics import Record
from clozify.utils.checked_files import read_record

RELIABILITY_FILE = "reliability.json"


class Reliability(Record):
    """The estimated accuracy of a run's result, and the calibrated probabilities of the held-out labelled rows."""

    rows: int  # labelled rows, each scored by models that were trained without it
    folds: int
    accuracy: float  # the estimate for the result
    low: float  # of the 95% interval
    high: float
    temperature: float  # the result's scores were divided by it
    confidence: list[float]  # of each held-out row: the calibrated probability of the predicted label
    correct: list[bool]  # whether that label is right
    true_probability: list[float]  # the calibrated probability of the true label

    @model_validator(mode="after")
    def _same_lengths(self) -> Reliability:
        if not self.rows == len(self.confidence) == len(self.correct) == len(self.true_probability):
            raise ValueError("confidence, correct and true_probability need a value for each of the rows")
        return self

    @property
    def confidences(self) -> NDArray[np.float64]:
        """The held-out rows' confidence, (rows,)."""
        return np.asarray(self.confidence, dtype=np.float64)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether each held-out row's label is right, (rows,)."""
        return np.asarray(self.correct, dtype=bool)

    @classmethod
    def of_scores(cls, probabilities: NDArray[Any], truth: NDArray[np.integer[Any]], **estimate: Any) -> Reliability:
        """From calibrated probabilities of held-out rows, (rows, labels), and their labels; `estimate` has the rest."""
        predicted = probabilities.argmax(axis=-1)
        return cls(
            rows=len(truth),
            confidence=probabilities.max(axis=-1).tolist(),
            correct=(predicted == truth).tolist(),
            true_probability=probabilities[np.arange(len(truth)), truth].tolist(),
            **estimate,
        )


def load_reliability(folder: Path) -> Reliability | None:
    """The record in a folder; None where it has none."""
    path = folder / RELIABILITY_FILE
    return read_record(path, Reliability) if path.is_file() else None
