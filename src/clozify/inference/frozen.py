"""A pattern of a finished run with a frozen encoder, ready to score rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.methods.frozen import LabelVectors, compute_states
from clozify.methods.scope_states import member_states
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import PatternPrompt, TaskPrompts
from clozify.prompts.encode import EncodedRows


@dataclass(frozen=True)
class FrozenMember:
    """The label vectors of a pattern's pairs, combined, and the encoder, which all patterns share."""

    model: ClozeModel
    prompts: TaskPrompts  # of the pattern alone
    max_length: int
    weight: float
    vectors: LabelVectors
    folder: Path  # of the vectors of its pair with the highest weight

    @classmethod
    def combine(
        cls,
        model: ClozeModel,
        prompt: PatternPrompt,
        max_length: int,
        vectors: Sequence[NDArray[Any]],
        weights: Sequence[float],
        folder: Path,
    ) -> FrozenMember:
        """The pattern's pairs as one member: scores are linear in the label vectors, and so is the ensemble."""
        prompts = TaskPrompts([prompt], [], list(prompt.template.fields))
        combined = LabelVectors.from_array(combine_scores(vectors, weights))
        return cls(model, prompts, max_length, sum(weights), combined, folder)

    def scores(self, rows: Rows, advance: Callable[[int], None] = lambda count: None) -> NDArray[np.float32]:
        """Raw scores, (rows, labels)."""
        scores, length = [], min(self.max_length, self.model.max_length)
        for start, stop in rows.chunks():
            tokens = self.prompts.tokenize(self.model, rows, start, stop)
            encoded = EncodedRows(self.prompts.patterns[0].template, tokens, length)
            scores.append(self.vectors.scores(compute_states(self.model, encoded, advance)))
        return np.concatenate(scores)

    def states(self, rows: Rows, advance: Callable[[int], None] = lambda count: None) -> NDArray[np.float32]:
        """The states that out-of-scope scores compare, (rows, hidden)."""
        return member_states(self.model, self.prompts, rows, self.max_length, advance)
