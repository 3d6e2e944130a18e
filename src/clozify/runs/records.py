"""What a run keeps of its ensemble: members with their scores, and `ensemble.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.utils.checked_files import open_npy, read_record

UNLABELED_SCORES = "unlabeled.npy"  # in a member's folder: raw scores of the unlabelled rows, (rows, labels)
TEST_SCORES = "test.npy"
LABELED_SCORES = "labeled.npy"  # in a teacher's folder
HELD_OUT_SCORES = "held_out.npy"  # of labelled rows, by a model that was not trained on them
HELD_OUT_SCOPE = "held_out_scope.npy"  # these rows' out-of-scope scores, (rows,)
LABEL_VECTORS = "label_vectors.npy"  # in `model/` of a member with a frozen encoder, (labels, states + 1)
ENSEMBLE_FILE = "ensemble.json"


@dataclass(frozen=True)
class Member:
    """A member of the ensemble, one fine-tuned model (a pair and a seed), whose scores are in its folder.

    `scored_unlabeled` says whether the run asked it to score the unlabelled rows; an earlier run in the same folder may
    have asked for more.
    """

    pair: int  # index in `task.pairs`
    seed: int
    folder: Path
    scored_unlabeled: bool
    zero_points: tuple[float, ...] | None = None  # subtracted from the labels' scores, with several labels a row
    teacher: str | None = None  # the name of its language model as a teacher, where it is not the run's own

    @property
    def key(self) -> str:
        """The key of the job that trained it."""
        return self.folder.name

    @property
    def job(self) -> str:
        """KIND/KEY: where its folder is in the run."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def unlabeled_scores(self) -> NDArray[Any]:
        """Raw scores of the unlabelled rows, (rows, labels), mapped from the disk."""
        return open_npy(self.folder / UNLABELED_SCORES)

    def test_scores(self) -> NDArray[np.float32]:
        """Raw scores of the test rows, (rows, labels)."""
        return open_npy(self.folder / TEST_SCORES)


class EnsembleMember(BaseModel):
    """A member in `ensemble.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    member: str  # the key of its folder in `members/`
    pair: str
    seed: int
    weight: float
    zero_points: list[float] | None = None  # subtracted from the labels' scores, with several labels a row
    teacher: str | None = None  # the name of its language model as a teacher, where it is not the run's own


class EnsembleTeacher(BaseModel):
    """A teacher in `ensemble.json`, where there are others than patterns: how its scores enter the combined ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str  # "patterns", or that of the teacher
    weight: float
    temperature: float
    offsets: tuple[float, ...] = ()  # added to its scores, one a label; empty for none


class EnsembleRecord(BaseModel):
    """The content of `ensemble.json`: what is needed to predict with the members."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Task
    recipe: Recipe
    weights: list[EnsembleMember] = Field(min_length=1)
    thresholds: dict[str, float] | None = None  # with several labels a row
    teachers: list[EnsembleTeacher] | None = None  # where there are others than patterns
    combined: str | None = None  # the key of the job with the combined scores, in `combined/`
    temperature: float = Field(1.0, gt=0)  # that the ensemble's scores are divided by

    @classmethod
    def load(cls, folder: Path) -> EnsembleRecord:
        """The ensemble of a run's folder."""
        return read_record(folder / ENSEMBLE_FILE, cls)
