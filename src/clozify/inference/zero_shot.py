"""Zero-shot prediction, from a data file to a report: the room behind `clozify zero-shot` and `clozify.zero_shot`.

In: a task, where the data is, a model. Out: a report (plain numbers and names, ready for JSON) and, if asked for,
a file of predictions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clozify.config.task import Task, load_task
from clozify.data.predictions import check_output, write_predictions
from clozify.data.rows import NO_LABEL, read_rows
from clozify.methods.score import MAX_LENGTH
from clozify.methods.zero_shot import ZeroShotScores, score_zero_shot
from clozify.models.cloze import ClozeModel, load_model


def zero_shot(
    task: str | Path | Task,
    data: str | Path,
    model: str | Path | ClozeModel = "builtin",
    output: str | Path | None = None,
    calibrate: bool = False,
    column_mapping: Mapping[str, str] | None = None,
    max_length: int = MAX_LENGTH,
) -> tuple[ZeroShotScores, dict[str, Any]]:
    """Score and predict every row of `data` with every pair of the task, without any training.

    Returns what was found and a report of it: `accuracy` and `macro_f1` (with labels) hold `mean`, `best`,
    `ensemble` and `patterns`.
    """
    task = load_task(task)
    if output is not None:
        check_output(Path(output), data)
    rows = read_rows(data, task, column_mapping)
    if rows.has_labels:
        _ = rows.labels  # an unknown label is told before the model is loaded
    model = model if isinstance(model, ClozeModel) else load_model(model)
    began = time.monotonic()
    found = score_zero_shot(model, rows, calibrate, max_length)
    seconds = time.monotonic() - began
    if output is not None:
        chunks = ((start, found.probabilities(start, stop)) for start, stop in rows.chunks())
        write_predictions(Path(output), rows, chunks)
    without = int((rows.labels == NO_LABEL).sum()) if rows.has_labels else len(rows)
    if rows.has_labels and without:
        found.remarks.append(f"{without:,} of {len(rows):,} rows have no label and do not count in the accuracy.")
    counts = np.bincount(found.predictions()[-1], minlength=len(task.labels))
    return found, {
        "task": task.name,
        "model": model.name,
        "data": str(data),
        "rows": len(rows),
        "labeled_rows": len(rows) - without,
        "calibrated": calibrate,
        "pairs": [
            {"name": pair.name, "pattern": pair.pattern.text, "verbalizer": pair.verbalizer.name} for pair in task.pairs
        ],
        **(found.metrics() if rows.has_labels else {}),
        "predicted": {label: int(count) for label, count in zip(task.labels, counts, strict=True)},
        "warnings": found.remarks,
        "output": None if output is None else str(output),
        "seconds": round(seconds, 2),
    }
