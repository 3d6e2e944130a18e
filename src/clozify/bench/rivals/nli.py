"""A model of natural language inference, zero-shot: each label has a hypothesis; the labelled rows are not used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "nli"
TITLE = "NLI zero-shot"
SETTINGS = 'the hypothesis "This text is about {label}." of the teachers, with the first word of each label'
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ()
PACKAGES: tuple[str, ...] = ("transformers", "torch", "clozify")
ENCODER = "none"
UNLABELED = False
NEEDS = "nli-model"


def load_libraries() -> None:
    """Import the libraries."""
    import clozify.teachers.nli  # noqa: F401


class NliModel:
    """An NLI model and a hypothesis for each label."""

    def __init__(self, job: Job) -> None:
        from clozify.config.task import load_task
        from clozify.data.rows import read_rows
        from clozify.runs.plan import empty_rows
        from clozify.teachers.base import ScoringContext
        from clozify.teachers.nli import NliTeacher

        task = load_task(job.task)
        self.test = read_rows(job.test, task)
        self.name = job.options["nli-model"]
        self.teacher: Any = NliTeacher(self.name)
        self.context = ScoringContext(empty_rows(task), job.device, Path(job.work), print)
        self.teacher.check(task)

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder, or its copy in the hub's cache."""
        folder = Path(self.name)
        if folder.is_dir():
            return [folder]
        from huggingface_hub import snapshot_download

        return [Path(snapshot_download(self.name, local_files_only=True))]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows; the model is loaded anew with every call, as the teacher does."""
        scores = self.teacher.score(self.test.select(np.arange(rows)), self.context)
        predicted: NDArray[np.int64] = scores.argmax(axis=-1)
        return predicted


def train(job: Job) -> NliModel:
    """Check the model; there is nothing to train."""
    return NliModel(job)
