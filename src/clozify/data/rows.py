"""The rows: T, D and the test set of the paper (section 4, appendix C).

In: a task and where its data is. Out: `Rows`, which hands out each field's text, the labels and the ids a
stretch at a time, and the paper's few-shot selection. Nothing is held in memory but the labels, where there are any,
and the numbers of rows that were selected.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.readers import open_data
from clozify.errors import DataError, did_you_mean, quoted

if TYPE_CHECKING:
    from datasets import Dataset

NO_LABEL = -1
UNLABELED = {"", "-", "-1"}  # how data sets write that a row has no label
CHUNK_ROWS = 16_384  # rows handled at a time


class Rows:
    """Rows of one data set, seen through a task; slices and selections are lazy."""

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
        # the rows of the file that these were selected from, and which of them these are
        self._whole: tuple[Rows, NDArray[np.int64]] | None = None
        self._row_numbers: NDArray[np.int64] | None = None  # in the file, where the rows have come without it
        self._single: dict[str, Dataset] = {}  # a column by itself: choosing one takes long in a large file
        self._check_columns(named=set(column_mapping or {}))

    def _check_columns(self, named: set[str]) -> None:
        known = [*self.task.fields, self.task.label]
        columns = self._dataset.column_names
        problems = [
            f"There is no field '{name}' to map a column to{did_you_mean(name, known)}; the task has {quoted(known)}."
            for name in self.column_mapping
            if name not in known
        ]
        for name in known:
            may_lack = name in self.task.optional or name == self.task.label
            asked = self.column_mapping[name]
            if asked not in columns and (name in named or not may_lack):
                what = f"the column '{asked}'" if asked == name else f"the column '{asked}' for the field '{name}'"
                problems.append(
                    f"The data '{self.source}' lacks {what}{did_you_mean(asked, columns)}; its columns are "
                    f"{quoted(columns)}."
                )
        if problems:
            raise DataError(problems)
        if self.task.id and self.task.id not in columns:
            self.warnings.append(
                f"The data '{self.source}' lacks the id column '{self.task.id}'; rows are numbered from 0 instead."
            )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_single": {}}  # what is chosen again anywhere need not travel

    def in_memory_state(self) -> dict[str, Any]:
        """The rows without references to files of this machine, for `from_state` on another one."""
        state = {name: value for name, value in self.__getstate__().items() if name not in ("_dataset", "_whole")}
        if self._whole is not None and "labels" in vars(self._whole[0]):  # one naming holds for all rows of the file
            state["labels"] = self.labels
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
        vars(rows).update(attributes, _dataset=dataset, _whole=None)
        return rows

    def __len__(self) -> int:
        return len(self._dataset) if self._whole is None else len(self._whole[1])

    @property
    def has_labels(self) -> bool:
        """Whether there is a label column."""
        return self.column_mapping[self.task.label] in self._dataset.column_names

    def table(self) -> Any:
        """All columns of the rows as an Arrow table in memory."""
        return self._dataset[:] if self._whole is None else _picked(self._dataset, self._whole[1])

    def chunks(self, size: int = CHUNK_ROWS, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """The borders of consecutive stretches of rows, of all or of those from `first` to before `last`."""
        last = len(self) if last is None else last
        for start in range(first, last, size):
            yield start, min(start + size, last)

    def texts(self, field: str, start: int = 0, stop: int | None = None) -> list[str]:
        """A field's text in each row, cleaned: null is empty, a line break (as the task writes it) is a space."""
        import pyarrow as pa
        import pyarrow.compute as pc

        stop = len(self) if stop is None else stop
        column = self._column(self.column_mapping[field], start, stop)
        if column is None:
            return [""] * (stop - start)
        try:
            column = pc.fill_null(pc.cast(column, pa.large_string()), "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise DataError(
                f"The column '{self.column_mapping[field]}' of '{self.source}' holds {column.type}, not text."
            ) from None
        return clean_texts(column, self.task)

    def ids(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """Each row's id: the task's id column where the data has it, else the row's number from 0."""
        return list(self.id_column(start, len(self) if stop is None else stop).to_pylist())

    def id_column(self, start: int, stop: int) -> Any:
        """The ids of a stretch of rows as an Arrow array, of the same type in every stretch."""
        import pyarrow as pa

        column = self._column(self.task.id, start, stop) if self.task.id else None
        return pa.array(self.row_numbers(start, stop)) if column is None else column

    @property
    def has_ids(self) -> bool:
        """Whether there is the task's id column."""
        return self.task.id is not None and self.task.id in self._dataset.column_names

    @property
    def renamed_columns(self) -> dict[str, str]:
        """The columns of those fields that the data calls otherwise."""
        return {name: column for name, column in self.column_mapping.items() if name != column}

    @property
    def source_rows(self) -> int:
        """How many rows the file has that these come from."""
        return len(self._dataset)

    def row_numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Each row's number in the file that it comes from."""
        stop = len(self) if stop is None else stop
        chosen = np.arange(start, stop) if self._whole is None else self._whole[1][start:stop]
        return chosen if self._row_numbers is None else self._row_numbers[chosen]

    def _column(self, name: str, start: int, stop: int) -> Any:
        if name not in self._dataset.column_names:
            return None
        if name not in self._single:
            self._single[name] = self._dataset.select_columns([name])
        table = self._single[name]
        if self._whole is None:
            column = table[start:stop].column(name).combine_chunks()
        else:
            column = _picked(table, self._whole[1][start:stop]).column(name).combine_chunks()
        if type(self._dataset.features[name]).__name__ == "Json":  # text and numbers mixed, each still as JSON
            return _plain(column)
        return column

    @cached_property
    def labels(self) -> NDArray[np.int16]:
        """Each row's label as its place in `task.labels`, `NO_LABEL` where there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._whole is not None:  # one naming of the labels holds for the whole file
            whole, chosen = self._whole
            return whole.labels[chosen]
        if not self.has_labels:
            raise DataError(
                f"The data '{self.source}' lacks the label column '{self.column_mapping[self.task.label]}'; its "
                f"columns are {quoted(self._dataset.column_names)}."
            )
        codes, names = np.empty(len(self), dtype=np.int32), dict[str, int]()
        for start, stop in self.chunks():
            column = self._column(self.column_mapping[self.task.label], start, stop)
            try:
                column = pc.dictionary_encode(column)
            except pa.ArrowNotImplementedError:
                raise DataError(
                    f"The label column '{self.column_mapping[self.task.label]}' of '{self.source}' holds "
                    f"{column.type}; a label is text or a number."
                ) from None
            found = ["" if name is None else _as_text(name) for name in column.dictionary.to_pylist()]
            local = np.array(
                [names.setdefault(name, len(names)) for name in found] + [names.setdefault("", len(names))]
            )
            indices = pc.fill_null(column.indices, len(found)).to_numpy(zero_copy_only=False)
            codes[start:stop] = local[indices]
        naming = self._naming(list(names))
        return np.array([naming[name] for name in names], dtype=np.int16)[codes]

    def _naming(self, found: Sequence[str]) -> dict[str, int]:
        """Which of the task's namings of the labels (its own, or an alias list) the data uses."""
        own = self.task.labels
        namings = [own, *self.task.aliases]
        known = {name for names in namings for name in names}
        plain = {name: name if name in known else re.sub(r"\.0+$", "", name) for name in found}  # 1.0 is 1
        values = [plain[name] for name in found if name not in UNLABELED or name in own]
        fitting = [names for names in namings if set(values) <= set(names)]
        if not fitting:
            unknown = [name for name in values if name not in own]
            raise DataError(
                f"The data '{self.source}' has the label {quoted(unknown, 5)}, which the task does not know"
                f"{did_you_mean(unknown[0], own)}; its labels are {quoted(own)}."
            )
        places = {tuple(names.index(value) for value in values) for names in fitting}
        if values and len(places) > 1:
            self.warnings.append(
                f"The labels {quoted(sorted(values), 5)} of '{self.source}' fit {quoted(fitting[0], 5)} as well as "
                f"{quoted(fitting[1], 5)}; the first is taken. If that is wrong, change 'aliases' in the task."
            )
        chosen = fitting[0]
        return {name: chosen.index(plain[name]) if plain[name] in values else NO_LABEL for name in found}

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        """These rows alone; their ids stay what they were."""
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not -1 < rows.min() <= rows.max() < len(self):
            raise IndexError(f"There are {len(self)} rows, and rows {rows.min()} to {rows.max()} were asked for.")
        picked = copy.copy(self)
        picked._forget("labels", "digest")
        picked._whole = (self, rows) if self._whole is None else (self._whole[0], self._whole[1][rows])
        return picked

    def with_task(self, task: Task) -> Rows:
        """The same rows for another version of their task."""
        if task == self.task:
            return self
        seen = copy.copy(self)
        seen.task = task
        seen._forget("digest")
        return seen

    def _forget(self, *names: str) -> None:
        """Let go of what was worked out for the rows that these were copied from."""
        for name in names:
            self.__dict__.pop(name, None)

    def fingerprints(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint64]:
        """A 64-bit hash of each row's text, to find the same row in another set."""
        import pandas as pd

        stop = len(self) if stop is None else stop
        hashes = np.empty(stop - start, dtype=np.uint64)
        for first in range(start, stop, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, stop)
            columns = {field: self.texts(field, first, last) for field in self.task.fields}
            found = pd.util.hash_pandas_object(pd.DataFrame(columns), index=False).to_numpy()
            hashes[first - start : last - start] = found
        return hashes

    @cached_property
    def digest(self) -> str:
        """A short hash of all rows' texts, in their order: of `{"texts": [FINGERPRINT, ...]}`, a stretch at a time."""
        found = hashlib.sha256(b'{"texts": [')
        for start, stop in self.chunks():
            before = ", " if start else ""
            found.update((before + ", ".join(map(str, self.fingerprints(start, stop).tolist()))).encode())
        found.update(b"]}")
        return found.hexdigest()[:16]

    def excluding(self, *others: Rows) -> Rows:
        """The rows whose text stands in none of the others: D must hold neither T nor the test set."""
        taken = np.unique(np.concatenate([other.fingerprints() for other in others])) if others else np.array([])
        keep = np.ones(len(self), dtype=bool)
        for start, stop in self.chunks() if len(taken) else ():
            hashes = self.fingerprints(start, stop)
            place = np.minimum(np.searchsorted(taken, hashes), len(taken) - 1)
            keep[start:stop] = taken[place] != hashes
        return self if keep.all() else self.select(np.flatnonzero(keep))


def _picked(table: Dataset, rows: NDArray[np.int64]) -> Any:
    """These rows of a table; where they lie close together all between are read, since picking is slow, row by row."""
    import pyarrow as pa

    first, last = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
    if last - first <= 2 * len(rows):
        return table[first:last].take(pa.array(rows - first))
    return table.select(rows)[:]


def clean_texts(column: Any, task: Task) -> list[str]:
    """Texts of an Arrow column as models read them: a line break, as the task writes it, is a space."""
    import pyarrow.compute as pc

    for written in task.line_breaks:
        column = pc.replace_substring(column, written, " ")
    column = pc.replace_substring_regex(column, r"[ \t]*[\r\n]+[ \t]*", " ")
    texts: list[str] = pc.utf8_trim_whitespace(column).to_pylist()
    return texts


def _plain(column: Any) -> Any:
    import pyarrow as pa

    values = [None if text is None else json.loads(text) for text in column.to_pylist()]
    return pa.array([None if value is None else _as_text(value) for value in values], pa.string())


def _as_text(value: object) -> str:
    if isinstance(value, float) and (value != value or value.is_integer()):
        return str(int(value)) if value == value else ""
    return str(value).strip()


def read_rows(source: str | Path, task: Task, column_mapping: Mapping[str, str] | None = None) -> Rows:
    """The rows of a file, a folder of shards or a hub data set (`NAME@SPLIT`), for this task."""
    asked = dict(column_mapping or {})
    needed = [asked.get(field, field) for field in task.fields if field not in task.optional]
    return Rows(open_data(source, task.columns, needed), task, str(source), asked)


def few_shot(rows: Rows, examples: int, seed: int | None = None) -> Rows:
    """The training set T of the paper: the first `examples / |L|` rows of each label, in the order of the file.

    A remainder goes one each to the first labels: 10 rows over four labels are 3, 3, 2 and 2. With a `seed` the
    rows are drawn at random instead.
    """
    if examples < 0:
        raise DataError(f"A training set cannot have {examples} examples; ask for 0 or more.")
    labels = rows.task.labels
    share, rest = divmod(examples, len(labels))
    order = np.arange(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows))
    chosen = []
    for number, name in enumerate(labels):
        wanted = share + (number < rest)
        found = order[rows.labels[order] == number][:wanted]
        if len(found) < wanted:
            raise DataError(
                f"The data '{rows.source}' has {len(found)} rows with the label '{name}', but {examples} examples "
                f"over {len(labels)} labels need {wanted}; ask for fewer or add rows."
            )
        chosen.append(found)
    return rows.select(np.sort(np.concatenate(chosen)))
