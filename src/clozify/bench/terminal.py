"""Prints a bench's table, and its cost before it is run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.bench import format as fmt
from clozify.bench.cost import BenchCost
from clozify.bench.entries import Block
from clozify.bench.render import times_note
from clozify.bench.run import BenchResult
from clozify.bench.summary import Summary
from clozify.report.format import percent, rough_duration


def show_bench(console: Console, result: BenchResult) -> None:
    """Print the accuracy by data set and method, what failed, and where the page is."""
    summary = result.summary
    if summary.cells:
        console.print(Text("accuracy in percent, mean over the draws"))
        for part in accuracy_tables(console, summary):
            console.print(part)
    for point in sorted(summary.points, key=lambda point: point.training_seconds):
        if point.on_training_frontier:
            line = f"{point.name}: {fmt.seconds(point.training_seconds)} of training, {percent(point.accuracy)}"
            console.print(Text(f"on the frontier  {line}"), soft_wrap=True)
    if note := times_note(summary):
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for failure in summary.failures:
        count = f"{len(failure.cells)} cell{'s' * (len(failure.cells) != 1)}"
        console.print(Text(f"failed  {failure.name}, {count}: {failure.reason} (see {failure.file})"), soft_wrap=True)
    if result.left:
        left = "1 cell is" if result.left == 1 else f"{result.left} cells are"
        console.print(Text(f"Out of time: {left} left; the same command goes on."), soft_wrap=True)
    if result.files:
        console.print(Text(f"Written: {', '.join(map(str, result.files))}"), soft_wrap=True)


def accuracy_tables(console: Console, summary: Summary) -> list[Table | Text]:
    """The accuracies in the first layout that is not wider than the terminal.

    A line for each data set; else a line for each method; else, for each data set, its name and a table with a line for
    each method.
    """
    headers = [f"{block.data}\n{block.per_label} a label" for block in summary.blocks]
    by_method = _method_lines(summary, summary.blocks, headers)
    for table in (_block_lines(summary), by_method):
        if console.measure(table, options=console.options.update(width=100_000)).maximum <= console.width:
            return [table]
    parts: list[Table | Text] = []
    for data in dict.fromkeys(block.data for block in summary.blocks):
        blocks = [block for block in summary.blocks if block.data == data]
        table = _method_lines(summary, blocks, [f"{block.per_label} a label" for block in blocks])
        parts += [Text(f"\n{data}", style="bold"), table]
    return parts


def _block_lines(summary: Summary) -> Table:
    """A line for each data set and number of rows, a column for each method."""
    table = Table(box=None, pad_edge=False)
    for header in ("data", "rows a label", *summary.names):
        table.add_column(Text(header), justify="left" if header == "data" else "right")
    for block in summary.blocks:
        cells = [_accuracy(summary, block, name) for name in summary.names]
        table.add_row(Text(block.data), str(block.per_label), *cells)
    return table


def _method_lines(summary: Summary, blocks: Sequence[Block], headers: Sequence[str]) -> Table:
    """A line for each method, a column for each of the blocks; a long name is folded, not cut."""
    table = Table(box=None, pad_edge=False)
    longest_word = max((len(word) for name in summary.names for word in name.split()), default=0)
    table.add_column("method", overflow="fold", min_width=longest_word)
    for header in headers:
        table.add_column(Text(header), justify="right", overflow="fold")
    for name in summary.names:
        table.add_row(Text(name), *(_accuracy(summary, block, name) for block in blocks))
    return table


def _accuracy(summary: Summary, block: Block, name: str) -> Text:
    """An entry's accuracy, bold if it is the best, and with a remark where it has fewer draws than others."""
    entry = summary.entry(block, name)
    remark = f" ({entry.draws_note})" if entry is not None and entry.draws_note else ""
    return Text(fmt.accuracy(entry) + remark, style="bold" if entry is not None and entry.is_best else "")


def show_cost(console: Console, cost: BenchCost) -> None:
    """Print the cells, their time and the environments to be made."""
    console.print(f"{cost.cells} cell{'s' * (cost.cells != 1)}, {cost.done} of them done.")
    table = Table(box=None, pad_edge=False)
    for header in ("method", "cells", "time", "by"):
        table.add_column(Text(header), justify="left" if header in ("method", "by") else "right")
    for line in cost.methods:
        table.add_row(Text(line.name), str(line.cells), rough_duration(line.seconds), Text(line.basis))
    if cost.methods:
        console.print(table)
        at_a_time = "one cell" if cost.at_once == 1 else f"{cost.at_once} cells"
        console.print(Text(f"About {rough_duration(cost.seconds)} on this machine, {at_a_time} at a time."))
    for environment in cost.environments:
        console.print(Text(f"An environment will be made: {environment}"), soft_wrap=True)
    for note in cost.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
