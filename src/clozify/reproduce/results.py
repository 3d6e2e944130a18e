"""An exhibit with its numbers: ours, the paper's, and the difference; or why there is none.

In: an `Exhibit`, a function that finds a cell's result, and why cells were not run. Out: `Place`s, row by row, for all
that shows them: Markdown, HTML, the terminal, JSON, and the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clozify.reproduce.cells import Cell
from clozify.reproduce.layout import Entry, Exhibit
from clozify.reproduce.paper import Value

WORDS_SHOWN = 5  # as many as table 8 shows at most


@dataclass(frozen=True)
class Place:
    """What stands in one place."""

    ours: Value | str | None = None
    paper: Value | str | None = None
    why: str = ""  # there is no number of ours

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        if isinstance(self.ours, Value) and isinstance(self.paper, Value):
            return self.ours.mean - self.paper.mean
        return None


@dataclass(frozen=True)
class Filled:
    """An exhibit and its places, row by row."""

    exhibit: Exhibit
    places: tuple[tuple[Place, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many places have a number of ours."""
        return sum(place.ours is not None for row in self.places for place in row)


def fill(
    exhibit: Exhibit,
    find: Callable[[Cell], dict[str, Any] | None],
    why: Mapping[Cell, str],
    notes: tuple[str, ...] = (),
) -> Filled:
    """Every place of the exhibit, from the results that there are."""
    found = {cell: find(cell) for row in exhibit.rows for entry in row.entries for cell in entry.cells}
    places = tuple(tuple(_place(entry, found, why) for entry in row.entries) for row in exhibit.rows)
    reasons = {place.why for row in places for place in row if place.why}
    skipped = [f"Not run: {reason}" for reason in sorted(reasons)]
    return Filled(exhibit, places, (*exhibit.remarks, *notes, *skipped))


def _place(entry: Entry, found: Mapping[Cell, dict[str, Any] | None], why: Mapping[Cell, str]) -> Place:
    if not entry.cells:
        return Place(None, entry.paper)
    values: list[Value] = []
    for cell in entry.cells:
        result = found[cell]
        if result is None:
            return Place(None, entry.paper, why.get(cell, "what was not asked for."))
        if entry.measure.startswith("words "):
            return Place(", ".join(result["words"][entry.measure.removeprefix("words ")][:WORDS_SHOWN]), entry.paper)
        value = _value(entry, result)
        if value is None:
            reason = result["lacking"].get(entry.part, f"a run of {cell} has no {entry.measure}")
            return Place(None, entry.paper, f"{reason}.")
        values.append(value)
    if len(values) == 1:
        return Place(values[0], entry.paper)
    means = [value.mean for value in values]
    return Place(Value(means[0] - means[1] if entry.how == "difference" else float(np.mean(means))), entry.paper)


def _value(entry: Entry, result: dict[str, Any]) -> Value | None:
    """A number of a result in percent."""
    if entry.measure.startswith("generation "):
        mean = result.get("generations", {}).get(entry.part, {}).get(entry.measure.removeprefix("generation "))
        return None if mean is None else Value(100 * mean)
    numbers = result["numbers"].get(entry.part, {}).get(entry.measure)
    if numbers is None:
        return None
    mean, std = numbers
    return Value(100 * mean, None if std is None else 100 * std)
