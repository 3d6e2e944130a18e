"""The summary of an audit: one line for each kind of finding, the most important first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clozify.errors import quoted, unknown_names
from clozify.inference.audit_records import (
    AuditedRow,
    Duplicates,
    EmptyRow,
    Finding,
    LabelError,
    LabelRows,
    LeakingColumn,
    Level,
    OtherLanguage,
    SetName,
    TruncatedRow,
    UnknownLabel,
)
from clozify.inference.audit_sets import ADJECTIVES, AuditSet

MAX_NAMES = 5  # labels and columns that a line names


@dataclass(frozen=True)
class Checks:
    """What all checks found."""

    labels: list[LabelRows]
    unknown_labels: list[UnknownLabel]
    label_errors: list[LabelError]
    duplicates: list[Duplicates]
    leaks: list[LeakingColumn]
    other_languages: list[OtherLanguage]
    empty: list[EmptyRow]
    truncated: list[TruncatedRow]


def summarize(
    checks: Checks, sets: Sequence[AuditSet], scored: Mapping[SetName, int], max_length: int
) -> list[Finding]:
    """One finding for each kind of problem that occurs, errors first.

    `scored`: how many rows of a data set were searched for wrong labels.
    """
    findings = [
        *_unknown_labels(checks, sets),
        *_duplicates(checks),
        *_label_errors(checks, scored),
        *_missing_labels(checks),
        *_leaks(checks),
        *_rows(checks, sets, max_length),
    ]
    order = ("error", "warning", "note")
    return sorted(findings, key=lambda finding: order.index(finding.level))


def count_by_set(rows: Sequence[AuditedRow]) -> str:
    """`3 labelled and 2 test rows`."""
    counts = Counter(row.data for row in rows)
    parts = [f"{counts[name]:,} {adjective}" for name, adjective in ADJECTIVES.items() if counts[name]]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) + (" row" if counts.total() == 1 else " rows")


def _unknown_labels(checks: Checks, sets: Sequence[AuditSet]) -> Iterator[Finding]:
    if not checks.unknown_labels:
        return
    names = sorted({name for each in sets if each.labels for names in each.labels.unknown.values() for name in names})
    known_names = next(each.labels.names for each in sets if each.labels)
    yield Finding(
        level="error",
        kind="unknown label",
        rows=len(checks.unknown_labels),
        text=f"{_rows_have(checks.unknown_labels)} a label that the task does not have: "
        f"{unknown_names(names, known_names, MAX_NAMES)}",
        advice="correct the label, or add it to the task",
    )


def _rows_have(records: Sequence[UnknownLabel | EmptyRow | TruncatedRow]) -> str:
    """`3 labelled rows have`."""
    return count_by_set([record.row for record in records]) + (" has" if len(records) == 1 else " have")


def _duplicates(checks: Checks) -> Iterator[Finding]:
    """Labelled rows among the test rows, texts with several labels, and other duplicates."""
    groups = checks.duplicates
    shared = [group for group in groups if {"labeled", "test"} <= {row.data for row in group.rows}]
    if shared:
        rows = [row for group in shared for row in group.rows if row.data == "labeled"]
        equal = sum(row.data == "labeled" for group in shared if group.similarity == 1 for row in group.rows)
        yield Finding(
            level="error",
            kind="labelled rows in test",
            rows=len(rows),
            text=f"{count_by_set(rows)} {'is a test row' if len(rows) == 1 else 'are test rows'}, too, "
            + (
                "word for word"
                if equal == len(rows)
                else f"{equal:,} word for word and the others nearly"
                if equal
                else "nearly word for word"
            ),
            advice="remove them from one of the two, since results on the test rows would be too good",
        )
    if differing := [group for group in groups if group.labels_differ]:
        rows = [row for group in differing for row in group.rows]
        yield Finding(
            level="error",
            kind="duplicates with different labels",
            rows=len(rows),
            text=f"{_texts(len(differing))} with different labels, in {count_by_set(rows)}",
            advice="decide on one label for each text",
        )
    levels: tuple[Level, ...] = ("warning", "note")
    for level in levels:
        chosen = [group for group in groups if _duplicates_level(group) == level]
        if chosen:
            rows = [row for group in chosen for row in group.rows]
            across = sum(len({row.data for row in group.rows}) > 1 for group in chosen)
            yield Finding(
                level=level,
                kind="duplicates",
                rows=len(rows),
                text=f"{_texts(len(chosen))} more than once, in {count_by_set(rows)}"
                + (f"; {across:,} of them in several data sets" if across else ""),
                advice="keep one of each; train leaves out unlabelled rows that are equal to others"
                if any(row.data == "unlabeled" for row in rows)
                else "keep one of each",
            )


def _duplicates_level(group: Duplicates) -> Level:
    """How much it matters that rows have the same text."""
    sets = {row.data for row in group.rows}
    if group.labels_differ or {"labeled", "test"} <= sets:
        return "error"
    return "note" if sets == {"unlabeled"} else "warning"


def _texts(count: int) -> str:
    return f"{count:,} text{' occurs' if count == 1 else 's occur'}"


def _label_errors(checks: Checks, scored: Mapping[SetName, int]) -> Iterator[Finding]:
    for name, size in scored.items():
        rows = [error for error in checks.label_errors if error.row.data == name]
        if rows:
            yield Finding(
                level="warning",
                kind=f"label errors in {ADJECTIVES[name]} rows",
                rows=len(rows),
                text=f"{len(rows):,} of {size:,} {ADJECTIVES[name]} rows may have {_wrong_labels(rows)}",
                advice="look at them, the first ones first; the last ones are often right, but hard to decide",
            )


def _wrong_labels(errors: Sequence[LabelError]) -> str:
    """`a wrong label`; with several labels a row, how many may be missing and superfluous."""
    if errors[0].missing is None:
        return "a wrong label"
    missing = sum(len(error.missing or {}) for error in errors)
    superfluous = sum(len(error.superfluous or {}) for error in errors)
    return f"wrong labels: {missing:,} may be missing, {superfluous:,} superfluous"


def _missing_labels(checks: Checks) -> Iterator[Finding]:
    without = [label for label in checks.labels if not label.labeled]
    if not without:
        return
    tested = [label for label in without if label.test]
    yield Finding(
        level="error" if tested else "warning",
        kind="labels without rows",
        rows=0,
        text=f"{len(without):,} of {len(checks.labels):,} labels {'has' if len(without) == 1 else 'have'} no labelled "
        f"row: {quoted([label.label for label in without], MAX_NAMES)}"
        + (
            f"; {sum(label.test or 0 for label in tested):,} test rows have {'it' if len(without) == 1 else 'them'}"
            if tested
            else ""
        ),
        advice="label some rows of each, or remove it from the task",
    )


def _leaks(checks: Checks) -> Iterator[Finding]:
    for leak in checks.leaks:
        how = {
            "values": f"the column '{leak.column}' tells the label",
            "numbers": f"the numbers in the column '{leak.column}' are sorted by label",
            "label names": f"the field '{leak.column}' contains the label's own name in {leak.rows:,} rows",
        }[leak.kind]
        yield Finding(
            level="warning" if leak.is_field else "note",
            kind="leaking column",
            rows=leak.rows,
            text=f"{how}: right in {100 * leak.accuracy:.1f}% of {leak.rows:,} {ADJECTIVES[leak.data]} rows, where the "
            f"most frequent label is right in {100 * leak.majority:.1f}%",
            advice="make sure that new rows will have it, too; else leave it out of the task's fields"
            if leak.is_field
            else "nothing, since no pattern reads it; do not make it a field",
        )


def _rows(checks: Checks, sets: Sequence[AuditSet], max_length: int) -> Iterator[Finding]:
    """Rows of another language, empty ones, those without a label, and truncated ones."""
    if checks.other_languages:
        codes = Counter(row.language for row in checks.other_languages)
        are = "is" if len(checks.other_languages) == 1 else "are"
        yield Finding(
            level="warning",
            kind="other language",
            rows=len(checks.other_languages),
            text=f"{count_by_set([row.row for row in checks.other_languages])} {are} in another language: "
            + ", ".join(f"{code} {count:,}" for code, count in codes.most_common(MAX_NAMES)),
            advice="translate or remove them",
        )
    if checks.empty:
        yield Finding(
            level="warning",
            kind="empty",
            rows=len(checks.empty),
            text=f"{_rows_have(checks.empty)} no text in some field or in all",
            advice="fill the text in, or remove them",
        )
    for each in sets:
        if each.labels is not None:
            missing = len(each) - int(each.labels.is_labeled.sum()) - len(each.labels.unknown)
            if missing:
                have = "has" if missing == 1 else "have"
                yield Finding(
                    level="note",
                    kind="no label",
                    rows=missing,
                    text=f"{missing:,} of {len(each):,} {ADJECTIVES[each.name]} rows {have} no label",
                    advice="label them, or pass them with --unlabeled",
                )
    if checks.truncated:
        lost = sorted(row.lost for row in checks.truncated)
        yield Finding(
            level="note",
            kind="truncated",
            rows=len(checks.truncated),
            text=f"{_rows_have(checks.truncated)} more tokens than the {max_length} that are read, and lose "
            f"{lost[len(lost) // 2]:,} in the median, {lost[-1]:,} at most",
            advice="if the end of the text matters, read more of it: --set max_seq_length=256",
        )
