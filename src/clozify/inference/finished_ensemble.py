"""The ensemble of a finished run (section 3.2 of the paper): its members, their weights and other teachers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.decision import Decision, decision_of
from clozify.data.rows import Rows
from clozify.inference.ensemble_members import EnsembleMembers
from clozify.inference.frozen import FrozenMember
from clozify.inference.loaded_member import LoadedMember
from clozify.inference.voting import VotingTeachers
from clozify.methods.ensemble import combine_scores
from clozify.runs.records import ENSEMBLE_FILE, EnsembleRecord
from clozify.runs.results import first_method
from clozify.utils.progress import progress


class FinishedEnsemble:
    """The members in a run's folder; an LLM among the teachers is asked only within a `budget`."""

    def __init__(self, folder: Path, budget: str | None = None) -> None:
        self.folder, self.budget = folder, budget
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def record(self) -> EnsembleRecord:
        """The content of ensemble.json."""
        return EnsembleRecord.load(self.folder)

    @property
    def task(self) -> Task:
        """The task that the members were trained for."""
        return self.record.task

    @cached_property
    def decision(self) -> Decision:
        """How scores become probabilities and labels; with several labels a row, by the run's thresholds."""
        decision = decision_of(self.task, self.record.thresholds, str(self.folder / ENSEMBLE_FILE))
        return replace(decision, temperature=self.record.temperature)

    @cached_property
    def teachers(self) -> VotingTeachers | None:
        """The teachers besides the patterns."""
        records = self.record.teachers
        return None if records is None else VotingTeachers(self.folder, self.task, records, self.device, self.budget)

    @cached_property
    def loader(self) -> EnsembleMembers:
        """What loads the members."""
        return EnsembleMembers(self.folder, self.record, self.device, first_method(self.folder) == "frozen")

    def members(self) -> Iterator[LoadedMember | FrozenMember]:
        """The ensemble's members, loaded one after the other."""
        return self.loader.load()

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """s_M of the rows, (rows, labels)."""
        scores, weights = [], []
        with progress("predicting", len(rows) * len(self.record.weights)) as advance:
            for member in self.members():
                scores.append(member.scores(rows, advance))
                weights.append(member.weight)
        return self.combine(scores, weights, rows)

    def combine(
        self, scores: Sequence[NDArray[np.floating]], weights: Sequence[float], rows: Rows
    ) -> NDArray[np.float64]:
        """s_M of the rows from its members' scores, together with the votes of other teachers: (rows, labels)."""
        models = [member.teacher for member in self.record.weights]
        if self.teachers is None or len(set(models)) == 1:
            combined = combine_scores(scores, weights)
            return combined if self.teachers is None else self.teachers.combine([combined], rows)
        of_models = []
        for model in dict.fromkeys(models):  # in the order of the ensemble's teachers
            chosen = [index for index, of_member in enumerate(models) if of_member == model]
            of_models.append(combine_scores([scores[i] for i in chosen], [weights[i] for i in chosen]))
        return self.teachers.combine(of_models, rows)
