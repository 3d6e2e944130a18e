"""Implements `clozify demo`: supervised training, PET and iPET on the sample data, in minutes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clozify.config.task import Task, load_task
from clozify.data.few_shot import few_shot
from clozify.data.rows import Rows, read_rows
from clozify.inference.training import train
from clozify.report.write import write_report
from clozify.runs.metrics import Metrics
from clozify.utils.atomic import atomic_folder
from clozify.utils.checked_files import read_json

EXAMPLES = 56  # labelled rows, four a label
UNLABELED = 600
TEST = 400
# shorter rows and trainings than the recipe auto has: on labelled rows that are not trained on they cost no accuracy
SETTINGS = (
    "max_seq_length=48",
    "unlabeled_rows=300",
    "supervised.max_steps=60",
    "distill.max_steps=80",
    "estimate.folds=0",  # there are test rows
)


@dataclass(frozen=True)
class DemoResult:
    """The metrics of the demo's runs, which are in `output`."""

    supervised: Metrics
    pet: Metrics
    ipet: Metrics
    output: Path

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts."""
        runs = {name: getattr(self, name).to_json() for name in ("supervised", "pet", "ipet")}
        return runs | {"rows": self.pet.rows, "output": str(self.output)}


def demo_task() -> Task:
    """The sample task with every second of its patterns, which halves the time."""
    task = load_task("debian")
    return task.with_changes(patterns=task.patterns[::2])


def _spread(rows: Rows, count: int) -> Rows:
    """Rows at even distances, at most `count`."""
    return rows.select(np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)))


def demo(
    output: str | Path,
    log: Callable[[str], None] = lambda message: None,
    sizes: tuple[int, int, int] = (EXAMPLES, UNLABELED, TEST),
    settings: Sequence[str] = SETTINGS,
) -> DemoResult:
    """Train by each method on the sample data with the recipe `auto`."""
    task, folder = demo_task(), Path(output)
    examples, unlabeled_size, test_size = sizes
    labeled = few_shot(read_rows("builtin:labeled", task), examples)
    unlabeled = _spread(read_rows("builtin:unlabeled", task), unlabeled_size)
    shared: dict[str, Any] = {
        "test": _spread(read_rows("builtin:test", task), test_size),
        "settings": settings,
        "log": log,
    }
    log(f"1. supervised: a classifier from the {len(labeled)} labelled rows alone")
    supervised = train(task, labeled, folder / "supervised", method="supervised", **shared)
    log(f"2. PET: {len(task.pairs)} patterns, the same labelled rows and {len(unlabeled):,} unlabelled ones")
    pet = train(task, labeled, folder / "pet", unlabeled, **shared)
    log("3. iPET: the patterns' models label rows for each other, learn again, and train a classifier, too")
    _copy_members(folder / "pet", folder / "ipet")
    ipet = train(task, labeled, folder / "ipet", unlabeled, method="ipet", **shared)
    for baseline in ("ipet", "supervised"):
        write_report(folder / "pet", baseline=folder / baseline)
    return DemoResult(supervised.metrics, pet.metrics, ipet.metrics, folder)


def _copy_members(source: Path, target: Path) -> None:
    """Start a run with the results of another one: PET's members, and its scores before training, are iPET's, too."""
    if not target.exists():
        with atomic_folder(target) as tmp_path:
            for kind in ("members", "untrained"):
                shutil.copytree(source / kind, tmp_path / kind)
            inputs = read_json(source / "run.json") | {"method": "ipet"}
            (tmp_path / "run.json").write_text(json.dumps(inputs, indent=2), encoding="utf-8")
