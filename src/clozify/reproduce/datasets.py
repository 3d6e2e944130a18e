"""The data of the paper's tasks: training sets T, unlabelled sets D and test sets as in appendix C.

T is the first t/|L| rows of each label, D has 10,000 rows of each label that are not in T. Data comes from a folder
with the original files, or from the hub. Where the data differs from the paper's, `TaskData.notes` say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Recipe
from clozify.config.task import Task, load_task
from clozify.data.few_shot import few_shot, select_labeled
from clozify.data.in_memory import make_rows
from clozify.data.readers import SAMPLE, open_data
from clozify.data.rows import NO_LABEL, Rows, read_rows
from clozify.errors import DataError, quoted
from clozify.reproduce.data_locations import (
    FOLDERS,
    HUB,
    LAYOUTS,
    OFFICIAL_SIZES,
    TASK_FILES,
    XSTANCE_LANGUAGES,
    FileLayout,
    column_mapping,
)

UNLABELED_PER_LABEL = 10_000  # rows of D
TEST_FRACTION = 0.3  # of a file without an official split: its last rows

Examples = int | Literal["full"]


@dataclass(frozen=True)
class TaskData:
    """One task's rows, and notes on where they differ from the paper's."""

    task: Task
    train: Rows
    tests: dict[str, Rows]  # by name: 'test', MNLI's 'm' and 'mm', x-stance's languages
    extra_unlabeled: Rows | None = None  # rows without labels, for D alone
    missing: dict[str, str] = field(default_factory=dict)  # test set that the data lacks -> why
    notes: list[str] = field(default_factory=list)
    unlabeled_per_label: int = UNLABELED_PER_LABEL

    @cached_property
    def test(self) -> Rows:
        """The rows of all test sets, which are scored together."""
        return concat_rows(list(self.tests.values()), self.task, "the test sets")

    def test_slices(self) -> dict[str, slice]:
        """The slice of each test set in `test`."""
        ends = np.cumsum([len(rows) for rows in self.tests.values()]).tolist()
        return {name: slice(end - len(rows), end) for (name, rows), end in zip(self.tests.items(), ends, strict=True)}

    def select(self, examples: Examples, recipe: Recipe, unlabeled_fraction: float = 1.0) -> tuple[Rows | None, Rows]:
        """T and D. With 'full' both are the whole training set; T is None for 0 examples."""
        if examples == "full":
            return self.train, self.train
        labeled = None
        if examples:
            labeled = few_shot(self.train, examples, recipe.seed if recipe.selection == "random" else None)
            if len(labeled) < examples:  # a cell of the paper's table is for this many rows
                raise DataError(
                    f"The data '{self.train.source}' has {len(labeled):,} rows for {examples:,} examples over "
                    f"{len(self.train.task.labels)} labels; ask for fewer or add rows."
                )
        per_label = round(self.unlabeled_per_label * unlabeled_fraction)
        unlabeled = first_rows_per_label(self.train, per_label + examples)
        if labeled is not None and not recipe.overlap:
            unlabeled = unlabeled.excluding(labeled)
        unlabeled = first_rows_per_label(unlabeled, per_label)
        if self.extra_unlabeled is None:
            return labeled, unlabeled
        lacking = per_label * len(self.task.labels) - len(unlabeled)
        extra = self.extra_unlabeled.select(np.arange(min(lacking, len(self.extra_unlabeled))))
        source = f"{self.train.source} and {self.extra_unlabeled.source}"
        return labeled, concat_rows([unlabeled, extra], self.task, source)


def first_rows_per_label(rows: Rows, count: int) -> Rows:
    """The first `count` rows of each label, in the order of the file."""
    indices = [np.flatnonzero(rows.labels == label)[:count] for label in range(len(rows.task.labels))]
    return rows.select(np.sort(np.concatenate(indices)))


def concat_rows(row_sets: Sequence[Rows], task: Task, source: str) -> Rows:
    """Several sets of rows as one, in memory; a single one is returned as it is."""
    if len(row_sets) == 1:
        return row_sets[0]
    columns: dict[str, list[str]] = {
        name: [text for rows in row_sets for text in rows.texts(name)] for name in task.fields
    }
    if task.id:
        columns[task.id] = [str(row_id) for rows in row_sets for row_id in rows.ids()]
    names = [*task.labels, ""]  # NO_LABEL is -1, the last
    labels = np.concatenate([rows.labels if rows.has_labels else np.full(len(rows), NO_LABEL) for rows in row_sets])
    return make_rows(columns | {task.label: [names[label] for label in labels]}, task, source)


def subsample(rows: Rows, count: int | None) -> Rows:
    """`count` evenly spaced rows; None is all."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(np.linspace(0, len(rows) - 1, count).astype(np.int64))


