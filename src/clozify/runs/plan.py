"""What a run works on: the task, the recipe, the rows, the models, and where they run.

Every job of a run is handed this; what it holds of the rows goes into the jobs' keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.rows import NO_LABEL, Rows
from clozify.errors import DataError
from clozify.metrics import basic_metrics
from clozify.models.cloze import BUILTIN, ClozeModel, load_model
from clozify.models.lora import Base
from clozify.runs.folder import fingerprint, hash_key
from clozify.runs.tracking import Tracking
from clozify.training.loop import Monitor


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
    dev: Rows | None
    device: str
    say: Callable[[str], None]  # tells people a line
    trackers: Sequence[str] = ()
    output: Path | None = None
    warnings: list[str] = field(default_factory=list)
    paraphrases: Rows | None = None  # the pile's rows in other words, for UDA and MixText

    def warn(self, text: str) -> None:
        """Say something that people should know of the run, now and with its results."""
        self.warnings.append(text)
        self.say(f"note: {text}")

    def seeds(self, trainings: int = 1) -> list[list[int]]:
        """The seeds of each of so many trainings, one a repetition."""
        repetitions = self.recipe.repetitions
        if self.recipe.seeding == "ensemble":
            drawn = np.random.SeedSequence(self.recipe.seed).generate_state(trainings * repetitions)
            return [[int(seed) for seed in of_one] for of_one in drawn.reshape(trainings, repetitions)]
        return [[self.recipe.seed + number for number in range(repetitions)]] * trainings

    @property
    def with_lm(self) -> bool:
        """Whether pairs are trained with the auxiliary task, which needs a pile."""
        return self.recipe.language_modeling and self.unlabeled is not None

    @cached_property
    def accelerator(self) -> Any:
        """Accelerate's hand on the device: bf16 on a GPU with float32 master weights, float32 on a CPU."""
        from accelerate import Accelerator

        return Accelerator(
            cpu=self.device == "cpu",
            mixed_precision="bf16" if self.device == "cuda" else "no",
            log_with=list(self.trackers) if self.trackers and self.output is not None else None,
            project_dir=None if self.output is None else str(self.output / "trackers"),
        )

    @cached_property
    def tracking(self) -> Tracking:
        """The run's trackers."""
        return Tracking(self.accelerator)

    @contextmanager
    def watching(
        self, name: str, steps: int, scores_of_dev: Callable[[], NDArray[np.float32]]
    ) -> Iterator[tuple[Monitor, list[float]]]:
        """What goes on beside one training, and what it reached on the development rows, look by look."""
        looks: list[float] = []

        def look() -> float:
            assert self.dev is not None
            found = basic_metrics(self.dev.labels, scores_of_dev().argmax(axis=-1), len(self.task.labels)).model_dump()
            looks.append(found[self.task.metric.replace("-", "_")])
            return looks[-1]

        with self.tracking.training(name, steps) as on_step:
            yield Monitor(on_step, look if self.dev is not None else None, self.recipe.dev), looks

    @cached_property
    def data_key(self) -> dict[str, Any]:
        """What the rows are, for the jobs' keys."""
        sets = {"labeled": self.labeled, "unlabeled": self.unlabeled, "test": self.test, "dev": self.dev}
        found: dict[str, Any] = {}
        for name, rows in sets.items():
            if rows is not None:
                found[name] = {"rows": len(rows), "texts": rows.digest}
        found["labeled"]["labels"] = hash_key(labels=self.labeled.labels.tolist())
        if self.dev is not None:
            found["dev"]["labels"] = hash_key(labels=self.dev.labels.tolist())
            found["dev"]["settings"] = self.recipe.dev.model_dump() | {"metric": self.task.metric}
        return found

    @staticmethod
    def model_key(name: str) -> str:
        """What a model is, for the jobs' keys: a folder's content, or a hub name."""
        place = BUILTIN if name == "builtin" else Path(name)
        return fingerprint(place) if place.is_dir() else name

    @property
    def base(self) -> Base:
        """The model as what adapters belong to, by a name that is good wherever they are used."""
        is_folder = self.model != "builtin" and Path(self.model).is_dir()
        return Base(str(Path(self.model).resolve()) if is_folder else self.model, self.model_key(self.model))

    def load_model(self) -> ClozeModel:
        """The masked language model as the recipe wants it: with its adapter, and how it scores rows."""
        dropout, adapter = self.recipe.attention_dropout, self.recipe.adapter
        model = load_model(self.model, self.device, attention_dropout=dropout, adapter=adapter)
        model.precision = self.recipe.scoring
        return model

    @cached_property
    def shared_key(self) -> dict[str, Any]:
        """What every job with the cloze model depends on."""
        return {
            "data": self.data_key,
            "model": self.model_key(self.model),
            "max_seq_length": self.recipe.max_seq_length,
            "wording": self.recipe.wording.model_dump(),
            "line_breaks": self.task.line_breaks,
            "labels": self.task.labels,
        } | ({"scoring": self.recipe.scoring} if self.device == "cpu" and self.recipe.scoring != "float32" else {})


def no_rows(task: Task) -> Rows:
    """A training set without rows, for zero-shot iPET."""
    from datasets import Dataset

    return Rows(Dataset.from_dict({name: [] for name in [*task.fields, task.label]}), task, "no labelled rows")


def with_labels(rows: Rows, warnings: list[str], what: str) -> Rows:
    """The rows that have a label; how many have not is said."""
    known = np.flatnonzero(rows.labels != NO_LABEL)
    if len(known) == 0:
        raise DataError(f"No row of the {what} data '{rows.source}' has a label.")
    if len(known) == len(rows):
        return rows
    warnings.append(f"{len(rows) - len(known):,} of {len(rows):,} {what} rows have no label and were left out.")
    return rows.select(known)
