"""Fills a table's specification with results: our value, the paper's and the difference, or why there is no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from clozify.reproduce.experiments import Experiment, ExperimentResult
from clozify.reproduce.paper import Value
from clozify.reproduce.specs import Entry, TableSpec

MAX_WORDS = 5  # of a label in table 8

FindResult = Callable[[Experiment], ExperimentResult | None]


@dataclass(frozen=True)
class CellValue:
    """One cell of a filled table."""

    value: Value | str | None = None
    paper: Value | str | None = None
    not_run: str = ""  # why there is no value

    @property
    def difference(self) -> float | None:
        """Our value minus the paper's, in points."""
        if isinstance(self.value, Value) and isinstance(self.paper, Value):
            return self.value.mean - self.paper.mean
        return None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return self.value is None and self.paper is None and not self.not_run


@dataclass(frozen=True)
class FilledTable:
    """A table or figure with its values, row by row."""

    spec: TableSpec
    cells: tuple[tuple[CellValue, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def has_words(self) -> bool:
        """Whether the values are words (table 8), not numbers."""
        return any(isinstance(v, str) for row in self.cells for cell in row for v in (cell.value, cell.paper))


def fill_table(
    spec: TableSpec, find_result: FindResult, not_run: Mapping[Experiment, str], notes: tuple[str, ...] = ()
) -> FilledTable:
    """The table with all results so far; `not_run` says why experiments were not run."""
    results = {experiment: find_result(experiment) for experiment in spec.experiments()}
    cells = tuple(tuple(_cell_value(entry, results, not_run) for entry in row.entries) for row in spec.rows)
    reasons = {cell.not_run for row in cells for cell in row if cell.not_run}
    return FilledTable(spec, cells, (*spec.notes, *notes, *(f"Not run: {reason}" for reason in sorted(reasons))))


def _cell_value(
    entry: Entry, results: Mapping[Experiment, ExperimentResult | None], not_run: Mapping[Experiment, str]
) -> CellValue:
    if not entry.experiments:
        return CellValue(None, entry.paper)
    values: list[Value] = []
    for experiment in entry.experiments:
        result = results[experiment]
        if result is None:
            return CellValue(None, entry.paper, not_run.get(experiment, "cells that were not requested."))
        if entry.measure.startswith("words "):
            words = result.words[entry.measure.removeprefix("words ")]
            return CellValue(", ".join(words[:MAX_WORDS]), entry.paper)
        value = _value(entry, result)
        if value is None:
            reason = result.missing.get(entry.test_set, f"the result of {experiment} has no {entry.measure}")
            return CellValue(None, entry.paper, f"{reason}.")
        values.append(value)
    if len(values) == 1:
        return CellValue(values[0], entry.paper)
    means = [value.mean for value in values]
    combined = means[0] - means[1] if entry.combine == "difference" else float(np.mean(means))
    return CellValue(Value(combined), entry.paper)


def _value(entry: Entry, result: ExperimentResult) -> Value | None:
    """An entry's value in percent."""
    if entry.measure.startswith("generation "):
        generation = result.generations.get(entry.test_set, {}).get(entry.measure.removeprefix("generation "))
        return None if generation is None else Value(100 * generation)
    measure = result.numbers.get(entry.test_set, {}).get(entry.measure)
    if measure is None:
        return None
    mean, std = measure
    return Value(100 * mean, None if std is None else 100 * std)
