"""What `clozify predict` and `clozify evaluate` return: rows with probabilities, labels and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.predictions import Answers, PredictedChunk, write_predictions
from clozify.data.rows import Rows
from clozify.metrics import Evaluation


@dataclass(frozen=True)
class Predictions:
    """The labels' probabilities for each row."""

    rows: Rows
    probabilities: NDArray[np.float64]  # (rows, labels), the columns in the order of `rows.task.labels`
    decision: Decision  # which labels the probabilities mean
    answers: Answers = field(default_factory=Answers)  # which rows have no prediction; sets and out-of-scope scores

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[Any]:
        """Each row's id: the task's id column where the data has it, else the row's number from 0."""
        return self.rows.ids()

    @property
    def labels(self) -> list[Any]:
        """Each row's most probable label, None for one that is abstained from.

        Where rows may have several labels, all of them in one text, as `a|b`.
        """
        return self.answers.keep(self.decision.names(self.decision.predict(self.probabilities)))

    @property
    def label_sets(self) -> list[list[str]]:
        """Each row's labels: one, or where rows may have several any number; none for one that is abstained from."""
        if self.decision.multilabel:
            predicted = self.decision.name_lists(self.decision.predict(self.probabilities))
            return [names or [] for names in self.answers.keep(predicted)]
        return [[] if name is None else [name] for name in self.labels]

    @property
    def abstained(self) -> list[str | None]:
        """Why each row has no prediction, "confidence" or "out of scope"; None for a row that has one."""
        return [None] * len(self) if self.answers.abstained is None else list(self.answers.abstained)

    @property
    def sets(self) -> list[list[str]] | None:
        """The labels of each row's prediction set; None where no level was asked for."""
        return None if self.answers.sets is None else self.decision.name_lists(self.answers.sets)

    @property
    def out_of_scope(self) -> NDArray[np.floating[Any]] | None:
        """Each row's out-of-scope score, (rows,); None where rows out of scope are not rejected."""
        return self.answers.out_of_scope

    @property
    def groups(self) -> list[Any] | None:
        """The group of each row's most probable label; None where the task has no groups."""
        groups = self.rows.task.label_groups
        if groups is None:
            return None
        return self.answers.keep([groups.by_label[index] for index in self.probabilities.argmax(axis=1)])

    @property
    def group_probabilities(self) -> NDArray[np.float64] | None:
        """(rows, groups), the columns in the order of `rows.task.label_groups.names`; None where there are none."""
        groups = self.rows.task.label_groups
        return None if groups is None else groups.sum_columns(self.probabilities)

    def save(self, path: str | Path, with_text: bool = False, top: int | None = None) -> None:
        """Write ids, labels and probabilities, and the texts if asked for, as .csv, .jsonl or .parquet.

        With `top`, each row has that many likeliest labels instead of every label's probability.
        """
        chunks = (
            PredictedChunk(start, self.probabilities[start:stop], self.answers.part(start, stop))
            for start, stop in self.rows.chunks()
        )
        write_predictions(Path(path), self.rows, chunks, with_text, top, self.decision)


class EvaluationResult(Evaluation):
    """A finished run measured on labelled rows."""

    model: str  # what answered
    data: str  # where the rows are from
    rows: int
    warnings: list[str]
