"""The teachers of a finished ensemble that are no patterns: they vote on the rows to predict as well."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import quoted
from clozify.methods.combination import TeacherWeight, combine_votes
from clozify.runs.context import no_log
from clozify.runs.plan import empty_rows
from clozify.runs.records import EnsembleTeacher
from clozify.teachers.base import PATTERNS, ScoringContext, Teacher, abstentions
from clozify.teachers.build import build_teachers

PAID = "openai"  # the kind of teachers that are asked in training only


class VotingTeachers:
    """Rules and other teachers of an ensemble, ready to vote; those that vote in training alone abstain."""

    def __init__(self, task: Task, records: Sequence[EnsembleTeacher], device: str) -> None:
        self.task, self.records, self.device = task, records, device

    @cached_property
    def _by_name(self) -> dict[str, Teacher]:
        """The teachers of the task file; objects of Python are not part of a run."""
        return {teacher.name: teacher for teacher in build_teachers(self.task)}

    def _votes_here(self, record: EnsembleTeacher) -> bool:
        return record.kind == PATTERNS or (record.kind != PAID and record.name in self._by_name)

    @property
    def warnings(self) -> list[str]:
        """A sentence about teachers that do not vote here."""
        absent = [record.name for record in self.records if not self._votes_here(record)]
        if not absent:
            return []
        return [
            f"{quoted(absent)} voted in training only, so predictions of this ensemble lack their votes; with "
            "unlabelled rows (--unlabeled) a classifier learns them."
        ]

    def combine(self, patterns: Sequence[NDArray[np.floating]], rows: Rows) -> NDArray[np.float64]:
        """s of the rows, (rows, labels), from the patterns' scores of each model and the other teachers' votes."""
        remaining, scores = list(patterns), list[NDArray[np.floating]]()
        with tempfile.TemporaryDirectory() as cache:
            context = ScoringContext(empty_rows(self.task), self.device, Path(cache), no_log)
            for record in self.records:
                if record.kind == PATTERNS:
                    scores.append(remaining.pop(0))
                elif not self._votes_here(record):
                    scores.append(abstentions(len(rows), len(self.task.labels)))
                else:
                    scores.append(self._by_name[record.name].score(rows, context))
        weights = [
            TeacherWeight(1.0, record.temperature, record.weight, 1.0, record.offsets) for record in self.records
        ]
        return combine_votes(scores, weights)
