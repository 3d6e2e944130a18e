"""The checks of an audit that need no model: labels, duplicates, leaking columns, languages and empty rows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data import languages
from clozify.data.label_matrix import indicator_columns
from clozify.data.leaks import Leak, find_column_leak, find_named_labels, is_sorted_by_label
from clozify.data.near_duplicates import find_duplicates
from clozify.data.observed_labels import ObservedLabels
from clozify.data.text_values import to_text
from clozify.inference.audit_records import (
    Duplicates,
    EmptyRow,
    LabelRows,
    LeakingColumn,
    OtherLanguage,
    UnknownLabel,
)
from clozify.inference.audit_sets import ADJECTIVES, AuditSet
from clozify.utils.progress import progress

AUDIT_COLUMNS = "audit_"  # what the columns of a file to correct begin with


def count_labels(task: Task, sets: Sequence[AuditSet]) -> list[LabelRows]:
    """How many labelled and test rows each label has."""
    counts = {each.name: each.labels.counts() for each in sets if each.labels is not None}
    names = next((each.labels.names for each in sets if each.labels is not None), task.labels)
    test = counts.get("test")
    return [
        LabelRows(label=label, labeled=int(counts["labeled"][i]), test=None if test is None else int(test[i]))
        for i, label in enumerate(names)
    ]


def find_unknown_labels(sets: Sequence[AuditSet]) -> list[UnknownLabel]:
    """The rows with labels that the task does not have, each with the task's most similar name."""
    unknown = []
    for each in sets:
        for row, names in each.labels.unknown.items() if each.labels is not None else ():
            assert each.labels is not None
            unknown.append(UnknownLabel(row=each.row(row), suggestion=nearest_label(names[0], each.labels.names)))
    return unknown


def nearest_label(name: str, names: Sequence[str]) -> str | None:
    """The label with the most similar name; None where none is similar."""
    lower = {label.lower(): label for label in names}
    close = difflib.get_close_matches(name.lower().strip(), list(lower), n=1)
    return lower[close[0]] if close else None


def find_equal_rows(sets: Sequence[AuditSet]) -> list[Duplicates]:
    """Groups of rows with nearly the same text, within and across the data sets.

    Those with different labels come first, then labelled rows among the test rows, then others that have labels.
    """
    fields = [[text for each in sets for text in each.fields[i]] for i in range(len(sets[0].fields))]
    owner = [(each, row) for each in sets for row in range(len(each))]
    groups = []
    for group in find_duplicates(fields):
        members = [owner[index] for index in group.rows]
        labels = {_label_key(each.labels, row) for each, row in members} - {None}
        duplicates = Duplicates(
            rows=[each.row(row) for each, row in members], similarity=group.similarity, labels_differ=len(labels) > 1
        )
        groups.append(duplicates)
    return sorted(groups, key=_duplicates_order)


def _label_key(labels: ObservedLabels | None, row: int) -> bytes | None:
    """A row's labels; None without any."""
    if labels is None or not labels.is_labeled[row]:
        return None
    return bytes(labels.targets[row].tobytes())


def _duplicates_order(group: Duplicates) -> tuple[bool, bool, bool, float]:
    sets = {row.data for row in group.rows}
    return not group.labels_differ, not {"labeled", "test"} <= sets, "labeled" not in sets, -group.similarity


def find_leaks(task: Task, sets: Sequence[AuditSet], notes: list[str]) -> list[LeakingColumn]:
    """Columns that tell the label, of labelled and of test rows; not for several labels a row."""
    if task.multilabel:
        return []
    leaks = []
    for each in sets:
        if each.labels is None:
            continue
        labeled = np.flatnonzero(each.labels.is_labeled)
        labels = each.labels.targets[labeled]
        read = set(each.rows.column_mapping.values()) | set(indicator_columns(task, each.rows.column_names))
        for column in each.rows.column_names:
            if column not in read and not column.startswith(AUDIT_COLUMNS):
                values = _column_texts(each, column, labeled)
                leaks += _records(each, [find_column_leak(column, values, labels)], is_field=False)
        for field, texts in zip(task.fields, each.fields, strict=True):
            values = [texts[row] for row in labeled]
            named = find_named_labels(field, values, labels, each.labels.names)
            both = [find_column_leak(field, values, labels), named]
            leaks += _records(each, both, is_field=True)
        if each.name == "labeled" and is_sorted_by_label(labels):
            notes.append(
                f"The {ADJECTIVES[each.name]} rows are sorted by label: clozify does not mind, but other programs that "
                "split files by position do, and so does whoever labels them in this order."
            )
    return leaks


def _column_texts(each: AuditSet, column: str, rows: NDArray[np.int64]) -> list[str]:
    """A column's values as text."""
    values = each.rows.column(column, 0, len(each)).to_pylist()
    return ["" if values[row] is None else to_text(values[row]) for row in rows]


def _records(each: AuditSet, leaks: Sequence[Leak | None], is_field: bool) -> list[LeakingColumn]:
    return [
        LeakingColumn(
            data=each.name,
            column=leak.column,
            is_field=is_field,
            kind=leak.kind,
            accuracy=leak.accuracy,
            majority=leak.majority,
            rows=leak.rows,
        )
        for leak in leaks
        if leak is not None
    ]


def find_other_languages(sets: Sequence[AuditSet], notes: list[str]) -> tuple[list[str], list[OtherLanguage]]:
    """The languages of the data, and the rows in others; neither, and a note, without py3langid."""
    if not languages.is_available():
        notes.append(
            "Languages were not identified: that needs py3langid, which carries its model in its package; get it "
            "with: pip install 'clozify[audit]'."
        )
        return [], []
    owner = [(each, row) for each in sets for row in range(len(each))]
    texts = [text for each in sets for text in each.texts(range(len(each)))]
    with progress("identifying languages", len(texts)) as advance:
        identified = languages.identify_languages(texts, advance)
    frequent = languages.frequent_languages(identified)
    rows = [
        OtherLanguage(row=each.row(row), language=language.code, probability=language.probability)
        for (each, row), language in zip(owner, identified, strict=True)
        if language is not None and language.code not in frequent
    ]
    return frequent, rows


def find_empty_rows(task: Task, sets: Sequence[AuditSet]) -> list[EmptyRow]:
    """Rows without text in any field, and those without text in a field that is not optional."""
    empty = []
    for each in sets:
        for row in range(len(each)):
            fields = [field for field, texts in zip(task.fields, each.fields, strict=True) if not texts[row].strip()]
            if len(fields) == len(task.fields) or set(fields) - set(task.optional):
                empty.append(EmptyRow(row=each.row(row), fields=fields))
    return sorted(empty, key=lambda row: -len(row.fields))
