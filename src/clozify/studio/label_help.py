"""Help with labelling: labelled rows whose label is probably wrong, and the rows to label next with what they bring."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clozify.data.rows import read_rows
from clozify.errors import DataError
from clozify.inference.audit import audit
from clozify.inference.suggest import suggest_rows
from clozify.studio.draft import TaskDraft
from clozify.studio.labels import identity_task, make_row_key
from clozify.studio.rows import ProjectRows
from clozify.studio.run_numbers import load_record
from clozify.studio.runs import StudioRun

MAX_AUDITED = 300  # labelled rows that are searched for wrong labels; more would take minutes on a CPU
MAX_DOUBTFUL = 20  # rows that are listed
SUGGESTED = 20  # rows to label next


@dataclass(frozen=True)
class DoubtfulLabel:
    """A labelled row whose label is probably wrong."""

    row: int  # its index in the data
    label: str
    label_probability: float
    suggestion: str
    probability: float  # of the suggestion


@dataclass(frozen=True)
class DoubtfulLabels:
    """The likeliest label errors, the likeliest first."""

    rows: list[DoubtfulLabel]
    total: int  # with those that are not listed
    searched: int
    notes: list[str]


@dataclass(frozen=True)
class SuggestedRow:
    """A row to label next, with its label so far by the run."""

    row: int  # its index in the data
    prediction: str


@dataclass(frozen=True)
class NextLabels:
    """The rows to label next, and what their labels will probably bring."""

    run: int
    sentences: list[str]  # as `clozify suggest` prints them
    rows: list[SuggestedRow]
    notes: list[str]


class LabelHelp:
    """Finds doubtful labels and rows to label next on demand, and keeps the last result of each."""

    def __init__(self, data: ProjectRows, model: str, lock: threading.RLock) -> None:
        self.data, self.model = data, model
        self._lock = lock
        self._doubtful: tuple[object, DoubtfulLabels] | None = None
        self._next: tuple[object, NextLabels] | None = None

    def doubtful(self, draft: TaskDraft) -> DoubtfulLabels | None:
        """The last search, while the same file is loaded and the task has the same fields and labels."""
        with self._lock:
            return None if self._doubtful is None or self._doubtful[0] != self._key(draft) else self._doubtful[1]

    def find_doubtful(self, draft: TaskDraft) -> DoubtfulLabels:
        """Search the labelled rows for wrong labels as `clozify audit` does; a row's label may change meanwhile."""
        import pandas as pd

        with self._lock:
            task, key = draft.to_task(), self._key(draft)
            if task.multilabel:
                raise DataError("Wrong labels are not searched for, since the task allows several labels a row.")
            indices = self.data.labeled(draft)
            names = [draft.labels[index] for index in self.data.label_indices(draft, indices)]
            frame = pd.DataFrame({**self.data.columns_of(draft, indices), draft.label: names})
        if not indices:
            raise DataError("No row has a label yet; label a few rows first.")
        result = audit(task, frame, model=self.model, max_rows=MAX_AUDITED)
        rows = [
            DoubtfulLabel(
                indices[error.row.row - 1],
                error.row.label or "",
                error.label_probability,
                error.suggestion,
                error.probability,
            )
            for error in result.label_errors
        ]
        notes = [note.replace("--max-rows", "clozify audit --max-rows") for note in result.notes]
        doubtful = DoubtfulLabels(rows[:MAX_DOUBTFUL], len(rows), result.data[0].scored, notes)
        with self._lock:
            self._doubtful = key, doubtful
        return doubtful

    def next_labels(self, draft: TaskDraft) -> NextLabels | None:
        """The last suggestions, while the same file is loaded and the task has the same fields and labels."""
        with self._lock:
            return None if self._next is None or self._next[0] != self._key(draft) else self._next[1]

    def suggest(self, draft: TaskDraft, run: StudioRun) -> NextLabels:
        """Choose the rows to label next by a finished run, as `clozify suggest` does."""
        record = load_record(run)
        if (list(record.task.fields), list(record.task.labels)) != (draft.fields, draft.labels):
            raise DataError(f"Run {run.number} was trained for other fields or labels; start a new one.")
        suggestions = suggest_rows(record, SUGGESTED)
        ids = [int(row.id) for row in suggestions.rows]
        source = record.inputs.data["unlabeled"].source
        with self._lock:
            matched = self._match(draft, source, ids)
            rows = [
                SuggestedRow(matched[position], row.prediction)
                for position, row in enumerate(suggestions.rows)
                if position in matched
            ]
            notes = list(suggestions.warnings)
            if elsewhere := len(ids) - len(rows):
                notes.append(f"{elsewhere:,} more rows to label are not in the loaded file; load theirs to label them.")
            next_labels = NextLabels(run.number, suggestions.outlook.sentences, rows, notes)
            self._next = self._key(draft), next_labels
            return next_labels

    def _match(self, draft: TaskDraft, source: str, ids: Sequence[int]) -> dict[int, int]:
        """Position in `ids`, which are rows of a file -> the index of the first row of the data with the same text."""
        fields = tuple(sorted(draft.fields))
        rows = read_rows(source, identity_task(fields)).select(list(ids))
        texts = zip(*(rows.texts(name) for name in fields), strict=True)
        keys = [make_row_key(dict(zip(fields, values, strict=True))) for values in texts]
        row_of_key: dict[Any, int] = {}
        for row, key in sorted(self.data.rows_with_keys(keys).items()):
            row_of_key.setdefault(key, row)
        return {position: row_of_key[key] for position, key in enumerate(keys) if key in row_of_key}

    def _key(self, draft: TaskDraft) -> object:
        return self.data.loads, tuple(draft.fields), tuple(draft.labels)
