"""Prints the scores of finished runs, for `clozify train` and `clozify report`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.metrics import Evaluation
from clozify.report.compare import Comparison
from clozify.report.format import percent
from clozify.runs.metrics import ClassifierMetrics, MembersMetrics, Metrics, UnsupervisedMetrics


def metrics_table(title: str) -> Table:
    """An empty table with the columns accuracy and macro-F1."""
    table = Table(box=None, pad_edge=False)
    table.add_column(title)
    table.add_column("accuracy", justify="right")
    table.add_column("macro-F1", justify="right")
    return table


def show_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print warnings, one a line."""
    for warning in warnings:
        console.print(Text.assemble(("note: ", "yellow"), warning))


def show_run(console: Console, metrics: Metrics) -> None:
    """Print a run's scores on the test rows, from the untrained patterns to the classifier."""
    table = metrics_table("on the test rows")
    for generation in metrics.generations or []:
        if generation.accuracy is not None and generation.macro_f1 is not None:
            name = f"generation {generation.generation}, mean ({generation.training_rows:,} rows per member)"
            table.add_row(name, percent(generation.accuracy), percent(generation.macro_f1))
    _add_row(table, "patterns before training, mean", metrics.unsupervised)
    _add_row(table, "trained patterns, mean", metrics.members)
    if metrics.members is not None:
        table.add_row(
            "  worst and best pattern", f"{percent(metrics.members.min)} - {percent(metrics.members.max)}", ""
        )
    _add_row(table, "ensemble", metrics.ensemble)
    _add_row(table, f"classifier ({'iPET' if metrics.method == 'ipet' else 'PET'})", metrics.classifier)
    _add_row(table, "supervised baseline", metrics.supervised)
    _add_row(table, "UDA", metrics.uda)
    _add_row(table, "MixText", metrics.mixtext)
    if table.row_count:
        console.print(table)
    else:
        console.print(Text("There are no scores: the run had no test rows (--test)."))
    for baseline in (metrics.uda, metrics.mixtext):
        if baseline is not None:
            _show_semi_supervised(console, baseline)
    for classifier in (metrics.classifier, metrics.supervised, metrics.uda, metrics.mixtext):
        if classifier is not None and classifier.dev_each:
            best = ", ".join(map(percent, classifier.dev_each))
            console.print(Text(f"On the development rows, the best score of each training: {best}."))
    show_warnings(console, metrics.warnings)


def _add_row(
    table: Table, name: str, metrics: UnsupervisedMetrics | MembersMetrics | Evaluation | ClassifierMetrics | None
) -> None:
    if metrics is None or metrics.accuracy is None:
        return
    accuracy, macro_f1 = percent(metrics.accuracy), percent(metrics.macro_f1)
    if isinstance(metrics, ClassifierMetrics):
        accuracy += _plus_minus(metrics.accuracy_std)
        macro_f1 += _plus_minus(metrics.macro_f1_std)
        name += f", {metrics.chosen.upper()}" if metrics.chosen else ""
    table.add_row(name, accuracy, macro_f1)


def _plus_minus(std: float | None) -> str:
    return f" ±{percent(std)}" if std else ""


def _show_semi_supervised(console: Console, metrics: ClassifierMetrics) -> None:
    """Print how UDA's or MixText's texts were augmented, and whether the test rows chose the number of steps."""
    console.print(
        Text(f"Augmented text: {metrics.augmentation}; {metrics.unlabeled_rows:,} unlabelled rows were used.")
    )
    if metrics.layers:
        console.print(Text(f"Hidden states were mixed after layer {' or '.join(map(str, metrics.layers))}."))
    if metrics.chosen and metrics.tried:
        console.print(
            Text(
                f"{metrics.steps:,} steps are {metrics.chosen}, of {', '.join(metrics.tried)}: expect lower scores on "
                "new rows."
            )
        )


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print several runs, one a line."""
    table = Table("run", "method", box=None, pad_edge=False)
    for name in ("labelled", "accuracy", "macro-F1", "against the first"):
        table.add_column(name, justify="right")
    for run in comparison.runs:
        accuracy, macro_f1 = "", ""
        if run.main is not None:
            accuracy = percent(run.main.accuracy) + _plus_minus(run.main.accuracy_std)
            macro_f1 = percent(run.main.macro_f1) + _plus_minus(run.main.macro_f1_std)
        difference = "" if run.difference is None else f"{100 * run.difference:+.1f}"
        table.add_row(Text(run.run), run.method, f"{run.labelled:,}", accuracy, macro_f1, difference)
    console.print(table)
    show_warnings(console, comparison.notes)
