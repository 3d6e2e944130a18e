"""Rows of a data set as a task reads them: T, D and the test set of the paper (section 4, appendix C).

`Rows` returns the text of each field, the labels and the ids, a chunk at a time, from a memory-mapped Arrow table. Only
labels, hashes of the texts and the indices of selected rows are held in memory.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task, TaskSource, load_task
from clozify.data.ids import plain_ids
from clozify.data.label_matrix import (
    NO_LABEL as NO_LABEL,
)
from clozify.data.label_matrix import (
    UNLABELED as UNLABELED,
)
from clozify.data.label_matrix import (
    indicator_columns,
    is_labeled,
    missing_labels,
    read_label_matrix,
    several_labels_hint,
)
from clozify.data.readers import open_data
from clozify.data.text_values import clean_texts, parse_json, task_spelling, to_text
from clozify.errors import DataError, did_you_mean, quoted, unknown_names

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK_ROWS = 16_384  # rows processed at a time


def chunk_rows(columns: int, most: int = CHUNK_ROWS) -> int:
    """How many rows are processed at a time: fewer than `most` where they have very many numbers each."""
    return max(1, min(most, CHUNK_ROWS * 1_000 // max(columns, 1)))


class Rows:
    """Rows of one data set with the fields and labels of a task; selections copy no text."""

    def __init__(
        self,
        dataset: Dataset,
        task: Task,
        source: str = "the data",
        column_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.task = task
        self.source = source
        self.column_mapping = {name: name for name in [*task.fields, task.label]} | dict(column_mapping or {})
        self.warnings: list[str] = []
        self._dataset = dataset.with_format("arrow")
        self._selection: tuple[Rows, NDArray[np.int64]] | None = None  # all rows of the file, indices of these rows
        self._row_numbers: NDArray[np.int64] | None = None  # in the file, for rows that were sent without it
        self._columns: dict[str, Dataset] = {}  # single columns, cached: selecting one is slow in a large file
        self._fingerprints: NDArray[np.uint64] | None = None  # of all rows of the file, once computed
        self._check_columns(mapped=set(column_mapping or {}))

    def _check_columns(self, mapped: set[str]) -> None:
        """Raise an error where a field has no column; `mapped` are the fields that the user named a column for."""
        names = [*self.task.fields, self.task.label]
        columns = self._dataset.column_names
        problems = unknown_fields(self.column_mapping, self.task)
        for name in names:
            optional = name in self.task.optional or name == self.task.label
            column = self.column_mapping[name]
            if column not in columns and (name in mapped or not optional):
                problems.append(missing_column(self.source, name, column, columns))
        if problems:
            raise DataError(problems)
        if self.task.id and self.task.id not in columns:
            self.warnings.append(
                f"The data '{self.source}' lacks the id column '{self.task.id}'; rows are numbered from 0 instead."
            )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_columns": {}, "_fingerprints": None}  # caches are not sent

    def in_memory_state(self) -> dict[str, Any]:
        """The rows without references to files of this machine, for `from_state` on another one."""
        state = {name: value for name, value in self.__getstate__().items() if name not in ("_dataset", "_selection")}
        for name in ("labels", "label_matrix"):
            if self._selection is not None and name in vars(self._selection[0]):  # read with all rows of the file
                state[name] = getattr(self, name)
        state["_row_numbers"] = self.row_numbers()
        return state | {"table": self.table(), "info": self._dataset.info}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Rows:
        """The rows of which `in_memory_state` was taken."""
        from datasets import Dataset
        from datasets.table import InMemoryTable

        attributes = {name: value for name, value in state.items() if name not in ("table", "info")}
        rows = cls.__new__(cls)
        dataset = Dataset(InMemoryTable(state["table"]), info=state["info"]).with_format("arrow")
        vars(rows).update(attributes, _dataset=dataset, _selection=None)
        return rows

    def __len__(self) -> int:
        return len(self._dataset) if self._selection is None else len(self._selection[1])

    @property
    def has_labels(self) -> bool:
        """Whether there is a label column or, for a task with several labels a row, one column for each label."""
        columns = self._dataset.column_names
        return self.column_mapping[self.task.label] in columns or bool(indicator_columns(self.task, columns))

    @property
    def column_names(self) -> list[str]:
        """All columns of the data, also those that the task does not read."""
        return list(self._dataset.column_names)

    def table(self) -> Any:
        """All columns of the rows as an Arrow table in memory."""
        return self._dataset[:] if self._selection is None else _take(self._dataset, self._selection[1])

    def chunks(self, size: int = CHUNK_ROWS, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Start and stop of consecutive chunks of all rows, or of those from `first` to before `last`."""
        last = len(self) if last is None else last
        for start in range(first, last, size):
            yield start, min(start + size, last)

    def texts(self, field: str, start: int = 0, stop: int | None = None) -> list[str]:
        """A field's text in each row; a missing text is empty, and line breaks become spaces."""
        import pyarrow as pa
        import pyarrow.compute as pc

        stop = len(self) if stop is None else stop
        column = self.column(self.column_mapping[field], start, stop)
        if column is None:
            return [""] * (stop - start)
        try:
            column = pc.fill_null(pc.cast(column, pa.large_string()), "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"The column '{self.column_mapping[field]}' of '{self.source}' holds {column.type}, not text; "
                "convert it to text or map the field to another column."
            ) from None
        return clean_texts(column, self.task)

    def ids(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """Each row's id as a number or text: from the task's id column, else the row's number in the file, from 0."""
        return list(plain_ids(self.id_column(start, len(self) if stop is None else stop)).to_pylist())

    def id_column(self, start: int, stop: int) -> Any:
        """The ids of consecutive rows as an Arrow array; its type is the same for all of them."""
        import pyarrow as pa

        column = self.column(self.task.id, start, stop) if self.task.id else None
        return pa.array(self.row_numbers(start, stop)) if column is None else column

    @property
    def has_ids(self) -> bool:
        """Whether the data has the task's id column."""
        return self.task.id is not None and self.task.id in self._dataset.column_names

    @property
    def renamed_columns(self) -> dict[str, str]:
        """The columns of the fields whose column has another name."""
        return {name: column for name, column in self.column_mapping.items() if name != column}

    @property
    def source_rows(self) -> int:
        """The number of rows in the file that these rows come from."""
        return len(self._dataset)

    def row_numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Each row's number in the file that it comes from, from 0."""
        stop = len(self) if stop is None else stop
        indices = np.arange(start, stop) if self._selection is None else self._selection[1][start:stop]
        return indices if self._row_numbers is None else self._row_numbers[indices]

    def column(self, name: str, start: int, stop: int) -> Any:
        """Consecutive rows of a column as an Arrow array; None where there is no such column."""
        if name not in self._dataset.column_names:
            return None
        if name not in self._columns:
            self._columns[name] = self._dataset.select_columns([name])
        dataset = self._columns[name]
        table = dataset[start:stop] if self._selection is None else _take(dataset, self._selection[1][start:stop])
        column = table.column(name).combine_chunks()
        if type(self._dataset.features[name]).__name__ == "Json":  # mixed types, each value as JSON text
            return parse_json(column)
        return column

    @cached_property
    def labels(self) -> NDArray[np.int16]:
        """Each row's label as an index into `task.labels`, or `NO_LABEL`: (rows,)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        assert not self.task.multilabel, "rows with several labels have a label_matrix"
        if self._selection is not None:  # which names the labels have is decided on all rows of the file
            all_rows, indices = self._selection
            return all_rows.labels[indices]
        if not self.has_labels:
            raise DataError(missing_labels(self.source, self.task, self.column_mapping, self._dataset.column_names))
        codes, code_of_name = np.empty(len(self), dtype=np.int32), dict[str, int]()
        for start, stop in self.chunks():
            column = self.column(self.column_mapping[self.task.label], start, stop)
            try:
                column = pc.dictionary_encode(column)
            except pa.ArrowNotImplementedError:
                raise DataError(
                    f"The label column '{self.column_mapping[self.task.label]}' of '{self.source}' holds "
                    f"{column.type}; a label is text or a number, and rows with several need multilabel = true in the "
                    "task."
                ) from None
            names = ["" if name is None else to_text(name) for name in column.dictionary.to_pylist()]
            chunk_codes = [code_of_name.setdefault(name, len(code_of_name)) for name in [*names, ""]]  # last: null
            indices = pc.fill_null(column.indices, len(names)).to_numpy(zero_copy_only=False)
            codes[start:stop] = np.array(chunk_codes)[indices]
        label_of_name = self.match_labels(list(code_of_name))
        return np.array([label_of_name[name] for name in code_of_name], dtype=np.int16)[codes]

    @cached_property
    def label_matrix(self) -> NDArray[np.int8]:
        """1 where a row has a label, else 0, or `NO_LABEL` in the whole row if it has none: (rows, labels).

        For tasks with several labels a row.
        """
        if self._selection is not None:
            all_rows, indices = self._selection
            return all_rows.label_matrix[indices]
        if not self.has_labels:
            raise DataError(missing_labels(self.source, self.task, self.column_mapping, self._dataset.column_names))
        return read_label_matrix(self)

    @property
    def targets(self) -> NDArray[Any]:
        """What models are trained on and measured by: `labels`, or with several labels a row `label_matrix`."""
        return self.label_matrix if self.task.multilabel else self.labels

    @property
    def is_labeled(self) -> NDArray[np.bool_]:
        """Whether each row was labelled, with no label perhaps where it may have several: (rows,)."""
        return is_labeled(self.targets)

    def match_labels(self, data_names: Sequence[str]) -> dict[str, int]:
        """The index in `task.labels` of each label name in the data: the task's own names, or one list of aliases."""
        labels = self.task.labels
        name_lists = [labels, *self.task.aliases]
        task_names = {name for names in name_lists for name in names}
        normalized = {name: task_spelling(name, task_names) for name in data_names}
        values = [normalized[name] for name in data_names if name not in UNLABELED or name in labels]
        matching = [names for names in name_lists if set(values) <= set(names)]
        if not matching:
            unknown = [name for name in values if name not in labels]
            raise DataError(
                f"The data '{self.source}' has the label {unknown_names(unknown, labels)}, which the task does not "
                f"know; its labels are {quoted(labels)}.{several_labels_hint(unknown, self.task)}"
            )
        readings = {tuple(names.index(value) for value in values) for names in matching}
        if values and len(readings) > 1:
            self.warnings.append(
                f"The labels {quoted(sorted(values), 5)} of '{self.source}' fit {quoted(matching[0], 5)} as well as "
                f"{quoted(matching[1], 5)}; the first is taken. If that is wrong, change 'aliases' in the task."
            )
        names = matching[0]
        return {name: names.index(value) if value in values else NO_LABEL for name, value in normalized.items()}

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        """The rows with these indices, in this order; they keep their ids."""
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not -1 < rows.min() <= rows.max() < len(self):
            raise IndexError(f"There are {len(self)} rows, and rows {rows.min()} to {rows.max()} were asked for.")
        selected = copy.copy(self)
        selected._drop_cached("labels", "label_matrix", "digest")
        all_rows, indices = (self, rows) if self._selection is None else (self._selection[0], self._selection[1][rows])
        selected._selection = all_rows, indices
        return selected

    def with_task(self, task: Task) -> Rows:
        """The same rows for another version of the task, such as one with other line breaks."""
        if task == self.task:
            return self
        rows = copy.copy(self)
        rows.task = task
        rows._drop_cached("digest")
        return rows

    def _drop_cached(self, *names: str) -> None:
        """Remove cached properties of the rows that these were copied from, and the fingerprints."""
        self._fingerprints = None
        for name in names:
            self.__dict__.pop(name, None)

    def fingerprints(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint64]:
        """A 64-bit hash of each row's text, to recognise a row in another set; those of a file are computed once."""
        stop = len(self) if stop is None else stop
        all_rows, indices = (self, np.arange(start, stop)) if self._selection is None else self._selection
        if all_rows._fingerprints is not None and all_rows.task == self.task:
            return all_rows._fingerprints[indices if self._selection is None else indices[start:stop]]
        hashes = np.empty(stop - start, dtype=np.uint64)
        for first, last in self.chunks(first=start, last=stop):
            hashes[first - start : last - start] = self._hash_texts(first, last)
        if self._selection is None and len(hashes) == len(self):
            self._fingerprints = hashes
        return hashes

    def _hash_texts(self, start: int, stop: int) -> NDArray[np.uint64]:
        import pandas as pd

        columns = {field: self.texts(field, start, stop) for field in self.task.fields}
        hashes: NDArray[np.uint64] = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()
        return hashes

    @cached_property
    def digest(self) -> str:
        """A short hash of all rows' texts, in order: SHA-256 of the JSON text `{"texts": [FINGERPRINT, ...]}`."""
        fingerprints = self.fingerprints()
        sha = hashlib.sha256(b'{"texts": [')
        for start, stop in self.chunks():
            separator = ", " if start else ""
            sha.update((separator + ", ".join(map(str, fingerprints[start:stop].tolist()))).encode())
        sha.update(b"]}")
        return sha.hexdigest()[:16]

    def excluding(self, *others: Rows) -> Rows:
        """The rows whose text is in none of the other sets: D must contain neither T nor the test set."""
        if not others:
            return self
        fingerprints, keep = self.fingerprints(), np.empty(len(self), dtype=bool)
        excluded = np.unique(np.concatenate([other.fingerprints() for other in others]))
        for start, stop in self.chunks():  # `np.isin` sorts: in chunks its memory does not grow with the rows
            keep[start:stop] = ~np.isin(fingerprints[start:stop], excluded)
        return self if keep.all() else self.select(np.flatnonzero(keep))


def unknown_fields(column_mapping: Collection[str], task: Task) -> list[str]:
    """A sentence for each name in a column mapping that is no field of the task."""
    names = [*task.fields, task.label]
    return [
        f"There is no field '{name}' to map a column to{did_you_mean(name, names)}; the task has {quoted(names)}."
        for name in column_mapping
        if name not in names
    ]


def missing_column(source: str, field: str, column: str, columns: Sequence[str]) -> str:
    """The sentence about data that lacks a field's column."""
    missing = f"the column '{column}'" + ("" if column == field else f" for the field '{field}'")
    return f"The data '{source}' lacks {missing}{did_you_mean(column, columns)}; its columns are {quoted(columns)}."


def _take(dataset: Dataset, rows: NDArray[np.int64]) -> Any:
    """These rows as an Arrow table; rows that are close together are sliced from one range, which is faster."""
    import pyarrow as pa

    first, last = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
    if last - first <= 2 * len(rows):
        return dataset[first:last].take(pa.array(rows - first))
    return dataset.select(rows)[:]


def read_rows(source: str | Path, task: TaskSource, column_mapping: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file, a folder of shards or a hub data set (`NAME@SPLIT`), for this task."""
    task = task if isinstance(task, Task) else load_task(task)
    mapping = dict(column_mapping or {})
    required = [mapping.get(field, field) for field in task.fields if field not in task.optional]
    return Rows(open_data(source, task.columns, required), task, str(source), mapping)
