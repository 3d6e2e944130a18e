"""The main job on what ships with the package: supervised training, PET and iPET on the sample data, in minutes.

In: a folder for the runs. Out: the runs' numbers; the runs are ordinary ones and resume.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clozify.config.task import Task, load_task
from clozify.data.rows import Rows, few_shot, read_rows
from clozify.pipeline.train import train
from clozify.report.write import write_report

EXAMPLES = 56  # labelled rows: four a label
PILE = 600  # unlabelled rows
TEST = 400


def demo_task() -> Task:
    """The sample task with every other of its patterns: half the time."""
    task = load_task("debian")
    return task.with_changes(patterns=task.patterns[::2])


def _spread(rows: Rows, count: int) -> Rows:
    """So many rows, evenly from the whole file."""
    return rows.select(np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)))


def demo(
    output: str | Path,
    say: Callable[[str], None] = lambda line: None,
    sizes: tuple[int, int, int] = (EXAMPLES, PILE, TEST),
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Train each way on the sample data with the recipe `quick`; returns each one's metrics and the rows used."""
    task, place = demo_task(), Path(output)
    examples, pile, test = sizes
    labeled = few_shot(read_rows("builtin:labeled", task), examples)
    given: dict[str, Any] = {
        "test": _spread(read_rows("builtin:test", task), test),
        "recipe": "quick",
        "settings": settings,
        "log": say,
    }
    say(f"1. supervised: a classifier from the {len(labeled)} labelled rows alone")
    supervised = train(task, labeled, place / "supervised", method="supervised", **given)
    given["unlabeled"] = _spread(read_rows("builtin:unlabeled", task), pile)
    say(f"2. PET: {len(task.pairs)} patterns, the same labelled rows and {len(given['unlabeled']):,} unlabelled ones")
    pet = train(task, labeled, place / "pet", **given)
    say("3. iPET: the patterns' models label rows for each other, and learn again; no classifier this time")
    without = {**given, "settings": [*settings, "distillation=false"]}
    ipet = train(task, labeled, place / "pet", method="ipet", **without)
    train(task, labeled, place / "pet", **(given | {"log": lambda line: None}))  # puts PET's classifier back in place
    write_report(place / "pet", baseline=place / "supervised")
    return {"supervised": supervised, "pet": pet, "ipet": ipet, "rows": pet["rows"], "output": str(place)}
