"""The data sets of a bench: `--data`, with `--task`, `--test` and `--unlabeled` in the same order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clozify.config.task import Task
from clozify.data.few_shot import select_labeled
from clozify.data.readers import FORMATS
from clozify.data.rows import Rows, read_rows
from clozify.data.task_labels import load_task
from clozify.errors import DataError, TaskError, quoted
from clozify.inference.init_task import init_task
from clozify.reproduce.data_locations import FOLDERS, TASK_FILES
from clozify.reproduce.datasets import PaperData, concat_rows
from clozify.reproduce.specs import main_test_set

NONE = "-"  # in place of a file, for a data set that has none
SAMPLE = ("sample", "builtin:labeled")
PAPER_TASKS = tuple(name for name in TASK_FILES if name != "sample")
TRAIN_NAMES, TEST_NAMES, UNLABELED_NAMES = ("train", "labeled"), ("test",), ("unlabeled", "pile")


@dataclass(frozen=True)
class DataSource:
    """One data set as the user names it; None for what was not named."""

    data: str
    task: str | None = None
    test: str | None = None
    unlabeled: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class BenchData:
    """One data set: labelled rows to draw from, and perhaps test and unlabelled rows."""

    name: str
    task: Task
    pool: Rows
    test: Rows | None  # None: a part of the pool is held out
    unlabeled: Rows | None  # None: rows of the pool that were not drawn
    notes: tuple[str, ...] = ()


def pair_sources(
    data: Sequence[str], tasks: Sequence[str], tests: Sequence[str], unlabeled: Sequence[str]
) -> list[DataSource]:
    """The data sets of repeated options; `-` stands for a data set that has no such file."""
    columns: list[list[str | None]] = []
    for option, values in (("--task", tasks), ("--test", tests), ("--unlabeled", unlabeled)):
        if values and len(values) != len(data):
            raise DataError(
                f"There are {len(data)} --data and {len(values)} {option}; give one for each, in the same order, and "
                f"'{NONE}' for a data set that has none."
            )
        columns.append([None if value == NONE else value for value in values] or [None] * len(data))
    sources = []
    for named, task, test, rows in zip(data, *columns, strict=True):
        name, equals, source = named.partition("=")
        is_name = re.fullmatch(r"[\w.' -]+", name) is not None or Path(source).exists()
        has_name = bool(equals) and is_name and not Path(named).exists()
        sources.append(DataSource(source if has_name else named, task, test, rows, name if has_name else None))
    return sources


def load_data(source: DataSource, map_labels: Sequence[str] = ()) -> BenchData:
    """The rows of a data set. `map_labels` are the labels' names, for data without a task file."""
    data = _load(source, map_labels)
    if data.task.multilabel:
        raise TaskError(f"The bench compares methods for one label a row; '{data.name}' may have several.")
    task = plain_task(data.task)
    notes = list(data.notes)
    if data.task.rules or data.task.teachers:
        notes.append("Rules and teachers of the task are left out: the other methods have none.")
    warnings: list[str] = []
    pool = select_labeled(data.pool, warnings, "labelled")
    test = None if data.test is None else select_labeled(data.test, warnings, "test")
    return BenchData(source.name or data.name, task, pool, test, data.unlabeled, (*notes, *warnings))


def has_task(source: DataSource) -> bool:
    """Whether a data set has a task, so that none is made from its rows."""
    if source.task is not None or source.data in SAMPLE or (Path(source.data) / "task.toml").is_file():
        return True
    return _paper_task(source.data) is not None and source.test is None


def plain_task(task: Task) -> Task:
    """The task as the bench's own files have it: with a header, the labels' names, and no ids, rules or teachers."""
    return task.with_changes(id=None, columns=None, aliases=[], line_breaks=[], rules=[], teachers=[], groups={})


