"""The data of the paper's tasks: its training sets T, its piles D and its test sets, exactly as appendix C says.

In: the name of a task, and a folder with the original files, or none for the hub. Out: `TaskData`, which hands out T
(the first t/|L| rows a label), D (10,000 rows a label that are not in T) and the test rows, part by part. Wherever the
files are other than the paper's, `notes` say so.
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
from clozify.data.in_memory import make_rows
from clozify.data.readers import SAMPLE, open_data
from clozify.data.rows import NO_LABEL, Rows, few_shot, read_rows
from clozify.errors import DataError, quoted
from clozify.reproduce.data_locations import FOLDERS, HUB, LAYOUTS, OFFICIAL, SHIPPED, XSTANCE, Layout, columns_of
from clozify.runs.plan import with_labels

PILE = 10_000  # rows of D a label
HELD_OUT = 0.3  # of a file without an official split, its last rows are the test set

Examples = int | Literal["full"]


@dataclass(frozen=True)
class TaskData:
    """One task's rows, and what is to be said about them."""

    task: Task
    train: Rows
    tests: dict[str, Rows]  # the test set, or its parts: MNLI's 'm' and 'mm', x-stance's languages
    more: Rows | None = None  # rows without labels, for the pile alone
    lacking: dict[str, str] = field(default_factory=dict)  # a part that is not there -> why
    notes: list[str] = field(default_factory=list)
    pile: int = PILE

    @cached_property
    def test(self) -> Rows:
        """All parts of the test set, one after another: they are scored at one go."""
        return joined(list(self.tests.values()), self.task, "the test sets")

    def slices(self) -> dict[str, slice]:
        """Where each part stands in `test`."""
        ends = np.cumsum([len(rows) for rows in self.tests.values()]).tolist()
        return {part: slice(end - len(rows), end) for (part, rows), end in zip(self.tests.items(), ends, strict=True)}

    def split(self, examples: Examples, recipe: Recipe, share: float = 1.0) -> tuple[Rows | None, Rows]:
        """T and D, of which D may be a share; with 'full' both are the whole training set; T is None for 0 examples."""
        if examples == "full":
            return self.train, self.train
        chosen = None
        if examples:
            chosen = few_shot(self.train, examples, recipe.seed if recipe.selection == "random" else None)
        wanted = round(self.pile * share)
        rest = first_of_each(self.train, wanted + examples)
        if chosen is not None and not recipe.overlap:
            rest = rest.excluding(chosen)
        rest = first_of_each(rest, wanted)
        if self.more is None:
            return chosen, rest
        room = wanted * len(self.task.labels) - len(rest)
        more = self.more.select(np.arange(min(room, len(self.more))))
        return chosen, joined([rest, more], self.task, f"{self.train.source} and {self.more.source}")


def first_of_each(rows: Rows, count: int) -> Rows:
    """The first so many rows of each label, in the order of the file."""
    places = [np.flatnonzero(rows.labels == number)[:count] for number in range(len(rows.task.labels))]
    return rows.select(np.sort(np.concatenate(places)))


def joined(parts: Sequence[Rows], task: Task, source: str) -> Rows:
    """Rows of several files as one set, in memory; a single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, list[str]] = {
        name: [text for rows in parts for text in rows.texts(name)] for name in task.fields
    }
    if task.id:
        columns[task.id] = [str(name) for rows in parts for name in rows.ids()]
    names = [*task.labels, ""]  # NO_LABEL is -1, the last
    places = np.concatenate([rows.labels if rows.has_labels else np.full(len(rows), NO_LABEL) for rows in parts])
    return make_rows(columns | {task.label: [names[place] for place in places]}, task, source)


def spread(rows: Rows, count: int | None) -> Rows:
    """So many rows, evenly from the whole set; None is all."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(np.linspace(0, len(rows) - 1, count).astype(np.int64))


