"""How far a run's result can be trusted, from labelled rows that models scored without having seen them.

The record is `reliability.json`, in the folder of a method's results and in its `classifier/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from clozify.methods.conformal import LEVELS, classifier_threshold, set_threshold
from clozify.runs.metrics import AccuracyMetrics
from clozify.utils.checked_files import read_record

RELIABILITY_FILE = "reliability.json"


class Reliability(AccuracyMetrics):
    """The estimated accuracy of a run's result, and the calibrated probabilities of the held-out labelled rows."""

    # of each held-out row: the calibrated probability of the predicted label, of several that of exactly these
    confidence: list[float]
    correct: list[bool]  # whether that label, or all of the row's labels, are right
    true_probability: list[float]  # the calibrated probability of the true label, of several the lowest; 1 without any
    # of a classifier with unlabelled rows: thresholds at which it expects its prediction sets to reach each level
    expected_thresholds: list[float] = []

    @model_validator(mode="after")
    def _same_lengths(self) -> Reliability:
        if not self.rows == len(self.confidence) == len(self.correct) == len(self.true_probability):
            raise ValueError("confidence, correct and true_probability need a value for each of the rows")
        if len(self.expected_thresholds) not in (0, len(LEVELS)):
            raise ValueError(f"expected_thresholds needs {len(LEVELS)} values, or none")
        return self

    def set_threshold(self, level: float) -> float:
        """The lowest probability of a label in a prediction set of this level."""
        values = np.asarray(self.true_probability)
        if not self.expected_thresholds or level > LEVELS[-1] or level < LEVELS[0]:
            return set_threshold(values, level)
        return classifier_threshold(values, level, self.folds, np.asarray(self.expected_thresholds))

    @property
    def confidences(self) -> NDArray[np.float64]:
        """The held-out rows' confidence, (rows,)."""
        return np.asarray(self.confidence, dtype=np.float64)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether each held-out row's label is right, (rows,)."""
        return np.asarray(self.correct, dtype=bool)

    @classmethod
    def of_probabilities(
        cls, estimate: AccuracyMetrics, probabilities: NDArray[Any], truth: NDArray[np.integer[Any]]
    ) -> Reliability:
        """The estimate with the calibrated probabilities of the held-out rows, (rows, labels), and their labels."""
        return cls(
            **estimate.model_dump(),
            confidence=probabilities.max(axis=-1).tolist(),
            correct=(probabilities.argmax(axis=-1) == truth).tolist(),
            true_probability=probabilities[np.arange(len(truth)), truth].tolist(),
        )

    @property
    def summary(self) -> AccuracyMetrics:
        """The estimate without the held-out rows."""
        return AccuracyMetrics(**self.model_dump(include=set(AccuracyMetrics.model_fields)))


def load_reliability(folder: Path) -> Reliability | None:
    """The record in a folder; None where it has none."""
    path = folder / RELIABILITY_FILE
    return read_record(path, Reliability) if path.is_file() else None
