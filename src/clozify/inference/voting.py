"""The teachers of a finished ensemble that are no patterns: they vote on the rows to predict as well.

An LLM behind an API is asked only within a budget; without one, the notes say what it would cost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import ClozifyError, RunError, quoted
from clozify.methods.combination import TeacherWeight, combine_votes
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.runs.plan import empty_rows
from clozify.runs.records import EnsembleTeacher
from clozify.runs.results import ANSWERS, jobs_folder
from clozify.teachers.base import PATTERNS, ScoringContext, Teacher, abstentions
from clozify.teachers.build import build_teachers
from clozify.utils.user_cache import user_cache

PAID = "openai"  # the kind of teachers that are asked within a budget only


class VotingTeachers:
    """Rules and other teachers of an ensemble, ready to vote; those that cannot vote here abstain."""

    def __init__(
        self, folder: Path, task: Task, records: Sequence[EnsembleTeacher], device: str, budget: str | None = None
    ) -> None:
        self.folder, self.task, self.records, self.device, self.budget = folder, task, records, device, budget
        self._requests = self._tokens = 0  # that an LLM would have taken
        self._logged: list[str] = []
        if budget is not None and not any(record.kind == PAID for record in records):
            raise RunError(f"The ensemble in '{folder}' has no LLM to ask; leave the budget out.")

    @cached_property
    def _by_name(self) -> dict[str, Teacher]:
        """The teachers of the task file; objects of Python are not part of a run."""
        return {teacher.name: teacher for teacher in build_teachers(self.task, budget=self.budget)}

    def _votes_here(self, record: EnsembleTeacher) -> bool:
        if record.kind == PAID and self.budget is None:
            return False
        return record.kind == PATTERNS or record.name in self._by_name

    @property
    def warnings(self) -> list[str]:
        """Sentences about teachers that do not vote here, and what LLMs log that do."""
        absent = [record for record in self.records if not self._votes_here(record)]
        unasked = [record.name for record in absent if record.kind == PAID]
        others = [record.name for record in absent if record.kind != PAID]
        sentences = list(self._logged)
        if unasked:
            cost = f" ({self._requests:,} requests, about {self._tokens:,} tokens for these rows)" * bool(
                self._requests
            )
            sentences.append(
                f"{quoted(unasked)} is asked within a budget only{cost}: without --budget (in Python: "
                "load_run(..., budget=...)) predictions of this ensemble lack its votes; with unlabelled rows "
                "(--unlabeled) a classifier learns them."
            )
        if others:
            sentences.append(
                f"{quoted(others)} voted in training only, so predictions of this ensemble lack their votes; with "
                "unlabelled rows (--unlabeled) a classifier learns them."
            )
        return sentences

    @cached_property
    def _labeled(self) -> Rows:
        """T, for the examples in an LLM's prompt, as in training; empty where it cannot be read again."""
        try:
            return reread_rows(RunRecord.load(self.folder).inputs, "labeled")
        except ClozifyError as error:
            self._log(f"The LLM's prompts have no examples: {error.problems[0]}")
            return empty_rows(self.task)

    @property
    def _cache(self) -> Path:
        """The folder of answers: the run's where it can be written."""
        of_run = jobs_folder(self.folder) / ANSWERS
        return of_run if of_run.is_dir() and os.access(of_run, os.W_OK) else user_cache() / ANSWERS

    def _log(self, line: str) -> None:
        if line not in self._logged:
            self._logged.append(line)

    def combine(self, patterns: Sequence[NDArray[np.floating]], rows: Rows) -> NDArray[np.float64]:
        """s of the rows, (rows, labels), from the patterns' scores of each model and the other teachers' votes."""
        remaining, scores = list(patterns), list[NDArray[np.floating]]()
        for record in self.records:
            if record.kind == PATTERNS:
                scores.append(remaining.pop(0))
            elif not self._votes_here(record):
                self._count_cost(record, rows)
                scores.append(abstentions(len(rows), len(self.task.labels)))
            else:
                labeled = self._labeled if record.kind == PAID else empty_rows(self.task)
                context = ScoringContext(labeled, self.device, self._cache, self._log)
                scores.append(self._by_name[record.name].score(rows, context))
        weights = [
            TeacherWeight(1.0, record.temperature, record.weight, 1.0, record.offsets) for record in self.records
        ]
        return combine_votes(scores, weights)

    def _count_cost(self, record: EnsembleTeacher, rows: Rows) -> None:
        """Add up what an LLM would cost that is not asked."""
        if record.kind == PAID and record.name in self._by_name:
            cost = self._by_name[record.name].cost(rows)
            self._requests += cost.requests
            self._tokens += cost.input_tokens + cost.output_tokens
