"""The rows of a studio project: the loaded file, the rows on display and the labels given on the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task, Verbalizer
from clozify.data.few_shot import few_shot
from clozify.data.label_matrix import is_labeled, split_cell
from clozify.data.readers import open_data
from clozify.data.rows import NO_LABEL, UNLABELED, Rows
from clozify.errors import DataError
from clozify.studio.draft import TaskDraft
from clozify.studio.labels import RowKey, UserLabels, identity_task, match_labels

if TYPE_CHECKING:
    from datasets import Dataset

MAX_LABELS = 200  # a column with more distinct values is not a label column
SHOWN_ROWS = 24  # rows on display, which the model scores


class ProjectRows:
    """A loaded data set and the labels that the user gave to its rows; a draft says which columns are used."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.page = 0  # which rows are on display
        self.loads = 0  # the number of loaded files; the same name may be another file
        self._user_labels: UserLabels = {}
        self._dataset: Dataset | None = None
        self._rows: dict[tuple[str, ...], Rows] = {}  # a cache: all rows, by fields, with the hashes of their texts
        self._label_keys: dict[int, RowKey] | None = None  # a cache: row index -> the key of the user's label
        self._file_labels: tuple[object, NDArray[Any]] | None = None  # a cache: its key and the file's labels

    def load(self, source: str) -> None:
        """Load a file, a folder of shards, a hub data set or the sample; the labels stay with their texts."""
        source = absolute(source)
        self._dataset = open_data(source)
        self.source, self.page, self.loads = source, 0, self.loads + 1
        self._rows, self._label_keys = {}, None

    @property
    def user_labels(self) -> UserLabels:
        """The labels given on the page, also those of texts that are not in the data."""
        return self._user_labels

    @user_labels.setter
    def user_labels(self, labels: UserLabels) -> None:
        self._user_labels, self._label_keys = labels, None

    def row_keys(self, draft: TaskDraft, indices: list[int]) -> list[RowKey]:
        """What the labels of these rows belong to: the texts of the draft's fields."""
        rows = self._rows_of_fields(tuple(sorted(draft.fields)))
        assert rows is not None
        selected = rows.select(indices)
        texts = zip(*(selected.texts(field) for field in rows.task.fields), strict=True)
        return [tuple(zip(rows.task.fields, row, strict=True)) for row in texts]

    def _rows_of_fields(self, fields: tuple[str, ...]) -> Rows | None:
        """All rows, read for the texts that labels belong to."""
        if self._dataset is None or not set(fields) <= set(self.columns):
            return None
        if fields not in self._rows:
            self._rows[fields] = Rows(self._dataset, identity_task(fields), self.source or "the data")
        return self._rows[fields]

    @property
    def labels(self) -> dict[int, str | None]:
        """Row index -> the user's label; None: the user removed the label that the file has."""
        return {row: self._user_labels[key] for row, key in self._matched_keys().items()}

    def _matched_keys(self) -> dict[int, RowKey]:
        if self._label_keys is None:
            self._label_keys = match_labels(self._user_labels, self._rows_of_fields)
        return self._label_keys

    def rows_with_keys(self, keys: Sequence[RowKey]) -> dict[int, RowKey]:
        """Row index -> its key, for the rows with these texts."""
        return match_labels(dict.fromkeys(keys), self._rows_of_fields)

    def unmatched_labels(self) -> int:
        """The number of labels whose texts are not in the data."""
        matched = set(self._matched_keys().values())
        return sum(label is not None and key not in matched for key, label in self._user_labels.items())

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

    def label_names(self, column: str, separator: str | None = None) -> list[str]:
        """The distinct labels in a column, or none if their number is not between 2 and MAX_LABELS.

        With a `separator`, a cell may have several.
        """
        if self._dataset is None or column not in self.columns:
            return []
        try:
            distinct = self._dataset.unique(column)
        except NotImplementedError:  # Arrow's: a column of lists
            if separator is None:
                return []
            distinct = self._dataset[column]
        values = {str(value).strip() for value in distinct if value is not None}
        if separator is not None:
            values = {name for value in distinct for name in split_cell(value, separator) or []}
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

    def select(self, draft: TaskDraft, indices: Sequence[int] | NDArray[np.int64] | None = None) -> Rows | None:
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

    def label_indices(self, draft: TaskDraft, indices: list[int] | None = None) -> NDArray[Any]:
        """Labels as indices into `draft.labels`, for all rows or some: the user's, else the file's, else NO_LABEL.

        Where rows may have several labels, 1 for each that a row has, (rows, labels), or NO_LABEL in the whole row.
        """
        names = draft.labels
        labels = self._labels_of_file(draft, tuple(names)).copy()
        for row, label in self.labels.items():
            if draft.multilabel:
                row_names = split_cell(label, draft.separator)
                labels[row] = NO_LABEL if row_names is None else [name in row_names for name in names]
            elif label is None or label in names:
                labels[row] = NO_LABEL if label is None else names.index(label)
        return labels if indices is None else labels[indices]

    def _labels_of_file(self, draft: TaskDraft, names: tuple[str, ...]) -> NDArray[Any]:
        key = (self.loads, draft.label, names, draft.multilabel, draft.separator)
        if self._file_labels is None or self._file_labels[0] != key:
            rows = self.select(draft) if names else None
            shape = (len(self), len(names)) if draft.multilabel else len(self)
            unlabeled = np.full(shape, NO_LABEL, dtype=np.int16)
            self._file_labels = (key, rows.targets if rows is not None and rows.has_labels else unlabeled)
        return self._file_labels[1]

    def label_counts(self, draft: TaskDraft) -> dict[str, int]:
        """The number of rows with each label."""
        labels = self.label_indices(draft)
        has_label = (labels == 1).T if draft.multilabel else labels == np.arange(len(draft.labels))[:, None]
        return {name: int(rows.sum()) for name, rows in zip(draft.labels, has_label, strict=True)}

    def other_labels(self, draft: TaskDraft) -> list[str]:
        """The user's labels of loaded rows that the draft does not have (any more)."""
        user_labels = [label for label in self.labels.values() if label is not None]
        if draft.multilabel:
            user_labels = [name for label in user_labels for name in split_cell(label, draft.separator) or []]
        return sorted({label for label in user_labels if label not in draft.labels})

    def labeled(self, draft: TaskDraft, examples: int = 0, seed: int | None = None) -> list[int]:
        """Indices of the rows that have a label, or of as many as `few_shot` selects for `examples`."""
        labels = self.label_indices(draft)
        indices = np.flatnonzero(is_labeled(labels))
        if examples and len(indices):
            rows = self.select(draft, indices)
            assert rows is not None
            if draft.multilabel:
                rows.label_matrix = labels[indices].astype(np.int8)
            else:
                rows.labels = labels[indices]
            indices = few_shot(rows, examples, seed).row_numbers()
        return [int(row) for row in indices]

    def without(self, draft: TaskDraft, excluded: Sequence[int], other: Rows | None = None) -> Rows:
        """All rows, or those of another file, whose texts none of these rows has."""
        rows = self._rows_of_fields(tuple(sorted(draft.fields)))
        assert rows is not None
        return (rows if other is None else other).excluding(rows.select(list(excluded)))


def absolute(source: str) -> str:
    """The absolute path of a file, or the name of a hub data set: a run starts in another folder."""
    try:
        path = Path(source).expanduser()
        return str(path.resolve()) if path.exists() else source
    except (OSError, RuntimeError) as error:  # a name that is too long, the home folder of an unknown user
        raise DataError(f"The path '{source}' cannot be opened ({error}); name a file that exists.") from None


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
            "multilabel": draft.multilabel,
            "separator": draft.separator,
        }
    )
