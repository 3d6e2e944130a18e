"""Reads the rows of a finished run again from their source, and checks that they have not changed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clozify.config.recipe import Recipe
from clozify.data.few_shot import reselect
from clozify.data.in_memory import IN_MEMORY
from clozify.data.rows import NO_LABEL, Rows, read_rows
from clozify.errors import DataError
from clozify.report.run import RunInputs
from clozify.runs.keys import hash_key
from clozify.runs.plan import empty_rows


def reread_rows(
    inputs: RunInputs, name: str, ids: Sequence[Any] | None = None, source_rows: Rows | None = None
) -> Rows:
    """The run's `labeled`, `unlabeled`, `test` or `dev` rows; `ids` are those of the rows, where they were kept.

    They are read from their source, or selected from `source_rows`.
    """
    data = inputs.data[name]
    if data.rows == 0:
        return empty_rows(inputs.task)
    if source_rows is None and data.source == IN_MEMORY:
        raise DataError(f"The {name} rows were passed to the run in memory, so they cannot be read again.")
    source_rows = read_rows(data.source, inputs.task, data.columns) if source_rows is None else source_rows
    for rows in _candidates(source_rows, data.rows, ids, inputs.recipe):
        if len(rows) != data.rows or rows.digest != data.texts:
            continue
        if data.labels is not None and hash_key(labels=rows.labels.tolist()) != data.labels:
            raise DataError(f"The labels of the data '{data.source}' have changed since the run.")
        return rows
    raise DataError(f"The texts of the data '{data.source}' have changed since the run.")


def _candidates(rows: Rows, count: int, ids: Sequence[Any] | None, recipe: Recipe) -> Iterator[Rows]:
    """The selections of a source that a run may have used: all rows, those with these ids, or a few-shot selection."""
    yield rows
    if ids is not None:
        indices: dict[Any, deque[int]] = defaultdict(deque)
        for index, row_id in enumerate(rows.ids()):
            indices[row_id].append(index)
        yield rows.select([indices[row_id].popleft() for row_id in ids if indices[row_id]])
    elif rows.has_labels:
        rows = rows.select(np.flatnonzero(rows.labels != NO_LABEL))
        yield rows
        yield reselect(rows, count, recipe.seed if recipe.selection == "random" else None)
