"""Further language models of a task file as teachers before any training, for `clozify zero-shot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Generative
from clozify.config.task import Task
from clozify.config.teachers import ModelEntry
from clozify.data.rows import Rows
from clozify.methods.score import MAX_LENGTH
from clozify.methods.zero_shot import score_zero_shot
from clozify.models.language_model import load_model
from clozify.models.model_key import model_key
from clozify.teachers.base import Cost, ScoringContext


@dataclass(frozen=True)
class ModelTeacher:
    """The task's patterns with another language model: the mean of the pairs' scores."""

    entry: ModelEntry
    calibrated: bool
    max_length: int = MAX_LENGTH
    generative: Generative | None = None
    kind: str = "model"

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.entry.title

    def key(self) -> dict[str, Any]:
        """What its scores depend on."""
        return {"model": model_key(self.entry.model), "calibrated": self.calibrated, "max_length": self.max_length}

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Nothing."""
        return Cost()

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities, (rows, labels)."""
        model = load_model(self.entry.model, context.device, generative=self.generative)
        scores = score_zero_shot(model, rows, self.calibrated, self.max_length)
        probabilities = np.concatenate([scores.probabilities(start, stop) for start, stop in scores.chunks()])
        result: NDArray[np.float32] = np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)
        return result


def model_teachers(
    task: Task, calibrated: bool, max_length: int, generative: Generative | None = None
) -> list[ModelTeacher]:
    """A teacher for each further model of the task."""
    entries = [entry for entry in task.teachers if isinstance(entry, ModelEntry)]
    return [ModelTeacher(entry, calibrated, max_length, generative) for entry in entries]
