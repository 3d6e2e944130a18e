"""Prints a reproduced table or figure, and the estimated cost of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.report.format import rough_duration
from clozify.reproduce.cost import TableCost
from clozify.reproduce.render import format_cell, legend, row_headers, title
from clozify.reproduce.results import FilledTable


def show_table(console: Console, filled: FilledTable, files: Sequence[Path]) -> None:
    """Print the rows and columns that have a value, the notes, and the files."""
    spec = filled.spec
    columns = [n for n in range(len(spec.columns)) if any(cells[n].value is not None for cells in filled.cells)]
    headers = row_headers(filled)
    table = Table(box=None, pad_edge=False)
    for header in headers:
        table.add_column(Text(header), no_wrap=True)
    for column in columns:
        table.add_column(Text(spec.columns[column]), justify="right")
    previous_group = None
    for row, cells in zip(spec.rows, filled.cells, strict=True):
        if all(cell.value is None for cell in cells):
            continue
        names = [row.group if row.group != previous_group else "", row.name][-len(headers) :]
        previous_group = row.group
        values = [format_cell(cells[column], with_std=False) for column in columns]
        table.add_row(*map(Text, [*names, *values]))
    console.print(Text.assemble((title(filled), "bold"), f": {spec.caption}."), soft_wrap=True)
    if columns:
        console.print(table)
    for line in (legend(filled), *filled.notes):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Written: {', '.join(map(str, files))}"), soft_wrap=True)


def show_cost(console: Console, cost: TableCost) -> None:
    """Print what the cells without a result will cost."""
    console.print(f"{cost.cells} cells, {cost.done} of them done.")
    if cost.members:
        console.print(f"{cost.members:,} members, {cost.member_steps:,} fine-tuning steps in total.")
    if cost.rows_to_score:
        console.print(f"{cost.rows_to_score:,} rows to score, counted once for each member.")
    if cost.classifiers:
        console.print(f"{cost.classifiers:,} classifiers, {cost.classifier_steps:,} training steps in total.")
    if cost.pretraining_steps:
        console.print(f"{cost.pretraining_steps:,} steps of in-domain pretraining.")
    console.print(f"About {rough_duration(cost.seconds)} on this machine and {cost.disk_mib:,.0f} MiB on disk.")
    for note in cost.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
