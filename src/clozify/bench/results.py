"""A bench's folder: what was asked for (`run.json`), and the result of each cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from clozify.bench.draws import DataSet
from clozify.bench.plan import CellSpec
from clozify.errors import RunError
from clozify.metrics import basic_metrics
from clozify.runs.object_store import is_remote
from clozify.utils.atomic import SUFFIX

RUN, KIND = "run.json", "bench"
FORMAT = 2  # of a bench's folder; raised where earlier ones cannot be continued
LOCK = ".lock"
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
    notes: list[str] = Field(default_factory=list)  # on the draw's rows
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


def read_run(folder: Path) -> dict[str, Any]:
    """The content of a bench's `run.json`, or that of a new bench; raises an error for another kind of folder."""
    path = folder / RUN
    try:
        new = {"kind": KIND, "format": FORMAT}
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else new
    except ValueError:
        raise RunError(f"The file '{path}' is damaged; delete it, or name another folder.") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise RunError(f"The folder '{folder}' holds a run, not a bench; name another folder.")
    if content.get("format") != FORMAT:
        raise RunError(f"The bench in '{folder}' is of another version of clozify; name another folder.")
    return {"commands": [], "cells": {}} | content


def read_results(folder: Path) -> list[CellResult]:
    """The results of all cells in a bench's folder; of a cell that failed and then succeeded, the success.

    Results of cells that a later command has replaced, since it has other rows or settings for them, are left out.
    """
    results: dict[str, CellResult] = {}
    for kind in (FAILED, CELLS):
        for path in sorted((folder / kind).glob(f"*/{RESULT}")):
            try:
                results[path.parent.name] = CellResult.model_validate_json(path.read_bytes())
            except ValidationError:
                raise RunError(f"The result '{path}' is damaged; delete its folder, and the cell runs again.") from None
    current = read_run(folder)["cells"]  # the key of the cell in a slot
    return [result for result in results.values() if current.get(result.spec.slot, result.key) == result.key]


def check_output(output: str | Path) -> Path:
    """The folder of a bench, which is new, empty or a bench's; nothing is written."""
    if is_remote(output):
        raise RunError(f"A bench is written to a folder, not to '{output}'; name a folder.")
    folder = Path(output)
    if file := next((path for path in (folder, *folder.parents) if path.is_file()), None):
        raise RunError(f"The bench cannot be written to '{folder}': '{file}' is a file; name a folder.")
    names = sorted(path.name for path in folder.glob("*") if path.name != LOCK and path.suffix != SUFFIX)
    if names and RUN not in names:
        raise RunError(f"The folder '{folder}' holds '{names[0]}' but no bench; name an empty or a new folder.")
    read_run(folder)
    return folder


def check_folder(folder: Path, data_sets: Sequence[DataSet]) -> None:
    """Raise an error where the folder is a bench's with other rows under the same names."""
    keys = {result.spec.data: result.spec.data_key for result in read_results(folder)}
    for data_set in data_sets:
        if keys.get(data_set.name, data_set.key) != data_set.key:
            raise RunError(
                f"The bench in '{folder}' has other rows of '{data_set.name}': other files, another seed, or another "
                "number of test or unlabelled rows; name another folder, or give the data another name: "
                "--data NAME=FILE."
            )


def score(labels: NDArray[np.int64], predicted: NDArray[np.int64], count: int) -> tuple[float, float]:
    """Accuracy and macro-F1 of predictions, for `count` labels."""
    metrics = basic_metrics(labels, predicted, count)
    return metrics.accuracy, metrics.macro_f1
