"""What a run works on: the task, the recipe, the rows, the models, and where they run.

Every job of a run is handed this; what it holds of the rows goes into the jobs' keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clozify.cloze import BUILTIN
from clozify.data import NO_LABEL, Rows
from clozify.errors import DataError
from clozify.recipe import Recipe
from clozify.run import fingerprint, key_of
from clozify.task import Task


@dataclass
class Plan:
    """What a run works on: everything that its jobs share."""

    task: Task
    recipe: Recipe
    method: str
    model: str
    student: str
    labeled: Rows
    unlabeled: Rows | None
    test: Rows | None
    device: str
    say: Callable[[str], None]  # tells people a line
    warnings: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        """One seed a repetition."""
        return [self.recipe.seed + number for number in range(self.recipe.repetitions)]

    @property
    def with_lm(self) -> bool:
        """Whether pairs are trained with the auxiliary task, which needs a pile."""
        return self.recipe.language_modeling and self.unlabeled is not None

    @cached_property
    def accelerator(self) -> Any:
        """Accelerate's hand on the device: bf16 on a GPU with float32 master weights, float32 on a CPU."""
        from accelerate import Accelerator

        return Accelerator(cpu=self.device == "cpu", mixed_precision="bf16" if self.device == "cuda" else "no")

    @cached_property
    def data_key(self) -> dict[str, Any]:
        """What the rows are, for the jobs' keys."""
        sets = {"labeled": self.labeled, "unlabeled": self.unlabeled, "test": self.test}
        found: dict[str, Any] = {}
        for name, rows in sets.items():
            if rows is not None:
                digest = key_of(texts=rows.fingerprints().tolist())
                found[name] = {"rows": len(rows), "texts": digest}
        found["labeled"]["labels"] = key_of(labels=self.labeled.labels.tolist())
        return found

    @staticmethod
    def model_key(name: str) -> str:
        """What a model is, for the jobs' keys: a folder's content, or a hub name."""
        place = BUILTIN if name == "builtin" else Path(name)
        return fingerprint(place) if place.is_dir() else name

    @cached_property
    def shared_key(self) -> dict[str, Any]:
        """What every job with the cloze model depends on."""
        return {
            "data": self.data_key,
            "model": self.model_key(self.model),
            "max_seq_length": self.recipe.max_seq_length,
            "line_breaks": self.task.line_breaks,
            "labels": self.task.labels,
        }


def with_labels(rows: Rows, warnings: list[str], what: str) -> Rows:
    """The rows that have a label; how many have not is said."""
    known = np.flatnonzero(rows.labels != NO_LABEL)
    if len(known) == 0:
        raise DataError(f"No row of the {what} data '{rows.source}' has a label.")
    if len(known) == len(rows):
        return rows
    warnings.append(f"{len(rows) - len(known):,} of {len(rows):,} {what} rows have no label and were left out.")
    return rows.select(known)
