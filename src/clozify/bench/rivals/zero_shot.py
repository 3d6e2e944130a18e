"""The patterns before any training; where there are enough unlabelled rows, they are calibrated on these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.bench.rivals.clozify_run import PACKAGES as PACKAGES

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "zero-shot"
TITLE = "zero-shot"
SETTINGS = "the patterns without training, calibrated where there are enough unlabelled rows; no labelled rows"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ()
ENCODER = "model"
UNLABELED = True
MAX_LENGTH = True
NEEDS = ""


def load_libraries() -> None:
    """Import the libraries."""
    import clozify.inference.zero_shot  # noqa: F401


class ZeroShotModel:
    """The encoder, the patterns and the mean probabilities of the labels."""

    def __init__(self, job: Job) -> None:
        from clozify.config.task import load_task
        from clozify.data.rows import read_rows
        from clozify.methods.calibration import min_rows
        from clozify.methods.zero_shot import score_zero_shot
        from clozify.models.language_model import load_model

        task = load_task(job.task)
        self.model: Any = load_model(job.model, job.device)
        self.test, self.max_length = read_rows(job.test, task), job.max_length
        unlabeled = None if job.unlabeled is None else read_rows(job.unlabeled, task)
        self.prior: NDArray[np.float64] | None = None
        if unlabeled is not None and len(unlabeled) >= min_rows(len(task.labels)):
            self.prior = score_zero_shot(self.model, unlabeled, True, job.max_length).prior
        self.folder = Path(job.work)
        self.model.save(self.folder)

    @property
    def kept(self) -> Sequence[Path]:
        """The encoder."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        from clozify.methods.zero_shot import score_zero_shot

        scores = score_zero_shot(self.model, self.test.select(np.arange(rows)), False, self.max_length)
        predicted: NDArray[np.int64] = replace(scores, prior=self.prior).predictions()[-1]
        return predicted


def train(job: Job) -> ZeroShotModel:
    """Load the model and calibrate it."""
    return ZeroShotModel(job)
