"""A member of a finished run's ensemble, loaded to score rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.scope_states import member_states
from clozify.methods.score import score_rows
from clozify.models.cloze import ClozeModel
from clozify.models.language_model import LanguageModel
from clozify.models.task_prompts import TaskPrompts


@dataclass(frozen=True)
class LoadedMember:
    """One model of an ensemble with its pair and its weight."""

    model: LanguageModel
    prompts: TaskPrompts  # of its pair alone
    max_length: int
    weight: float
    folder: Path  # of its weights
    activate_adapter: Callable[[], None]  # does nothing where the model is not shared

    def scores(self, rows: Rows, advance: Callable[[int], None] = lambda count: None) -> NDArray[np.float32]:
        """Raw scores, (rows, labels)."""
        self.activate_adapter()
        chunks = [chunk for _, chunk in score_rows(self.model, self.prompts, rows, self.max_length, advance=advance)]
        scores: NDArray[np.float32] = np.concatenate(chunks, axis=1)[0]
        return scores

    def states(self, rows: Rows, advance: Callable[[int], None] = lambda count: None) -> NDArray[np.float32]:
        """The states that out-of-scope scores compare, (rows, hidden), of a masked language model."""
        assert isinstance(self.model, ClozeModel)
        self.activate_adapter()
        return member_states(self.model, self.prompts, rows, self.max_length, advance)