class PaperData:
    """The paper's data in a folder of original files, or on the hub; each task is read once."""

    def __init__(
        self,
        folder: Path | None = None,
        unlabeled_per_label: int = UNLABELED_PER_LABEL,
        test_rows: int | None = None,
    ) -> None:
        if folder is not None and not folder.is_dir():
            raise DataError(f"The data folder '{folder}' does not exist; name a folder with the original files.")
        self.folder, self.unlabeled_per_label, self.test_rows = folder, unlabeled_per_label, test_rows
        self._data: dict[str, TaskData] = {}
        self._keys: dict[str, dict[str, Any]] = {}

    def key(self, name: str) -> dict[str, Any]:
        """What identifies a task's data, for hashes; the files are not read completely."""
        if name not in self._keys:
            limits = {"pile": self.unlabeled_per_label, "test_rows": self.test_rows}
            self._keys[name] = limits | {"files": self._file_keys(name)}
        return self._keys[name]

    def _file_keys(self, name: str) -> list[Any]:
        if name == "sample":
            return [_file_key(path) for path in sorted(SAMPLE.glob("*.csv.gz"))]
        layout = self._layout(name)
        if self.folder is None:
            return layout.all_files()
        folder = self._folder(name)
        return [_file_key(_path_or_gz(folder, file)) for file in layout.existing_files(folder)]

    def load(self, name: str) -> TaskData:
        """A task's data."""
        if name not in self._data:
            try:
                self._data[name] = self._limit(name, self._read(name, load_task(TASK_FILES[name])))
            except DataError as error:
                if self.folder is not None:
                    raise
                raise DataError([f"{error} If you have its files, name their folder with --data."]) from None
        return self._data[name]

    def _read(self, name: str, task: Task) -> TaskData:
        if name == "sample":
            return self._read_sample(task)
        return self._read_xstance(name, task) if name in XSTANCE_LANGUAGES else self._read_files(name, task)

    def _limit(self, name: str, data: TaskData) -> TaskData:
        """The data with the requested numbers of rows, and a note wherever they are not the paper's."""
        notes = list(data.notes)
        sizes = len(data.train), {test_set: len(rows) for test_set, rows in data.tests.items()}
        train_size, test_sizes = OFFICIAL_SIZES.get(name, sizes)
        if len(data.train) != train_size:
            notes.append(f"{len(data.train):,} training rows; the official set has {train_size:,}.")
        for test_set, rows in data.tests.items():
            if len(rows) != test_sizes[test_set]:
                official = test_sizes[test_set]
                notes.append(f"{len(rows):,} test rows ({test_set}); the official set has {official:,}.")
        if self.unlabeled_per_label != UNLABELED_PER_LABEL:
            notes.append(
                f"D has at most {self.unlabeled_per_label:,} rows per label; the paper has {UNLABELED_PER_LABEL:,}."
            )
        if self.test_rows is not None and any(len(rows) > self.test_rows for rows in data.tests.values()):
            notes.append(f"Measured on {self.test_rows:,} evenly spaced test rows.")
        tests = {test_set: subsample(rows, self.test_rows) for test_set, rows in data.tests.items()}
        return TaskData(
            data.task, data.train, tests, data.extra_unlabeled, data.missing, notes, self.unlabeled_per_label
        )

    def _read_sample(self, task: Task) -> TaskData:
        labeled, unlabeled, test = (read_rows(f"builtin:{name}", task) for name in ("labeled", "unlabeled", "test"))
        return TaskData(task, labeled, {"test": test}, unlabeled)

    def _read_files(self, name: str, task: Task) -> TaskData:
        layout = self._layout(name)
        ignored: list[str] = []  # warnings about rows without a label, which MNLI has by design

        def rows(file: str) -> Rows:
            return read_rows(self._source(name, file), task, column_mapping(file))

        train = [select_labeled(rows(file), ignored, "training") for file in layout.train]
        missing = {
            test_set: f"the folder '{self._folder(name).name}' lacks '{file}'"
            for test_set, file in layout.tests.items()
            if not self._exists(name, file)
        }
        tests = {
            test_set: select_labeled(rows(file), ignored, "test")
            for test_set, file in layout.tests.items()
            if test_set not in missing
        }
        extra = rows(layout.unlabeled) if layout.unlabeled and self._exists(name, layout.unlabeled) else None
        notes = [layout.note] if layout.note else []
        return TaskData(task, concat_rows(train, task, "the training files"), tests, extra, missing, notes)

    def _read_xstance(self, name: str, task: Task) -> TaskData:
        """x-stance by language, with intra-target test rows; Italian has only test rows."""
        layout, languages = self._layout(name), XSTANCE_LANGUAGES[name]
        if "train" in layout.xstance:
            sources = {part: self._source(name, file) for part, file in layout.xstance.items()}
            trains = [_rows_in_language(sources["train"], task, language) for language in languages]
            train = concat_rows(trains, task, "train.jsonl")
            tests = {
                language: _rows_in_language(sources["test"], task, language, sources["train"])
                for language in (*languages, "it")
            }
        else:
            train, tests = self._split_xstance(name, task, layout)
        missing = {language: "the data has no Italian rows" for language, rows in tests.items() if len(rows) == 0}
        if empty := [language for language in languages if language in missing]:
            raise DataError(f"The x-stance data has no test rows in the language {quoted(empty)}.")
        tests = {language: rows for language, rows in tests.items() if language not in missing}
        return TaskData(task, train, tests, None, missing, [layout.note] if layout.note else [])

    def _split_xstance(self, name: str, task: Task, layout: FileLayout) -> tuple[Rows, dict[str, Rows]]:
        """Training and test rows from one file a language: its last rows, and all Italian ones, are the test sets."""
        trains, tests = [], {}
        for language in XSTANCE_LANGUAGES[name]:
            rows = read_rows(self._source(name, layout.xstance[language]), task)
            train_size = round(len(rows) * (1 - TEST_FRACTION))
            trains.append(rows.select(np.arange(train_size)))
            tests[language] = rows.select(np.arange(train_size, len(rows)))
        italian = layout.xstance["it"]
        tests["it"] = (
            read_rows(self._source(name, italian), task)
            if self._exists(name, italian)
            else trains[0].select(np.arange(0))
        )
        return concat_rows(trains, task, "the training rows"), tests

    def _folder(self, name: str) -> Path:
        assert self.folder is not None
        names = FOLDERS["xstance" if name in XSTANCE_LANGUAGES else name]
        for folder in names:
            if (self.folder / folder).is_dir():
                return self.folder / folder
        raise DataError(
            f"The data folder '{self.folder}' has no folder for the task '{name}'; it may be called {quoted(names)}."
        )

    def _layout(self, name: str) -> FileLayout:
        family = "xstance" if name in XSTANCE_LANGUAGES else name
        if self.folder is None:
            return HUB[family]
        folder = self._folder(name)
        for layout in LAYOUTS[family]:
            if all(_path_or_gz(folder, file).is_file() for file in layout.required_files()):
                return layout
        choices = " or ".join(" with ".join(f"'{file}'" for file in la.required_files()) for la in LAYOUTS[family])
        raise DataError(f"The folder '{folder}' lacks the files of '{name}': {choices}.")

    def _source(self, name: str, file: str) -> str:
        return file if self.folder is None else str(_path_or_gz(self._folder(name), file))

    def _exists(self, name: str, file: str) -> bool:
        return self.folder is None or _path_or_gz(self._folder(name), file).is_file()


