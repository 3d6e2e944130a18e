"""Rows as they travel to another machine: with their text, not with the path of a file that is only here.

In: rows, whose text is memory-mapped. Out: a parcel that Ray can send, and the same rows of it.
"""

from __future__ import annotations

from typing import Any

from clozify.data import Rows


def packed(rows: Rows) -> dict[str, Any]:
    """Everything of the rows, in memory; what they were selected from stays behind."""
    known = {name: value for name, value in rows.__getstate__().items() if name not in ("_dataset", "_whole")}
    if rows._whole is not None and "labels" in vars(rows._whole[0]):  # one naming of the labels for the whole file
        known["labels"] = rows.labels
    known["_numbers"] = rows.numbers()
    return known | {"table": rows.table(), "info": rows._dataset.info}


def unpacked(parcel: dict[str, Any]) -> Rows:
    """The rows again."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    rows = Rows.__new__(Rows)
    known = dict(parcel)
    table, info = known.pop("table"), known.pop("info")
    vars(rows).update(known, _dataset=Dataset(InMemoryTable(table), info=info).with_format("arrow"), _whole=None)
    return rows