def _load(source: DataSource, map_labels: Sequence[str]) -> BenchData:
    if source.data in SAMPLE:
        task = load_task(source.task or "debian")
        return BenchData(
            "sample",
            task,
            read_rows("builtin:labeled", task),
            read_rows(source.test or "builtin:test", task),
            read_rows(source.unlabeled or "builtin:unlabeled", task),
        )
    paper_task = _paper_task(source.data)
    if paper_task is not None and source.task is None and source.test is None:
        return _paper_data(*paper_task, source)
    folder = Path(source.data)
    train, test, unlabeled = source.data, source.test, source.unlabeled
    task_file = source.task
    if folder.is_dir() and (file := find_file(folder, TRAIN_NAMES)) is not None:
        train = str(file)
        test = test or _optional(find_file(folder, TEST_NAMES))
        unlabeled = unlabeled or _optional(find_file(folder, UNLABELED_NAMES))
        task_file = task_file or _optional(folder / "task.toml" if (folder / "task.toml").is_file() else None)
    task, notes = _make_task(train, task_file, map_labels)
    return BenchData(
        slug(task.name),
        task,
        read_rows(train, task),
        None if test is None else read_rows(test, task),
        None if unlabeled is None else read_rows(unlabeled, task),
        tuple(notes),
    )


def _make_task(train: str, task_file: str | None, map_labels: Sequence[str]) -> tuple[Task, list[str]]:
    """The task of a file, or one that is made from the data, with the labels' names as words."""
    if task_file is not None:
        return load_task(task_file, labels_from=None if _names_labels(task_file) else train), []
    try:
        made = init_task(train, labels=list(map_labels) or None)
    except DataError as error:
        if "--label" not in str(error):
            raise
        hint = f"These are options of 'clozify init {train} --output task.toml', whose file --task takes."
        raise DataError(f"{error} {hint}") from None
    if made.label_column is None:
        raise DataError(f"The data '{train}' has no label column; the bench needs labelled rows.")
    return made.task, ["The task was made from the data: the labels' names are their words.", *made.notes]


def _names_labels(task_file: str) -> bool:
    from clozify.config.task import has_labels, read_task

    return has_labels(read_task(task_file)[0])


def _paper_task(data: str) -> tuple[str, Path | None] | None:
    """The task of `clozify reproduce` that a name or a folder stands for, and the folder's parent; None for others."""
    if data in PAPER_TASKS:
        return data, None
    folder = Path(data)
    names = [task for task, folders in FOLDERS.items() if folder.name in folders]
    return (names[0], folder.parent) if folder.is_dir() and names else None


def _paper_data(name: str, parent: Path | None, source: DataSource) -> BenchData:
    """The data of one of the paper's tasks, as `clozify reproduce` reads it."""
    data = PaperData(parent).load(name)
    test = data.tests.get(main_test_set(name)) or concat_rows(list(data.tests.values()), data.task, "the test sets")
    unlabeled = data.extra_unlabeled if source.unlabeled is None else read_rows(source.unlabeled, data.task)
    return BenchData(name, data.task, data.train, test, unlabeled, tuple(data.notes))


def find_file(folder: Path, names: Sequence[str]) -> Path | None:
    """The data file of a folder with one of these names, such as `train.csv` or `train.jsonl.gz`; None without one."""
    files = [folder / f"{name}{suffix}{gz}" for name in names for suffix in FORMATS for gz in ("", ".gz")]
    return next((file for file in files if file.is_file()), None)


def _optional(path: Path | None) -> str | None:
    return None if path is None else str(path)


def slug(name: str) -> str:
    """A name of letters, digits, points and hyphens."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "data"


def check_names(data: Sequence[BenchData]) -> None:
    """Raise an error where two data sets have one name."""
    names = [one.name for one in data]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"Two data sets are called {quoted(twice)}; give each a name of its own: --data NAME=FILE.")


def subset(rows: Rows, count: int, seed: int) -> Rows:
    """At most `count` rows, drawn at random, in the order of the file."""
    if len(rows) <= count:
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False)))