class Data:
    """Where the paper's data is: a folder of original files, or the hub; each task is read once."""

    def __init__(self, folder: Path | None = None, pile: int = PILE, test_rows: int | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise DataError(f"The data folder '{folder}' does not exist; name a folder with the original files.")
        self.folder, self.pile, self.test_rows = folder, pile, test_rows
        self._read: dict[str, TaskData] = {}
        self._keys: dict[str, dict[str, Any]] = {}

    def key(self, name: str) -> dict[str, Any]:
        """What the data of a task is, without reading it whole; an error where it is not there."""
        if name not in self._keys:
            limits = {"pile": self.pile, "test_rows": self.test_rows}
            self._keys[name] = limits | {"files": self._files(name)}
        return self._keys[name]

    def _files(self, name: str) -> list[Any]:
        if name == "sample":
            return [_known(path) for path in sorted(SAMPLE.glob("*.csv.gz"))]
        layout = self._layout(name)
        if self.folder is None:
            return layout.files()
        folder = self._folder(name)
        return [_known(_file(folder, file)) for file in layout.present(folder)]

    def load(self, name: str) -> TaskData:
        """A task's rows."""
        if name not in self._read:
            task = load_task(SHIPPED[name])
            try:
                found = self._sample(task) if name == "sample" else self._xstance(name, task)
                found = found or self._plain(name, task)
            except DataError as error:
                if self.folder is not None:
                    raise
                raise DataError(
                    [f"{error} Where its files are on this disk, name their folder: --data FOLDER."]
                ) from None
            self._read[name] = self._limited(name, found)
        return self._read[name]

    def _limited(self, name: str, found: TaskData) -> TaskData:
        """The rows asked for, with a note wherever they are not the paper's."""
        notes = list(found.notes)
        rows, tests = OFFICIAL.get(name, (len(found.train), {part: len(of) for part, of in found.tests.items()}))
        if len(found.train) != rows:
            notes.append(f"{len(found.train):,} training rows, where the official set has {rows:,}.")
        for part, of_part in found.tests.items():
            if len(of_part) != tests[part]:
                notes.append(f"{len(of_part):,} test rows ({part}), where the official set has {tests[part]:,}.")
        if self.pile != PILE:
            notes.append(f"D has at most {self.pile:,} rows a label, where the paper has {PILE:,}.")
        if self.test_rows is not None and any(len(of) > self.test_rows for of in found.tests.values()):
            notes.append(f"Measured on {self.test_rows:,} test rows, evenly from the whole set.")
        few = {part: spread(of_part, self.test_rows) for part, of_part in found.tests.items()}
        return TaskData(found.task, found.train, few, found.more, found.lacking, notes, self.pile)

    def _sample(self, task: Task) -> TaskData:
        parts = {part: read_rows(f"builtin:{part}", task) for part in ("labeled", "unlabeled", "test")}
        return TaskData(task, parts["labeled"], {"test": parts["test"]}, parts["unlabeled"])

    def _plain(self, name: str, task: Task) -> TaskData:
        layout = self._layout(name)
        said: list[str] = []  # rows without a label are no news: MNLI has some by design

        def rows(file: str) -> Rows:
            return read_rows(self._place(name, file), task, columns_of(file))

        train = joined([with_labels(rows(file), said, "training") for file in layout.train], task, "the training files")
        there = {part: file for part, file in layout.tests.items() if self._is_there(name, file)}
        lacking = {
            part: f"the folder '{self._folder(name).name}' lacks '{file}'"
            for part, file in layout.tests.items()
            if part not in there
        }
        tests = {part: with_labels(rows(file), said, "test") for part, file in there.items()}
        more = rows(layout.pile) if layout.pile and self._is_there(name, layout.pile) else None
        return TaskData(task, train, tests, more, lacking, [layout.note] if layout.note else [])

    def _xstance(self, name: str, task: Task) -> TaskData | None:
        """x-stance by language: intra-target test rows; Italian is tested without training."""
        if name not in XSTANCE:
            return None
        layout = self._layout(name)
        wanted = XSTANCE[name]
        if "train" in layout.parts:
            source = {part: self._place(name, file) for part, file in layout.parts.items()}
            train = joined([_of_language(source["train"], task, language) for language in wanted], task, "train.jsonl")
            tests = {
                language: _of_language(source["test"], task, language, source["train"]) for language in (*wanted, "it")
            }
        else:
            train, tests = self._without_split(name, task, layout, wanted)
        lacking = {part: "the data has no Italian rows" for part, rows in tests.items() if len(rows) == 0}
        if absent := [language for language in wanted if language in lacking]:
            raise DataError(f"The x-stance data has no test rows in the language {quoted(absent)}.")
        here = {part: rows for part, rows in tests.items() if part not in lacking}
        return TaskData(task, train, here, None, lacking, [layout.note] if layout.note else [])

    def _without_split(
        self, name: str, task: Task, layout: Layout, wanted: Sequence[str]
    ) -> tuple[Rows, dict[str, Rows]]:
        """A file a language: the last rows of each are the test set; all of the Italian ones are."""
        trains, tests = [], {}
        for language in wanted:
            rows = read_rows(self._place(name, layout.parts[language]), task)
            border = round(len(rows) * (1 - HELD_OUT))
            trains.append(rows.select(np.arange(border)))
            tests[language] = rows.select(np.arange(border, len(rows)))
        italian = layout.parts["it"]
        tests["it"] = (
            read_rows(self._place(name, italian), task)
            if self._is_there(name, italian)
            else tests[wanted[0]].select(np.arange(0))
        )
        return joined(trains, task, "the training rows"), tests

    def _folder(self, name: str) -> Path:
        assert self.folder is not None
        names = FOLDERS["xstance" if name in XSTANCE else name]
        for folder in names:
            if (self.folder / folder).is_dir():
                return self.folder / folder
        raise DataError(
            f"The data folder '{self.folder}' has no folder for the task '{name}'; it may be called {quoted(names)}."
        )

    def _layout(self, name: str) -> Layout:
        family = "xstance" if name in XSTANCE else name
        if self.folder is None:
            return HUB[family]
        folder = self._folder(name)
        for layout in LAYOUTS[family]:
            if all((_file(folder, file)).is_file() for file in layout.needed()):
                return layout
        wanted = " or ".join(" with ".join(f"'{file}'" for file in layout.needed()) for layout in LAYOUTS[family])
        raise DataError(f"The folder '{folder}' lacks the files of '{name}': {wanted}.")

    def _place(self, name: str, file: str) -> str:
        return file if self.folder is None else str(_file(self._folder(name), file))

    def _is_there(self, name: str, file: str) -> bool:
        return self.folder is None or _file(self._folder(name), file).is_file()


def _file(folder: Path, name: str) -> Path:
    """A file, or its gzipped form where only that is there."""
    return folder / name if (folder / name).is_file() else folder / f"{name}.gz"


def _known(path: Path) -> dict[str, Any]:
    """A file's name, size, and a hash of its first and last mebibyte."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        digest.update(content.read(1 << 20))
        content.seek(max(0, path.stat().st_size - (1 << 20)))
        digest.update(content.read())
    return {"name": path.name, "bytes": path.stat().st_size, "hash": digest.hexdigest()[:16]}


def _of_language(source: str, task: Task, language: str, train: str | None = None) -> Rows:
    """The rows of a language; of a test file, with the training file, those on questions that were trained on.

    The paper reports x-stance "intra-target". The original file says so in `test_set`; the hub's lacks that column, but
    a question that the training rows have is known by its number.
    """
    dataset = open_data(source, task.columns, task.fields)
    if "language" not in dataset.column_names:
        raise DataError(f"The data '{source}' lacks the column 'language'; x-stance's own files have it.")
    keep: NDArray[np.bool_] = np.array(dataset["language"]) == language
    if train is not None and "test_set" in dataset.column_names:
        keep &= np.array([str(name).startswith("new_comments") for name in dataset["test_set"]])
    elif train is not None and "question_id" in dataset.column_names:
        keep &= np.isin(np.array(dataset["question_id"]), np.array(open_data(train)["question_id"]))
    return Rows(dataset.select(np.flatnonzero(keep)), task, source)


def check_tasks(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The tasks by their names here; 'yelp-full' and 'debian' are 'yelp' and 'sample'."""
    by_file: Mapping[str, str] = {file: name for name, file in SHIPPED.items() if file not in SHIPPED}
    found = [by_file.get(name, name) for name in names]
    if wrong := [name for name in found if name not in known]:
        raise DataError(f"There is no task {quoted(wrong)} here; there is {quoted(known)}.")
    return list(dict.fromkeys(found))
