"""The rows of a finished run, read again from where they came.

In: a run's description, which is its `run.json`. Out: the same rows, checked by their texts; where the data has
changed, moved, or was in memory alone, a sentence that says so.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.rows import NO_LABEL, Rows, few_shot, read_rows
from clozify.errors import DataError
from clozify.runs.plan import no_rows


def reread_rows(described: dict[str, Any], name: str, ids: Sequence[Any] | None = None) -> Rows:
    """The rows that a run knew as `labeled`, `unlabeled`, `test` or `dev`; `ids` are theirs, where they are known."""
    known, task = described["data"][name], Task.model_validate(described["task"])
    if known["rows"] == 0:
        return no_rows(task)
    for rows in _readings(described, read_rows(known["source"], task, known.get("columns")), known["rows"], ids):
        if len(rows) == known["rows"] and rows.digest == known["texts"]:
            return rows
    raise DataError(f"The data '{known['source']}' is not what the run was given: its texts have changed since.")


def _readings(described: dict[str, Any], rows: Rows, count: int, ids: Sequence[Any] | None) -> Iterator[Rows]:
    """What of a file may have been given to the run: all of it, the rows with these ids, or a few-shot selection."""
    yield rows
    if ids is not None:
        places: dict[Any, deque[int]] = defaultdict(deque)
        for place, row in enumerate(rows.ids()):
            places[row].append(place)
        chosen = [places[row].popleft() for row in ids if places[row]]
        yield rows.select(chosen)
    elif rows.has_labels:
        rows = rows.select(np.flatnonzero(rows.labels != NO_LABEL))
        yield rows
        recipe = Recipe.model_validate(described["recipe"])
        try:
            yield few_shot(rows, count, recipe.seed if recipe.selection == "random" else None)
        except DataError:
            return
