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
MAX_LENGTH = False
NEEDS = "nli-model"
CHUNK_ROWS = 256


def load_libraries() -> None:
    """Import the libraries."""
    import clozify.teachers.nli  # noqa: F401


class NliModel:
    """An NLI model and a hypothesis for each label."""

    def __init__(self, job: Job) -> None:
        from clozify.config.task import load_task
        from clozify.teachers.nli import NliTeacher
        from clozify.teachers.sequence_model import SequenceModel

        task = load_task(job.task)
        self.name, self.test = job.options["nli-model"], job.texts("test")
        teacher = NliTeacher(self.name)
        self.entailment, self.hypotheses = teacher.check(task), teacher.hypotheses(task)
        self.model: Any = SequenceModel(self.name, job.device)

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder, or its copy in the hub's cache."""
        folder = Path(self.name)
        if folder.is_dir():
            return [folder]
        from huggingface_hub import snapshot_download

        return [Path(snapshot_download(self.name, local_files_only=True))]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows: the hypothesis with the highest logit of entailment."""
        count = len(self.hypotheses)
        predicted = np.empty(rows, dtype=np.int64)
        for start in range(0, rows, CHUNK_ROWS):
            premises = self.test[start : min(start + CHUNK_ROWS, rows)]
            texts = [premise for premise in premises for _ in range(count)]
            logits = self.model.logits(texts, self.hypotheses * len(premises), lambda done: None)[:, self.entailment]
            predicted[start : start + len(premises)] = logits.reshape(-1, count).argmax(axis=1)
        return predicted


def train(job: Job) -> NliModel:
    """Load the model; there is nothing to train."""
    return NliModel(job)
