"""The result of a cell, as it is kept in the bench's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from clozify.bench.plan import CellSpec
from clozify.metrics import basic_metrics

CELLS, FAILED = "cells", "failed"  # kinds of jobs in the bench's folder
RESULT, PREDICTIONS, LOG = "result.json", "predictions.npy", "log.txt"


class Measured(BaseModel):
    """What the process of a cell measured."""

    model_config = ConfigDict(frozen=True)

    training_seconds: float  # from rows on disk to a trained model on disk and in memory, without imports
    prediction_seconds: float  # of all test rows, with the model loaded
    memory_bytes: int  # the peak of the cell's process
    gpu_bytes: int | None = None  # the peak of its tensors on a GPU
    size_bytes: int  # of what has to be kept to predict
    threads: int = 1
    versions: dict[str, str] = Field(default_factory=dict)


class CellResult(BaseModel):
    """The content of `cells/KEY/result.json`, or of `failed/KEY/result.json`."""

    model_config = ConfigDict(frozen=True)

    key: str  # of the cell's folder
    spec: CellSpec
    title: str  # of the method
    settings: str  # of the method, in a sentence
    machine: str
    device: str
    at_once: int = 1  # cells at a time on a device: times are comparable where it is 1
    labeled_rows: int
    unlabeled_rows: int  # 0 for methods that cannot use them
    test_rows: int
    labels: int
    measured: Measured | None = None  # None where it failed
    accuracy: float | None = None
    macro_f1: float | None = None
    failure: str = ""
    seconds: float = 0.0  # of the whole cell, its start included

    @property
    def rows_per_second(self) -> float | None:
        """Test rows predicted per second."""
        if self.measured is None:
            return None
        return self.test_rows / max(self.measured.prediction_seconds, 1e-9)


def read_results(folder: Path) -> list[CellResult]:
    """The results of all cells in a bench's folder; of a cell that failed and then succeeded, the success."""
    results: dict[str, CellResult] = {}
    for kind in (FAILED, CELLS):
        for path in sorted((folder / kind).glob(f"*/{RESULT}")):
            results[path.parent.name] = CellResult.model_validate_json(path.read_bytes())
    return list(results.values())


def score(labels: NDArray[np.int64], predicted: NDArray[np.int64], count: int) -> tuple[float, float]:
    """Accuracy and macro-F1 of predictions, for `count` labels."""
    metrics = basic_metrics(labels, predicted, count)
    return metrics.accuracy, metrics.macro_f1
