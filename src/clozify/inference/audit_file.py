"""The file to correct: all rows of a data set in their own columns, those with findings first.

Added are the columns `audit_row` (the row's number in the original file, from 1), `audit_suggestion` (a likelier
label, or likelier labels), `audit_reason` and `audit_lost_tokens`. The label column is corrected by hand and the file
passed to --labeled, which reads none of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozify.data.predictions import write_tables
from clozify.data.text_values import to_text
from clozify.inference.audit_checks import AUDIT_COLUMNS
from clozify.inference.audit_findings import Checks
from clozify.inference.audit_records import AuditedRow, Duplicates, LabelError
from clozify.inference.audit_scores import ScoredSet
from clozify.inference.audit_sets import ADJECTIVES, AuditSet
from clozify.report.format import percent

MAX_NAMED_ROWS = 3  # other rows that a reason names


def write_file(path: Path, data: AuditSet, checks: Checks, scored: Sequence[ScoredSet]) -> None:
    """Write the rows with their findings; the file's suffix decides the format."""
    import pyarrow as pa

    reasons = collect_reasons(data, checks)
    lost = {row.row.row: row.lost for row in checks.truncated if row.row.data == data.name}
    suggestions = {error.row.row: error.suggestion for error in checks.label_errors if error.row.data == data.name}
    for unknown in checks.unknown_labels:
        if unknown.row.data == data.name and unknown.suggestion is not None:
            suggestions[unknown.row.row] = unknown.suggestion
    numbers = [data.row(index).row for index in range(len(data))]
    order = rank_rows(data, numbers, list(reasons), scored)
    names = [name for name in data.rows.column_names if not name.startswith(AUDIT_COLUMNS)]
    table = pa.table({name: data.rows.column(name, 0, len(data)) for name in names}).take(pa.array(order))
    ordered = [numbers[index] for index in order]
    columns = {
        "audit_row": pa.array(ordered, pa.int64()),
        "audit_suggestion": pa.array([suggestions.get(number, "") for number in ordered], pa.string()),
        "audit_reason": pa.array(["; ".join(reasons.get(number, [])) for number in ordered], pa.string()),
        "audit_lost_tokens": pa.array([lost.get(number, 0) for number in ordered], pa.int64()),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    write_tables(path, [_plain(table, path.suffix.lower())])


def rank_rows(
    data: AuditSet, numbers: Sequence[int], with_reasons: Sequence[int], scored: Sequence[ScoredSet]
) -> list[int]:
    """All rows: those with findings in their order, then the others by how doubtful their labels are."""
    index = {number: row for row, number in enumerate(numbers)}
    first = [index[number] for number in with_reasons]
    doubtful = [int(each.indices[row]) for each in scored if each.data is data for row in each.errors.order]
    return list(dict.fromkeys([*first, *doubtful, *range(len(data))]))


def collect_reasons(data: AuditSet, checks: Checks) -> dict[int, list[str]]:
    """What was found about each row, by its number in the file; the rows with the most important findings first."""
    reasons = defaultdict[int, list[str]](list)

    def add(row: AuditedRow, reason: str) -> None:
        if row.data == data.name:
            reasons[row.row].append(reason)

    for unknown in checks.unknown_labels:
        add(unknown.row, f"the task has no label '{unknown.row.label}'")
    for group in checks.duplicates:
        if group.labels_differ:
            _add_duplicates(group, add, "with another label")
    for error in checks.label_errors:
        add(error.row, _label_error_reason(error))
    for group in checks.duplicates:
        if not group.labels_differ:
            _add_duplicates(group, add, "")
    for empty in checks.empty:
        add(empty.row, f"no text in {', '.join(empty.fields)}")
    for other in checks.other_languages:
        add(other.row, f"the language is '{other.language}'")
    return dict(reasons)


def _label_error_reason(error: LabelError) -> str:
    """What is likelier than a row's label, or which of its labels are likely missing or superfluous."""
    if error.missing is None:
        return (
            f"the label may be '{error.suggestion}' ({percent(error.probability, 0)}%; "
            f"'{error.row.label}' {percent(error.label_probability, 0)}%)"
        )
    changes = {"missing": error.missing, "superfluous": error.superfluous or {}}
    return ", ".join(
        f"'{label}' may be {change} ({percent(probability, 0)}%)"
        for change, labels in changes.items()
        for label, probability in labels.items()
    )


def _add_duplicates(group: Duplicates, add: Any, remark: str) -> None:
    """Add to each row of a group which others have its text; with a remark, those with another label."""
    for row in group.rows:
        others = [
            f"{ADJECTIVES[other.data]} row {other.row:,}" + (f" '{other.label}'" if remark and other.label else "")
            for other in group.rows
            if other is not row and not (remark and other.label == row.label)
        ]
        if others:
            more = f" and {len(others) - MAX_NAMED_ROWS:,} more" if len(others) > MAX_NAMED_ROWS else ""
            same = "the same text as" if group.similarity == 1 else "nearly the same text as"
            add(row, " ".join(filter(None, [same, ", ".join(others[:MAX_NAMED_ROWS]) + more, remark])))


def _plain(table: Any, suffix: str) -> Any:
    """The table with values that the format cannot hold as text: in CSV lists and bytes, in JSON bytes and dates."""
    import pyarrow as pa

    types = pa.types
    in_csv = (types.is_nested, types.is_binary, types.is_large_binary)
    in_json = (types.is_nested, types.is_binary, types.is_large_binary, types.is_temporal, types.is_decimal)
    for index, field in enumerate(table.schema):
        if suffix != ".parquet" and any(is_type(field.type) for is_type in (in_csv if suffix == ".csv" else in_json)):
            values = table.column(index).to_pylist()
            if suffix == ".csv" or not _is_json(values):
                texts = [None if value is None else _to_text(value) for value in values]
                table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table


def _is_json(values: Any) -> bool:
    try:
        json.dumps(values)
    except TypeError:
        return False
    return True


def _to_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list)) else to_text(value)
