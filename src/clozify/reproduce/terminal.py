"""The paper's tables and figures in the terminal, and what they will cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.reproduce.render import explained, shown, title
from clozify.reproduce.results import Filled


def show_exhibit(console: Console, filled: Filled, files: list[Path]) -> None:
    """The rows and columns that have a number of ours, the notes, and where the files are."""
    exhibit = filled.exhibit
    lines = list(zip(exhibit.rows, filled.places, strict=True))
    columns = [n for n in range(len(exhibit.columns)) if any(places[n].ours is not None for _, places in lines)]
    grouped = any(row.group for row in exhibit.rows)
    table = Table(box=None, pad_edge=False)
    for head in exhibit.heads if grouped else exhibit.heads[1:]:
        table.add_column(Text(head), no_wrap=True)
    for number in columns:
        table.add_column(Text(exhibit.columns[number]), justify="right")
    before = None
    for row, places in lines:
        if all(place.ours is None for place in places):
            continue
        names = [row.group if row.group != before else "", row.name] if grouped else [row.name]
        before = row.group
        table.add_row(*(Text(text) for text in [*names, *(shown(places[n], spread=False) for n in columns)]))
    console.print(Text.assemble((title(filled), "bold"), f": {exhibit.caption}."), soft_wrap=True)
    if columns:
        console.print(table)
    for line in (explained(filled), *filled.notes):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Written: {', '.join(map(str, files))}"), soft_wrap=True)


def show_costs(console: Console, cost: dict[str, Any]) -> None:
    """What the cells will cost that were not run yet."""
    console.print(f"{cost['cells']} cells, of which {cost['done']} are there already.")
    if cost["members"]:
        console.print(f"{cost['members']:,} members, {cost['member_steps']:,} steps of fine-tuning in all.")
    if cost["rows_to_score"]:
        console.print(f"{cost['rows_to_score']:,} times a row to score.")
    if cost["classifiers"]:
        console.print(f"{cost['classifiers']:,} classifiers, {cost['classifier_steps']:,} steps in all.")
    if cost["pretraining_steps"]:
        console.print(f"{cost['pretraining_steps']:,} steps of in-domain pretraining.")
    minutes = cost["seconds"] / 60
    time_needed = f"{minutes / 60:,.1f} hours" if minutes > 90 else f"{minutes:,.0f} minutes"
    console.print(f"About {time_needed} on this machine and {cost['disk_mib']:,.0f} MiB on disk.")
    for note in cost["notes"]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
