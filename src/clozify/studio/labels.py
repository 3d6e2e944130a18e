"""The labels that the user gave on the page. A label belongs to a row's texts, not to its number in a file.

So it stays with its text when rows are added, sorted or removed, is kept while no loaded row has the text, and never
becomes the label of another text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

import numpy as np

from clozify.config.task import Task, Verbalizer
from clozify.data.in_memory import make_rows
from clozify.data.rows import Rows

RowKey = tuple[tuple[str, str], ...]  # a row's fields and their texts, sorted by field
UserLabels = dict[RowKey, str | None]  # in the order in which they were given; None: the row has no label
RowsOfFields = Callable[[tuple[str, ...]], Rows | None]  # all rows with these fields; None if a column is missing


def make_row_key(texts: dict[str, str]) -> RowKey:
    """The key of a row with these texts."""
    return tuple(sorted(texts.items()))


def with_label(labels: UserLabels, key: RowKey, label: str | None) -> UserLabels:
    """A copy in which `key` has this label, as the last that was given."""
    return {other: name for other, name in labels.items() if other != key} | {key: label}


def only_columns(labels: UserLabels, columns: Collection[str]) -> UserLabels:
    """The labels for the texts of these columns alone; a label with none of them stays as it is."""
    return {tuple(item for item in key if item[0] in columns) or key: label for key, label in labels.items()}


def match_labels(labels: UserLabels, rows_of_fields: RowsOfFields) -> dict[int, RowKey]:
    """Row index -> the key of its label. Fields may have been added since a label was given; the last label counts."""
    groups: dict[tuple[str, ...], list[tuple[int, RowKey]]] = defaultdict(list)
    for position, key in enumerate(labels):
        groups[tuple(field for field, _ in key)].append((position, key))
    positions: dict[int, int] = {}  # row index -> position of its label in `labels`
    for fields, group in groups.items():
        rows = rows_of_fields(fields)
        if rows is None:
            continue
        columns = {field: [key[index][1] for _, key in group] for index, field in enumerate(fields)}
        hashes = make_rows(columns, identity_task(fields), "the labels").fingerprints().tolist()
        position_of_hash = {value: position for value, (position, _) in zip(hashes, group, strict=True)}
        fingerprints = rows.fingerprints()
        for row in np.flatnonzero(np.isin(fingerprints, np.array(hashes, dtype=np.uint64))).tolist():
            positions[row] = max(positions.get(row, -1), position_of_hash[int(fingerprints[row])])
    keys = list(labels)
    return {row: keys[position] for row, position in positions.items()}


def identity_task(fields: tuple[str, ...]) -> Task:
    """A task to read the texts that identify a row with; its clean-up of texts does not depend on the draft."""
    return Task.model_validate(
        {
            "name": "labels",
            "fields": list(fields),
            "label": "".join(fields) + " label",  # not a field
            "patterns": ["{mask}"],
            "verbalizers": [Verbalizer(words={"label": ("label",)})],
        }
    )
