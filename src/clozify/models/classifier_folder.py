"""The files of a classifier's folder that any kind of classifier has; loads neither PyTorch nor Transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from clozify.config.task import Task, load_task
from clozify.data.decision import Decision, decision_of
from clozify.errors import ModelError, quoted
from clozify.utils.atomic import atomic_write_text
from clozify.utils.checked_files import read_json

TASK_FILE = "task.toml"
ONNX_FILE, EXPORT_FILE = "model.onnx", "export.json"  # of an export
PRECISIONS = ("auto", "float32", "int8")


def load_classifier_task(folder: Path) -> Task:
    """The task of a classifier's folder."""
    if not (folder / TASK_FILE).is_file():
        raise ModelError(f"The classifier in '{folder}' has no {TASK_FILE}; copy the folder again, or train again.")
    return load_task(folder / TASK_FILE)


def check_labels(folder: Path, labels: Sequence[str], task: Task) -> None:
    """Raise an error where the labels of a classifier's config.json are not those of its task."""
    if list(labels) != task.labels:
        raise ModelError(
            f"The classifier in '{folder}' has the labels {quoted(labels, 5)} in config.json, but "
            f"{quoted(task.labels, 5)} in {TASK_FILE}; the files do not belong together."
        )


def load_decision(folder: Path) -> Decision:
    """How the scores of a classifier or an export become labels: its task and its config.json say."""
    task = load_classifier_task(folder)
    thresholds = read_json(folder / "config.json").get("thresholds") if task.multilabel else None
    return decision_of(task, thresholds, str(folder / "config.json"))


def rename_labels(folder: Path, labels: Sequence[str]) -> None:
    """Give the labels of a classifier's folder other names; the file is replaced, since others may link to it."""
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["id2label"] = {str(index): label for index, label in enumerate(labels)}
    content["label2id"] = {label: index for index, label in enumerate(labels)}
    atomic_write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_thresholds(folder: Path, decision: Decision) -> None:
    """Add the labels' thresholds to a classifier's config.json, where rows may have several labels."""
    if decision.multilabel:
        config = read_json(folder / "config.json") | {"thresholds": decision.by_label()}
        atomic_write_text(folder / "config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