def _path_or_gz(folder: Path, name: str) -> Path:
    """The path of a file, or of its gzipped form if only that may exist."""
    return folder / name if (folder / name).is_file() else folder / f"{name}.gz"


def _file_key(path: Path) -> dict[str, Any]:
    """A file's name, size, and a hash of its first and last mebibyte."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        digest.update(content.read(1 << 20))
        content.seek(max(0, path.stat().st_size - (1 << 20)))
        digest.update(content.read())
    return {"name": path.name, "bytes": path.stat().st_size, "hash": digest.hexdigest()[:16]}


def _rows_in_language(source: str, task: Task, language: str, train: str | None = None) -> Rows:
    """The rows in a language; of a test file, given its training file, those on questions of the training rows.

    The paper reports x-stance "intra-target". The original file has this in `test_set`; the hub's lacks that column,
    but a question of the training rows has the same `question_id`.
    """
    dataset = open_data(source, task.columns, task.fields)
    if "language" not in dataset.column_names:
        raise DataError(f"The data '{source}' lacks the column 'language', which x-stance's files have.")
    keep: NDArray[np.bool_] = np.array(dataset["language"]) == language
    if train is not None and "test_set" in dataset.column_names:
        keep &= np.array([str(name).startswith("new_comments") for name in dataset["test_set"]])
    elif train is not None and "question_id" in dataset.column_names:
        keep &= np.isin(np.array(dataset["question_id"]), np.array(open_data(train)["question_id"]))
    return Rows(dataset.select(np.flatnonzero(keep)), task, source)


def check_tasks(names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """The tasks by their names here: 'yelp-full' and 'debian' are 'yelp' and 'sample'."""
    aliases: Mapping[str, str] = {file: name for name, file in TASK_FILES.items() if file not in TASK_FILES}
    tasks = [aliases.get(name, name) for name in names]
    if unknown := [name for name in tasks if name not in allowed]:
        raise DataError(f"There is no task {quoted(unknown)} here; choose from {quoted(allowed)}.")
    return list(dict.fromkeys(tasks))
