"""Reads a finished run's folder: what the run was given, what it measured, and the members of its ensemble."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.decision import Decision, decision_of
from clozify.errors import RunError
from clozify.metrics import Evaluation
from clozify.runs import records
from clozify.runs.metrics import ClassifierMetrics, Metrics
from clozify.runs.results import ENSEMBLE_METHODS, check_finished, jobs_folder
from clozify.utils.checked_files import naming_damaged, open_npy, read_json, read_record


class DataSource(BaseModel):
    """One data set of a run: how many rows, a hash of their texts, and where they were read from."""

    model_config = ConfigDict(frozen=True)

    rows: int
    texts: str
    source: str
    labels: str | None = None  # a hash of the labels, where the run used them
    columns: dict[str, str] | None = None  # field -> column of the source, where they differ


class RunInputs(BaseModel):
    """The content of `run.json`."""

    model_config = ConfigDict(frozen=True)

    clozify: str
    torch: str
    method: str
    model: str
    student: str
    task: Task
    recipe: Recipe
    data: dict[str, DataSource]  # labeled, unlabeled, test, dev


@dataclass(frozen=True)
class EnsembleMember:
    """A member of the ensemble: its pair, its weight, and the folder with its scores."""

    pair: str
    seed: int | None
    weight: float
    folder: Path


@dataclass(frozen=True)
class RunRecord:
    """A finished run as it is kept in its folder."""

    folder: Path
    inputs: RunInputs
    metrics: Metrics

    @classmethod
    def load(cls, folder: str | Path) -> RunRecord:
        """Read a run's folder; a `RunError` says why there is nothing to report."""
        path = Path(folder)
        if not (path / "run.json").is_file():
            raise RunError(f"The folder '{folder}' holds no run; name the folder that clozify train wrote to --output.")
        inputs = read_record(path / "run.json", RunInputs)
        check_finished(path)
        return cls(path, inputs, Metrics.load(path / "metrics.json"))

    @property
    def task(self) -> Task:
        """The task."""
        return self.inputs.task

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.inputs.recipe

    @property
    def method(self) -> str:
        """`pet`, `ipet`, `frozen`, or a baseline."""
        return self.inputs.method

    @property
    def decision(self) -> Decision:
        """How the result's scores become labels; with several labels a row, by the run's thresholds."""
        decision = decision_of(self.task, self.metrics.thresholds, str(self.folder / "metrics.json"))
        return replace(decision, temperature=self._temperature)

    @property
    def _temperature(self) -> float:
        return 1.0 if self.metrics.estimate is None else self.metrics.estimate.temperature

    @property
    def ensemble_decision(self) -> Decision:
        """How the ensemble's scores become labels."""
        path = self.folder / records.ENSEMBLE_FILE
        content = read_json(path)
        decision = decision_of(self.task, content.get("thresholds") if self.task.multilabel else None, str(path))
        return replace(decision, temperature=float(content.get("temperature", 1.0)))

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.jobs_folder.resolve().name

    @property
    def jobs_folder(self) -> Path:
        """The run's folder, which has the jobs; `folder` has the results of one method."""
        return jobs_folder(self.folder)

    @property
    def has_classifier(self) -> bool:
        """Whether the result is a classifier, not an ensemble."""
        return self.method not in ENSEMBLE_METHODS or (self.folder / "classifier").is_dir()

    @property
    def result_key(self) -> str:
        """The field of `metrics` with the result: `classifier`, `static`, `ensemble`, or a baseline's name."""
        if self.method not in ENSEMBLE_METHODS:
            return self.method
        if self.metrics.static is not None:
            return "static"
        return "classifier" if self.has_classifier else "ensemble"

    @property
    def result(self) -> ClassifierMetrics | Evaluation | None:
        """The metrics of the run's result."""
        result: ClassifierMetrics | Evaluation | None = getattr(self.metrics, self.result_key)
        return result

    @cached_property
    def members(self) -> list[EnsembleMember]:
        """The members of the ensemble, without repetitions; empty for a baseline."""
        path = self.folder / "ensemble.json"
        if not path.is_file():
            return []
        members: dict[str, EnsembleMember] = {}
        with naming_damaged(path):
            entries = [records.EnsembleMember.model_validate(entry) for entry in read_json(path)["weights"]]
        for entry in entries:  # all seeds of an untrained pair are the same member
            folders = [self.jobs_folder / parent / entry.member for parent in ("members", "untrained")]
            if existing := [folder for folder in folders if folder.is_dir()]:
                member = EnsembleMember(entry.pair, entry.seed, entry.weight, existing[0])
                members.setdefault(entry.member, member)
        return list(members.values())

    @cached_property
    def combined_scores_folder(self) -> Path | None:
        """The folder with the combined scores of all teachers; None where patterns are the only ones."""
        path = self.folder / records.ENSEMBLE_FILE
        key = read_json(path).get("combined") if path.is_file() else None
        return None if key is None else self.jobs_folder / "combined" / str(key)

    @cached_property
    def scoring_members(self) -> list[EnsembleMember]:
        """The members whose scores of the unlabelled rows were kept."""
        return [member for member in self.members if (member.folder / "unlabeled.npy").is_file()]

    @cached_property
    def unlabeled_scores(self) -> list[NDArray[np.float32]]:
        """The raw scores of the unlabelled rows by each scoring member, (rows, labels)."""
        return [open_npy(member.folder / "unlabeled.npy") for member in self.scoring_members]
