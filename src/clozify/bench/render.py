"""A bench as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clozify import __version__
from clozify.bench import format as fmt
from clozify.bench.entries import Block
from clozify.bench.published import published_tables
from clozify.bench.summary import Summary
from clozify.report.format import percent

CONTEXT = (
    "Figures that others have published, as context: other models, other rows, other machines. They are not compared "
    "with the measured cells."
)


def markdown(summary: Summary) -> str:
    """A page of Markdown."""
    lines = ["# Bench", "", *intro(summary), ""]
    lines += ["## Accuracy", "", *accuracy_table(summary), ""]
    for block in summary.blocks:
        lines += [f"### {block.data}, {block.per_label} rows a label", "", summary.block_rows(block).text, ""]
        lines += [*block_table(summary, block), ""]
    if summary.points:
        lines += ["## Over all data sets", "", *points_table(summary), ""]
    lines += ["## What was run", "", *run_lines(summary), ""]
    if summary.failures:
        lines += ["## Failed", ""]
        for failure in summary.failures:
            cells = "; ".join(failure.cells)
            lines += [f"- {failure.name}, {cells}: {failure.reason} (`{failure.file}`)", ""]
            lines += [f"      {line}" for line in failure.log.splitlines()]
            lines.append("")
    lines += ["## Published figures", "", CONTEXT, ""]
    for table in published_tables():
        lines += [f"### {table.title}", "", table.note, "", *table_lines([table.header, *table.lines()]), ""]
        lines += [f"Source: {table.source}", ""]
    return "\n".join(lines).rstrip() + "\n"


def intro(summary: Summary) -> list[str]:
    """How to read the tables, in sentences."""
    lines = [
        "Every method had the same labelled rows, the same unlabelled rows where it can use them, the same test rows "
        "and, where it has one, the same encoder unless another is named; none had a development set. Accuracy and "
        "macro-F1 are in percent, with 95% intervals over the draws (Student's t)."
    ]
    if summary.reference:
        lines += ["", f"Differences are in points of accuracy from {summary.reference} on the same draws."]
    if note := times_note(summary):
        lines += ["", note]
    return lines


def times_note(summary: Summary) -> str:
    """What times cannot be compared for: cells ran at a time, or on several machines; empty where they can."""
    sentences = []
    if summary.at_once > 1:
        sentences.append(
            f"Up to {summary.at_once} cells ran at a time on a device, so times are longer than alone and comparable "
            "only roughly."
        )
    if len(summary.machines) > 1:
        sentences.append(
            f"Cells ran on {len(summary.machines)} machines ({'; '.join(summary.machines)}), so their times and "
            "speeds are not comparable; results.json names the machine of each draw."
        )
    return " ".join(sentences)


def accuracy_table(summary: Summary) -> list[str]:
    """Accuracy by data set and method."""
    rows = [["data", "rows a label", *summary.names]]
    for block in summary.blocks:
        cells = []
        for name in summary.names:
            entry = summary.entry(block, name)
            text = fmt.accuracy(entry)
            if entry is not None and entry.accuracy is not None:
                details = "; ".join(filter(None, [fmt.interval(entry.accuracy), entry.draws_note]))
                text = f"{text} ({details})" if details else text
            cells.append(f"**{text}**" if entry is not None and entry.is_best else text)
        rows.append([block.data, str(block.per_label), *cells])
    return table_lines(rows, left=1)


def block_table(summary: Summary, block: Block) -> list[str]:
    """All that was measured in a block."""
    header = ["method", "draws", "accuracy", "interval", "macro-F1", f"from {summary.reference}", "training", "rows/s"]
    rows = [[*header, "memory", "on disk"]]
    for entry in summary.block_entries(block):
        if entry.accuracy is None or entry.macro_f1 is None:
            rows.append([entry.name, str(entry.failures), fmt.FAILED, *[""] * 7])
            continue
        failed = f" ({entry.failures} failed)" if entry.failures else ""
        memory = fmt.mib(entry.memory_bytes)
        rows.append(
            [
                entry.name,
                f"{entry.accuracy.draws}{failed}",
                fmt.accuracy(entry),
                fmt.interval(entry.accuracy),
                " ".join(filter(None, [percent(entry.macro_f1.mean), _in_brackets(fmt.interval(entry.macro_f1))])),
                fmt.difference(entry.difference),
                fmt.seconds(entry.training_seconds),
                fmt.speed(entry.rows_per_second),
                memory if entry.gpu_bytes is None else f"{memory}, GPU {fmt.mib(entry.gpu_bytes)}",
                fmt.mib(entry.size_bytes),
            ]
        )
    return table_lines(rows, left=1)


def _in_brackets(text: str) -> str:
    return f"({text})" if text else ""


def points_table(summary: Summary) -> list[str]:
    """The methods over all blocks in which each has a result."""
    sizes = summary.rank_sizes
    header = ["mean accuracy", "mean rank", *(f"at {size} a label" for size in sizes), "ranks", "training", "rows/s"]
    rows = [["method", *header, "on the frontier of"]]
    for point in sorted(summary.points, key=lambda point: point.rank.mean):
        rank = point.rank
        on = [
            name for name, yes in (("training", point.on_training_frontier), ("speed", point.on_speed_frontier)) if yes
        ]
        means = [f"{mean:.1f}" for mean in (rank.mean, *(point.rank_by_size[size] for size in sizes))]
        row = [point.name, percent(point.accuracy), *means, f"{rank.best:g} to {rank.worst:g}"]
        rows.append([*row, fmt.seconds(point.training_seconds), fmt.speed(point.rows_per_second), ", ".join(on)])
    note = (
        f"Over {summary.complete_blocks} block{'s' * (summary.complete_blocks != 1)} (a data set with a number of rows "
        "a label) in which all of these methods have results, on the draws that all of them have; times and speeds are "
        "geometric means. On a frontier, no other method is both more accurate and faster."
    )
    return [note, "", *table_lines(rows, left=1)]


def run_lines(summary: Summary) -> list[str]:
    """What was run: machine, data, methods with their versions, commands."""
    lines = [f"- clozify {__version__}", *(f"- Machine: {machine}" for machine in summary.machines)]
    for data in summary.data_sets:
        notes = "".join(f" {note}" for note in data.notes)
        source = f" ({data.test.rstrip('.')})" if data.test else ""
        lines.append(f"- Data: {data.name}, {data.labels} labels, {data.test_rows:,} test rows{source}.{notes}")
    for method in summary.methods:
        model = f", model {method.model}" if method.model else ""
        recipe = f", recipe {method.recipe}" if method.recipe else ""
        length = f", {method.max_length} tokens" if method.max_length else ""
        unlabeled = f", unlabelled rows: {method.unlabeled}"
        versions = ", ".join(f"{name} {version}" for name, version in method.versions.items())
        lines.append(
            f"- {method.name}: {method.settings}{model}{recipe}{length}{unlabeled}"
            + (f" ({versions})" if versions else "")
        )
    return [
        *lines,
        "",
        "The commands, which give the same draws again:",
        "",
        *(f"    {line}" for line in summary.commands),
    ]


def table_lines(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table of Markdown; the first row is the header, and the first `left` columns are text."""
    header, *body = rows
    ruler = ["---"] * left + ["---:"] * (len(header) - left)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, ruler, *body)]


def to_json(summary: Summary) -> dict[str, Any]:
    """The measured results for programs; published figures are apart, under `published`."""
    content = {"clozify": __version__} | asdict(summary)
    content["published"] = [table.model_dump() for table in published_tables()]
    return content
