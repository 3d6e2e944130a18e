"""Prints a bench's table, and its cost before it is run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.bench import format as fmt
from clozify.bench.cost import BenchCost
from clozify.bench.run import BenchResult
from clozify.report.format import percent, rough_duration


def show_bench(console: Console, result: BenchResult) -> None:
    """Print the accuracy by data set and method, what failed, and where the page is."""
    summary = result.summary
    table = Table(box=None, pad_edge=False)
    for header in ("data", "rows a label", *summary.names):
        table.add_column(Text(header), justify="left" if header == "data" else "right")
    for block in summary.blocks:
        cells = []
        for name in summary.names:
            entry = summary.entry(block, name)
            cells.append(Text(fmt.accuracy(entry), style="bold" if entry is not None and entry.is_best else ""))
        table.add_row(Text(block.data), str(block.per_label), *cells)
    console.print(Text("accuracy in percent, mean over the draws"))
    console.print(table)
    for point in sorted(summary.points, key=lambda point: point.training_seconds):
        if point.on_training_frontier:
            line = f"{point.name}: {fmt.seconds(point.training_seconds)} of training, {percent(point.accuracy)}"
            console.print(Text(f"on the frontier  {line}"), soft_wrap=True)
    for failure in summary.failures:
        count = f"{len(failure.cells)} cell{'s' * (len(failure.cells) != 1)}"
        console.print(Text(f"failed  {failure.name}, {count}: {failure.reason} (see {failure.file})"), soft_wrap=True)
    if result.left:
        console.print(Text(f"Out of time: {result.left} cells are left; the same command runs them."), soft_wrap=True)
    console.print(Text(f"Written: {', '.join(map(str, result.files))}"), soft_wrap=True)


def show_cost(console: Console, cost: BenchCost) -> None:
    """Print the cells, the hours and the environments to be made."""
    console.print(f"{cost.cells} cell{'s' * (cost.cells != 1)}, {cost.done} of them done.")
    table = Table(box=None, pad_edge=False)
    for header in ("method", "cells", "hours", "by"):
        table.add_column(Text(header), justify="left" if header in ("method", "by") else "right")
    for line in cost.methods:
        table.add_row(Text(line.name), str(line.cells), f"{line.seconds / 3600:.2f}", Text(line.basis))
    if cost.methods:
        console.print(table)
    console.print(Text(f"About {rough_duration(cost.seconds)} on this machine, {cost.at_once} cells at a time."))
    for environment in cost.environments:
        console.print(Text(f"An environment will be made: {environment}"), soft_wrap=True)
    for note in cost.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
