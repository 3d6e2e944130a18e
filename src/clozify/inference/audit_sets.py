"""The data sets of an audit, in memory: the texts of every field, and the labels as the data has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.observed_labels import ObservedLabels, observe_labels
from clozify.data.rows import Rows
from clozify.errors import DataError
from clozify.inference.audit_records import AuditedRow, SetName
from clozify.report.format import shorten

MAX_UNLABELED = 100_000  # rows that are read; of more, evenly spaced ones
ADJECTIVES: dict[SetName, str] = {"labeled": "labelled", "unlabeled": "unlabelled", "test": "test"}


@dataclass(frozen=True)
class AuditSet:
    """A data set with its rows' texts."""

    name: SetName
    rows: Rows
    fields: list[list[str]]  # the rows' texts, field by field
    labels: ObservedLabels | None  # None without a label column, and for unlabelled rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _numbers(self) -> NDArray[np.int64]:
        return self.rows.row_numbers()

    @cached_property
    def _ids(self) -> list[Any] | None:
        return self.rows.ids() if self.rows.has_ids else None

    def texts(self, rows: Sequence[int]) -> list[str]:
        """The texts of these rows, their fields joined by spaces."""
        return [" ".join(filter(None, (column[row] for column in self.fields))) for row in rows]

    def row(self, index: int) -> AuditedRow:
        """A row as the report names it."""
        return AuditedRow(
            data=self.name,
            row=int(self._numbers[index]) + 1,
            id=None if self._ids is None else self._ids[index],
            label=(self.labels.cells[index] or None) if self.labels is not None else None,
            text=shorten(self.texts([index])[0]),
        )


def read_sets(
    task: Task,
    sources: Mapping[SetName, RowSource | None],
    column_mapping: Mapping[str, str] | None,
    notes: list[str],
) -> list[AuditSet]:
    """The data sets that were named; an error where the labelled rows have no label column."""
    sets = []
    for name, source in sources.items():
        if source is None:
            continue
        mapping = dict(column_mapping or {})
        if name == "unlabeled":
            mapping.pop(task.label, None)  # its column is not needed there
        rows = load_rows(source, task, mapping, name=name)
        if name == "unlabeled" and len(rows) > MAX_UNLABELED:
            notes.append(f"{MAX_UNLABELED:,} of {len(rows):,} unlabelled rows were looked at, evenly spaced.")
            rows = rows.select(np.linspace(0, len(rows) - 1, MAX_UNLABELED).astype(np.int64))
        labels = None if name == "unlabeled" else observe_labels(rows)
        if name == "labeled" and (labels is None or not labels.is_labeled.any()):
            _ = rows.targets  # an error where the column is missing, or has no label of the task
            raise DataError(f"No row of '{rows.source}' is labelled; name a file with labelled rows.")
        notes += [note for note in rows.warnings if note not in notes]
        sets.append(AuditSet(name, rows, [rows.texts(field) for field in task.fields], labels))
    return sets


def source_paths(sources: Mapping[SetName, RowSource | None]) -> list[str | Path]:
    """The files among the sources."""
    return [source for source in sources.values() if isinstance(source, (str, Path))]
