"""The rows of a studio project: the loaded file, the rows on display and the labels given on the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task, Verbalizer
from clozify.data.readers import open_data
from clozify.data.rows import NO_LABEL, UNLABELED, Rows
from clozify.studio.draft import TaskDraft

if TYPE_CHECKING:
    from datasets import Dataset

MAX_LABELS = 50  # a column with more distinct values is not a label column
SHOWN_ROWS = 24  # rows on display, which the model scores


class ProjectRows:
    """A loaded data set and the labels that the user gave to its rows; a draft says which columns are used."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.labels: dict[int, str] = {}  # row index -> the user's label
        self.page = 0  # which rows are on display
        self._dataset: Dataset | None = None
        self._file_labels: tuple[object, NDArray[np.int16]] | None = None  # a cache: its key and the file's labels

    def load(self, source: str) -> None:
        """Load a file, a folder of shards, a hub data set or the sample; another source drops the labels."""
        path = Path(source).expanduser()
        source = str(path.resolve()) if path.exists() else source
        dataset = open_data(source)
        if source != self.source:
            self.labels = {}
        self._dataset, self.source, self.page = dataset, source, 0

    def restore(self, source: str, labels: dict[int, str]) -> None:
        """Load a source with the labels of an earlier session."""
        self.load(source)
        self.labels = {row: label for row, label in labels.items() if row < len(self)}

    def __len__(self) -> int:
        return 0 if self._dataset is None else len(self._dataset)

    @property
    def columns(self) -> list[str]:
        """The columns of the data."""
        return [] if self._dataset is None else list(self._dataset.column_names)

    def longest_column(self, label_column: str) -> list[str]:
        """The column with the longest text, the label column aside: the likeliest field of a task."""
        assert self._dataset is not None
        first_rows = self._dataset[: min(50, len(self))]
        lengths = {
            name: sum(len(value) for value in values if isinstance(value, str))
            for name, values in first_rows.items()
            if name != label_column
        }
        return [max(lengths, key=lambda name: lengths[name])] if lengths else []

    def label_names(self, column: str) -> list[str]:
        """The distinct labels in a column, or none if their number is not between 2 and MAX_LABELS."""
        if self._dataset is None or column not in self.columns:
            return []
        values = {str(value).strip() for value in self._dataset.unique(column) if value is not None}
        names = sorted(values - UNLABELED)
        return names if 2 <= len(names) <= MAX_LABELS else []

    @property
    def shown(self) -> list[int]:
        """Indices of the rows on display, spread evenly over the data."""
        step = max(1, len(self) // SHOWN_ROWS)
        return list(range(self.page % step, len(self), step))[:SHOWN_ROWS]

    def show_other_rows(self) -> None:
        """Display the next selection of rows."""
        self.page += 1

    def select(self, draft: TaskDraft, indices: list[int] | None = None) -> Rows | None:
        """All rows or some of them with the draft's fields; None without data or without fields."""
        if self._dataset is None or not draft.fields:
            return None
        rows = Rows(self._dataset, _placeholder_task(draft), self.source or "the data")
        return rows if indices is None else rows.select(indices)

    def columns_of(self, draft: TaskDraft, indices: list[int]) -> dict[str, list[str]]:
        """The texts of some rows, by field."""
        rows = self.select(draft, indices)
        return {} if rows is None else {field: rows.texts(field) for field in draft.fields}

    def texts(self, draft: TaskDraft, indices: list[int]) -> list[str]:
        """Some rows as readable text: their fields, separated by bars."""
        columns = self.columns_of(draft, indices)
        return [" | ".join(filter(None, fields)) for fields in zip(*columns.values(), strict=True)]

    def label_indices(self, draft: TaskDraft, indices: list[int] | None = None) -> NDArray[np.int16]:
        """Labels as indices into `draft.labels`, for all rows or some: the user's, else the file's, else NO_LABEL."""
        names = draft.labels
        selected = list(range(len(self))) if indices is None else indices
        labels = self._labels_of_file(draft, tuple(names))[selected]
        for position, row in enumerate(selected):
            if self.labels.get(row) in names:
                labels[position] = names.index(self.labels[row])
        return labels

    def _labels_of_file(self, draft: TaskDraft, names: tuple[str, ...]) -> NDArray[np.int16]:
        key = (self.source, draft.label, names)
        if self._file_labels is None or self._file_labels[0] != key:
            rows = self.select(draft) if names else None
            unlabeled = np.full(len(self), NO_LABEL, dtype=np.int16)
            self._file_labels = (key, rows.labels if rows is not None and rows.has_labels else unlabeled)
        return self._file_labels[1]

    def label_counts(self, draft: TaskDraft) -> dict[str, int]:
        """The number of rows with each label."""
        labels = self.label_indices(draft)
        return {name: int((labels == index).sum()) for index, name in enumerate(draft.labels)}

    def unlabeled(self, draft: TaskDraft, limit: int) -> list[int]:
        """Indices of at most `limit` rows, spread evenly over those without a label or, if all have one, over all."""
        free = np.flatnonzero(self.label_indices(draft) == NO_LABEL)
        free = free if len(free) else np.arange(len(self))
        indices: list[int] = free[np.unique(np.linspace(0, len(free) - 1, min(limit, len(free))).astype(int))].tolist()
        return indices


def _placeholder_task(draft: TaskDraft) -> Task:
    """A valid task with the draft's fields and labels, for reading rows while the draft itself is incomplete."""
    words = {name: (name,) for name in draft.labels} or {"label": ("label",)}
    return Task.model_validate(
        {
            "name": "draft",
            "fields": draft.fields,
            "label": draft.label,
            "patterns": ["{mask}"],
            "verbalizers": [Verbalizer(words=words)],
            "line_breaks": draft.hidden_settings.get("line_breaks", []),
        }
    )
