"""What `clozify audit` prints: the data, a line for each kind of finding, then the first rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.report.format import percent
from clozify.report.terminal import show_warnings

if TYPE_CHECKING:  # these modules load PyTorch
    from clozify.inference.audit_records import AuditedData, AuditedRow, AuditResult, LabelError

MAX_ERRORS = {"labeled": 20, "test": 10}  # likely label errors that are printed
MAX_ROWS = 5  # rows or groups that are printed of another kind
MAX_LABELS = 15  # that are counted in one line
TEXT_WIDTH = 120
STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
NAMES = {"labeled": "labelled", "unlabeled": "unlabelled", "test": "test"}


def show_audit(console: Console, result: AuditResult) -> None:
    """Print the result of an audit."""
    console.print(Text.assemble(("Audit of ", "bold"), (result.task, "bold cyan")))
    table = Table(box=None, show_header=False, pad_edge=False)
    for data in result.data:
        table.add_row(Text(NAMES[data.data], style="dim"), Text(data.source), Text(_count(result, data)))
    console.print(Padding(table, (0, 0, 1, 2)))
    if result.findings:
        summary = Table(box=None, show_header=False, pad_edge=False)
        for finding in result.findings:
            line = Text.assemble(
                (finding.text[0].upper() + finding.text[1:], ""), (f". To do: {finding.advice}.", "dim")
            )
            summary.add_row(Text(finding.level, style=STYLES[finding.level]), line)
        console.print(summary)
    else:
        console.print(Text("Nothing was found.", style="green"))
    _show_unknown_labels(console, result)
    _show_label_errors(console, result)
    _show_duplicates(console, result)
    _show_rows(console, result)
    console.print()
    show_warnings(console, result.notes)
    _show_files(console, result)


def _count(result: AuditResult, data: AuditedData) -> str:
    """The number of rows, and of a few labels each one's."""
    rows = f"{data.rows:,} rows"
    if not data.labeled or len(result.labels) > MAX_LABELS:
        return rows
    counts = [(label.label, label.labeled if data.data == "labeled" else label.test or 0) for label in result.labels]
    return f"{rows}: " + ", ".join(f"{label} {count:,}" for label, count in counts)


def _show_heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _show_more(console: Console, count: int, shown: int, where: str) -> None:
    if count > shown:
        console.print(Text(f"... {count - shown:,} more; {where} has all.", style="dim"))


def _show_unknown_labels(console: Console, result: AuditResult) -> None:
    """Print the first rows with labels that the task does not have."""
    if not result.unknown_labels:
        return
    _show_heading(console, "Labels that the task does not have")
    table = _table("row", "label", "similar label", "text")
    for unknown in result.unknown_labels[:MAX_ROWS]:
        table.add_row(_name(unknown.row), _label(unknown.row), Text(unknown.suggestion or ""), _text(unknown.row))
    console.print(table)
    _show_more(console, len(result.unknown_labels), MAX_ROWS, "--json")


def _show_label_errors(console: Console, result: AuditResult) -> None:
    """Print the rows whose labels are likely wrong, the likeliest first."""
    for name, most in MAX_ERRORS.items():
        errors = [error for error in result.label_errors if error.row.data == name]
        if not errors:
            continue
        _show_heading(console, f"Labels of {NAMES[name]} rows that may be wrong, the likeliest first")
        _show_errors(console, errors[:most])
        _show_more(console, len(errors), most, (result.output if name == "labeled" else result.test_output) or "--json")


def _show_errors(console: Console, errors: Sequence[LabelError]) -> None:
    if errors[0].missing is not None:
        _show_label_set_errors(console, errors)
        return
    table = _table("row", "label", "likelier", "text")
    for error in errors:
        own = Text.assemble((error.row.label or "", ""), (f" {percent(error.label_probability, 0)}%", "dim"))
        likelier = Text.assemble((error.suggestion, "cyan"), (f" {percent(error.probability, 0)}%", "dim"))
        table.add_row(_name(error.row, with_set=False), own, likelier, _text(error.row))
    console.print(table)


def _show_label_set_errors(console: Console, errors: Sequence[LabelError]) -> None:
    """Print rows with missing or superfluous labels, each with its probability."""
    table = _table("row", "labels", "missing", "superfluous", "text")
    for error in errors:
        changes = [
            Text(", ").join(
                Text.assemble((label, "cyan"), (f" {percent(probability, 0)}%", "dim"))
                for label, probability in (labels or {}).items()
            )
            for labels in (error.missing, error.superfluous)
        ]
        table.add_row(_name(error.row, with_set=False), _label(error.row), *changes, _text(error.row))
    console.print(table)


def _show_duplicates(console: Console, result: AuditResult) -> None:
    """Print the first groups of rows with the same text: those with different labels and those in several sets."""
    if not result.duplicates:
        return
    _show_heading(console, "The same text more than once")
    table = _table("rows", "labels", "equal", "text")
    for group in result.duplicates[:MAX_ROWS]:
        names = Text("\n").join(_name(row) for row in group.rows[:MAX_ROWS])
        labels = Text("\n").join(_label(row) for row in group.rows[:MAX_ROWS])
        labels.stylize("red" if group.labels_differ else "")
        equal = "yes" if group.similarity == 1 else f"{percent(group.similarity, 0)}%"
        table.add_row(names, labels, equal, _text(group.rows[0]))
    console.print(table)
    _show_more(console, len(result.duplicates), MAX_ROWS, "--json")


def _show_rows(console: Console, result: AuditResult) -> None:
    """Print the first empty rows and rows of other languages."""
    if result.other_languages:
        _show_heading(console, "Rows in another language than " + ", ".join(result.languages))
        table = _table("row", "language", "text")
        for other in result.other_languages[:MAX_ROWS]:
            table.add_row(_name(other.row), f"{other.language} {percent(other.probability, 0)}%", _text(other.row))
        console.print(table)
        _show_more(console, len(result.other_languages), MAX_ROWS, "--json")
    if result.empty:
        _show_heading(console, "Rows without text")
        table = _table("row", "empty", "label", "text")
        for empty in result.empty[:MAX_ROWS]:
            table.add_row(_name(empty.row), Text(", ".join(empty.fields)), _label(empty.row), _text(empty.row))
        console.print(table)
        _show_more(console, len(result.empty), MAX_ROWS, "--json")


def _show_files(console: Console, result: AuditResult) -> None:
    """Print how to go on."""
    files = [("--labeled", result.output, "labelled"), ("--test", result.test_output, "test")]
    for option, path, name in files:
        if path is not None:
            console.print(
                Text(
                    f"All {name} rows are in {path}, those to look at first: correct the label column, and pass the "
                    f"file to {option}. Its columns audit_... are not read."
                )
            )
    if result.output is None and result.findings:
        console.print(Text("--output FILE writes the labelled rows with these findings to a file to correct."))


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _name(row: AuditedRow, with_set: bool = True) -> Text:
    """A row's id, else its number in the file."""
    name = f"{row.row:,}" if row.id is None else str(row.id)
    return Text(f"{NAMES[row.data]} {name}" if with_set else name)


def _label(row: AuditedRow) -> Text:
    return Text(row.label or "")


def _text(row: AuditedRow) -> Text:
    return Text(row.text if len(row.text) <= TEXT_WIDTH else row.text[:TEXT_WIDTH].rsplit(" ", 1)[0] + " ...")
