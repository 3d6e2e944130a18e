"""Which words moved the labels of the test rows that a report shows as errors: `wrong_rows.json`.

It has no texts: a word is the characters from `start` to before `end` of a field of a test row.
"""

from __future__ import annotations

from pathlib import Path

from clozify.runs.metrics import Record
from clozify.utils.checked_files import read_record

WRONG_ROWS_FILE = "wrong_rows.json"  # among a method's results, and in the folder of its job


class ExplainedPart(Record):
    """Words that were left out together, and what they add to the label's log-odds."""

    field: str
    start: int
    end: int
    effect: float


class ExplainedRow(Record):
    """A test row."""

    row: int  # its index among the test rows
    label: str  # the one that is explained
    parts: list[ExplainedPart]


class ExplainedRows(Record):
    """The content of `wrong_rows.json`."""

    texts: str  # the digest of the test rows
    rows: list[ExplainedRow]


def load_explained_rows(folder: Path) -> ExplainedRows | None:
    """The record in the folder of a method's results; None where it has none."""
    path = folder / WRONG_ROWS_FILE
    return read_record(path, ExplainedRows) if path.is_file() else None
