"""Seeded draws: the rows that are held out for the test, and the labelled and unlabelled rows of every draw.

A draw permutes the rows of each label; its first n are the labelled rows at n rows a label, so the rows at 8 are among
those at 16. Everything is written to the bench's folder with the rows' ids and numbers in their files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.bench.datasets import BenchData, slug, subset
from clozify.data.rows import Rows
from clozify.errors import DataError, quoted
from clozify.runs.folder import RunFolder
from clozify.runs.keys import hash_key

DATA, DRAWS = "data", "draws"  # kinds of jobs in the bench's folder
LABELED, UNLABELED, TEST, TASK = "labeled.jsonl", "unlabeled.jsonl", "test.jsonl", "task.toml"
TEST_LABELS, DATA_SET, DRAW = "test_labels.npy", "data_set.json", "draw.json"
UNLABELED_PER_LABEL, MIN_UNLABELED = 40, 600  # unlabelled rows by default
MIN_HELD_OUT = 2  # test rows of a label
SHOWN_LABELS = 5  # in a note


@dataclass(frozen=True)
class DrawOptions:
    """How rows are drawn."""

    seed: int = 0
    held_out: float = 0.3  # the part of data without test rows that is held out
    test_rows: int | None = None  # at most
    unlabeled_rows: int | None = None  # at most; None: 40 a label, 600 or more


@dataclass(frozen=True)
class DataSet:
    """A data set with its test rows."""

    name: str
    data: BenchData  # with a pool from which test rows were taken out
    test: Rows
    key: str  # of its folder
    held_out: bool
    options: DrawOptions
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Draw:
    """The labelled and unlabelled rows of one draw."""

    data_set: DataSet
    per_label: int
    number: int
    labeled: Rows
    unlabeled: Rows | None
    key: str

    @property
    def seed(self) -> int:
        """The seed of everything that is trained on this draw."""
        return self.data_set.options.seed + self.number

    @property
    def notes(self) -> tuple[str, ...]:
        """What is unusual about its rows: labels with fewer than asked for, no row left over, no unlabelled rows."""
        labels, pool = self.data_set.data.task.labels, self.data_set.data.pool
        counts = np.bincount(self.labeled.labels, minlength=len(labels)).tolist()
        short = [f"'{label}' {count}" for label, count in zip(labels, counts, strict=True) if count < self.per_label]
        notes = []
        if short:
            more = f" and {len(short) - SHOWN_LABELS} more labels" if len(short) > SHOWN_LABELS else ""
            notes.append(f"There are fewer labelled rows of {', '.join(short[:SHOWN_LABELS])}{more}.")
        if len(self.labeled) == len(pool):
            notes.append("All labelled rows are used, so the draws differ in their seed only.")
        if self.unlabeled is None:
            notes.append("There are no unlabelled rows.")
        return tuple(notes)


def hold_out(labels: NDArray[np.integer[Any]], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out for the test: this fraction of each label's rows, drawn at random; (rows,)."""
    rng, chosen = np.random.default_rng(seed), np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(len(rows) - 1, max(MIN_HELD_OUT, round(fraction * len(rows))))
        chosen[rng.permutation(rows)[: max(0, count)]] = True
    return chosen


def draw_labeled(labels: NDArray[np.integer[Any]], per_label: int, classes: int, seed: int) -> NDArray[np.int64]:
    """Indices of `per_label` rows of each label, or of all it has; those of a smaller number are among them."""
    order = np.random.default_rng(seed).permutation(len(labels))
    shuffled = labels[order]
    return np.sort(np.concatenate([order[shuffled == label][:per_label] for label in range(classes)]))


def make_data_set(data: BenchData, options: DrawOptions) -> DataSet:
    """The data set with test rows: its own, or rows that are held out; at most `test_rows`."""
    test, notes = data.test, list(data.notes)
    if test is not None:
        pool = data.pool.excluding(test)
        if len(pool) < len(data.pool):
            notes.append(f"{len(data.pool) - len(pool):,} labelled rows have the text of a test row and were left out.")
    else:
        pool = data.pool
        chosen = hold_out(pool.labels, options.held_out, options.seed)
        test, rest = pool.select(np.flatnonzero(chosen)), pool.select(np.flatnonzero(~chosen))
        pool = rest.excluding(test)
        notes.append(f"{len(test):,} rows were held out as test rows, about {options.held_out:.0%} of each label.")
        if len(pool) < len(rest):
            notes.append(f"{len(rest) - len(pool):,} other rows have the text of one of these and were left out.")
    if not len(test):
        reason = "each label has a single row" if data.test is None else "its test rows have none of its labels"
        raise DataError(f"The data set '{data.name}' has no test rows: {reason}; name test rows with --test.")
    if options.test_rows is not None and options.test_rows < len(test):
        notes.append(f"Measured on {options.test_rows:,} of {len(test):,} test rows, drawn at random.")
        test = subset(test, options.test_rows, options.seed)
    labels = data.task.labels
    if untested := _labels_without(test, labels):
        notes.append(f"No test row has the label {quoted(untested, SHOWN_LABELS)}; macro-F1 counts it as 0.")
    if missing := _labels_without(pool, labels):
        only_test = set(missing) - set(_labels_without(data.pool, labels))
        remedy = "; add some, or leave the label out of --labels or the task file"
        if only_test == set(missing):
            remedy = ": all of them have the text of a test row; name other test rows with --test"
        raise DataError(f"The data set '{data.name}' has no labelled rows with the label {quoted(missing)}{remedy}.")
    key = hash_key(
        name=data.name,  # names that differ in their spaces have the same slug
        task=data.task.model_dump(mode="json"),
        pool=[pool.digest, pool.labels.tolist()],
        test=[test.digest, test.labels.tolist()],
        unlabeled=[None if data.unlabeled is None else data.unlabeled.digest, options.unlabeled_rows],
        seed=options.seed,
    )
    ready = BenchData(data.name, data.task, pool, test, data.unlabeled, data.notes)
    return DataSet(data.name, ready, test, f"{slug(data.name)}-{key[:8]}", data.test is None, options, tuple(notes))


