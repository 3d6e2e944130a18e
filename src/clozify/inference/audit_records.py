"""What `clozify audit` reports, as types."""

from __future__ import annotations

from typing import Any, Literal

from clozify.data.leaks import Kind
from clozify.runs.metrics import Record

SetName = Literal["labeled", "unlabeled", "test"]
Level = Literal["error", "warning", "note"]


class AuditedRow(Record):
    """A row of one of the data sets."""

    data: SetName
    row: int  # its number in the file, from 1
    id: Any = None  # None where the data has no ids
    label: str | None = None  # as the data writes it; None without one
    text: str  # all fields, joined by spaces; of a long text the beginning


class AuditedData(Record):
    """One of the data sets, and what was looked at."""

    data: SetName
    source: str
    rows: int
    labeled: int  # rows with a label of the task
    scored: int  # rows whose label was compared with a prediction


class LabelRows(Record):
    """How many rows a label has."""

    label: str  # as the labelled data writes it
    labeled: int
    test: int | None  # None without labelled test rows


class LabelError(Record):
    """A row whose label, or one of whose labels, is likely wrong."""

    row: AuditedRow
    suggestion: str  # the likeliest label, as the data writes it; of several, all that are suggested, as `a|b`
    # of the suggestion, by models that were not fitted on the row; of several labels, of the likeliest change
    probability: float
    label_probability: float  # of the row's own label; of several, of no such change
    missing: dict[str, float] | None = None  # with several labels a row: those to add, and their probabilities
    superfluous: dict[str, float] | None = None  # those to remove


class UnknownLabel(Record):
    """A row with a label that the task does not have."""

    row: AuditedRow
    suggestion: str | None  # the label of the task with the most similar name


class Duplicates(Record):
    """Rows with the same or nearly the same text."""

    rows: list[AuditedRow]
    similarity: float  # 1 where all texts are equal but for case and punctuation
    labels_differ: bool


class LeakingColumn(Record):
    """A column that tells the label."""

    data: SetName
    column: str
    is_field: bool  # whether the patterns read it
    kind: Kind
    accuracy: float
    majority: float  # the accuracy of always answering the most frequent label
    rows: int


class OtherLanguage(Record):
    """A row that is not in the language of the data."""

    row: AuditedRow
    language: str  # ISO 639 code
    probability: float


class EmptyRow(Record):
    """A row without text in some fields, or in all."""

    row: AuditedRow
    fields: list[str]  # that are empty


class TruncatedRow(Record):
    """A row with more tokens than are read."""

    row: AuditedRow
    lost: int  # tokens, in the longest pattern
    tokens: int  # of all fields


class Finding(Record):
    """One line of the summary."""

    level: Level
    kind: str
    rows: int
    text: str  # what it is
    advice: str  # what to do


class AuditResult(Record):
    """What is wrong with a task's data, the most important first."""

    task: str
    model: str
    max_length: int  # tokens of a row that are read
    patterns: list[str]  # that labels were predicted with
    data: list[AuditedData]
    labels: list[LabelRows]
    # the fraction of labelled rows whose label, or all of whose labels, are predicted; None where none was scored
    agreement: float | None
    findings: list[Finding]
    unknown_labels: list[UnknownLabel]
    label_errors: list[LabelError]  # of the labelled rows, then of the test rows, the likeliest first
    duplicates: list[Duplicates]  # with different labels first, then labelled rows among the test rows
    leaks: list[LeakingColumn]
    languages: list[str]  # of the data, the most frequent first; empty where they were not identified
    other_languages: list[OtherLanguage]
    empty: list[EmptyRow]
    truncated: list[TruncatedRow]  # those that lose most first
    notes: list[str]
    output: str | None = None  # the file to correct
    test_output: str | None = None  # the same for the test rows