def _labels_without(rows: Rows, labels: list[str]) -> list[str]:
    """The labels that no row has."""
    counts = np.bincount(rows.labels, minlength=len(labels)).tolist()
    return [label for label, count in zip(labels, counts, strict=True) if not count]


def make_draw(data_set: DataSet, per_label: int, number: int) -> Draw:
    """Draw `number` of a data set, with this many rows a label."""
    data, options, seed = data_set.data, data_set.options, data_set.options.seed + number
    pool, labels = data.pool, len(data.task.labels)
    labeled = pool.select(draw_labeled(pool.labels, per_label, labels, seed))
    rest = (pool if data.unlabeled is None else data.unlabeled).excluding(labeled, data_set.test)
    limit = options.unlabeled_rows
    unlabeled = subset(rest, max(MIN_UNLABELED, UNLABELED_PER_LABEL * labels) if limit is None else limit, seed)
    key = hash_key(
        data=data_set.key,
        labeled=labeled.row_numbers().tolist(),
        unlabeled=[unlabeled.row_numbers().tolist(), unlabeled.digest],
    )
    name = f"{slug(data_set.name)}-{per_label}-{number}-{key[:8]}"
    return Draw(data_set, per_label, number, labeled, unlabeled if len(unlabeled) else None, name)


def write_data_set(folder: RunFolder, data_set: DataSet) -> None:
    """Write a data set's task, test rows and test labels, unless they are there."""
    if folder.has_job(DATA, data_set.key):
        return
    data, test = data_set.data, data_set.test
    with folder.writing(DATA, data_set.key) as path:
        data.task.save(path / TASK)
        _write_rows(path / TEST, test, with_labels=False)
        np.save(path / TEST_LABELS, test.labels.astype(np.int64))
        _write_json(
            path / DATA_SET,
            {
                "name": data_set.name,
                "labels": data.task.labels,
                "labeled_source": data.pool.source,
                "labeled_rows": len(data.pool),
                "unlabeled_source": None if data.unlabeled is None else data.unlabeled.source,
                "test_source": test.source,
                "held_out": data_set.held_out,
                "seed": data_set.options.seed,
                "notes": list(data_set.notes),
                "test": _row_names(test),
            },
        )


def write_draw(folder: RunFolder, draw: Draw) -> None:
    """Write a draw's rows and their ids, unless they are there."""
    if folder.has_job(DRAWS, draw.key):
        return
    with folder.writing(DRAWS, draw.key) as path:
        _write_rows(path / LABELED, draw.labeled, with_labels=True)
        if draw.unlabeled is not None:
            _write_rows(path / UNLABELED, draw.unlabeled, with_labels=False)
        content = {
            "data": draw.data_set.name,
            "per_label": draw.per_label,
            "draw": draw.number,
            "seed": draw.seed,
            "labeled": _row_names(draw.labeled),
            "unlabeled": None if draw.unlabeled is None else _row_names(draw.unlabeled),
        }
        _write_json(path / DRAW, content)


def _row_names(rows: Rows) -> dict[str, Any]:
    """The source of rows, their numbers in it from 0, and their ids where it has some."""
    names: dict[str, Any] = {"source": rows.source, "rows": len(rows), "row_numbers": rows.row_numbers().tolist()}
    return names | ({"ids": rows.ids()} if rows.has_ids else {})


def _write_rows(path: Path, rows: Rows, with_labels: bool) -> None:
    task = rows.task
    columns = {name: rows.texts(name) for name in task.fields}
    if with_labels:
        columns[task.label] = [task.labels[label] for label in rows.labels]
    with path.open("w", encoding="utf-8") as file:
        for values in zip(*columns.values(), strict=True):
            file.write(json.dumps(dict(zip(columns, values, strict=True))) + "\n")  # in ASCII: no character ends a line


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
