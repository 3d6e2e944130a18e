"""Prints the scores of finished runs, for `clozify train` and `clozify report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozify.metrics import BasicMetrics, GroupMetrics, wilson_interval
from clozify.report.format import percent
from clozify.report.scores import TFIDF_NAME, majority_name
from clozify.runs.metrics import (
    AccuracyMetrics,
    ClassifierMetrics,
    Generation,
    MembersMetrics,
    Metrics,
    TeacherMetrics,
    UnsupervisedMetrics,
)

if TYPE_CHECKING:  # they load PyTorch
    from clozify.report.compare import ComparedRun, Comparison
    from clozify.report.findings import Findings

SHOWN_ERRORS = 3
SHOWN_TEACHERS = 30
SHOWN_PAIRS = 5  # of labels that are confused, where there are many labels
ERROR_CHARACTERS = 100  # of a row's text

_Scores = BasicMetrics | UnsupervisedMetrics | MembersMetrics | Generation | ClassifierMetrics


def metrics_table(title: str, with_interval: bool = False, with_micro_f1: bool = False) -> Table:
    """An empty table with the columns accuracy and macro-F1, with the accuracy's confidence interval between them.

    With several labels a row, the accuracy is called exact match, and micro-F1 is the last column.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column(title)
    table.add_column("exact match" if with_micro_f1 else "accuracy", justify="right")
    if with_interval:
        table.add_column("95% interval", justify="right")
    table.add_column("macro-F1", justify="right")
    if with_micro_f1:
        table.add_column("micro-F1", justify="right")
    return table


def show_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print warnings, one a line; one that occurs several times once, with a count."""
    for warning, count in Counter(warnings).items():
        times = f" ({count} times)" if count > 1 else ""
        console.print(Text.assemble(("note: ", "yellow"), warning, times))


def show_run(console: Console, metrics: Metrics, with_warnings: bool = True) -> None:
    """Print a run's scores on the test rows, from the untrained patterns to the classifier, and trivial baselines."""
    rows = metrics.rows.get("test", 0)
    table = _RunTable(rows, metrics.thresholds is not None)
    for generation in metrics.generations or []:
        name = f"generation {generation.generation}, mean ({generation.training_rows:,} rows per member)"
        table.add(name, generation)
    table.add("patterns before training, mean", metrics.unsupervised)
    table.add("trained patterns, mean", metrics.members)
    if metrics.members is not None:
        worst_and_best = f"{percent(metrics.members.min)} - {percent(metrics.members.max)}"
        table.table.add_row("  worst and best pattern", worst_and_best, "", "")
    table.add("ensemble", metrics.ensemble)
    table.add(f"classifier ({'iPET' if metrics.method == 'ipet' else 'PET'})", metrics.classifier)
    table.add("static classifier", metrics.static)
    table.add("supervised baseline", metrics.supervised)
    table.add("UDA", metrics.uda)
    table.add("MixText", metrics.mixtext)
    if table.table.row_count:
        if metrics.trivial is not None:
            table.add(TFIDF_NAME, metrics.trivial.tfidf)
            table.add(majority_name(metrics.trivial.majority_label), metrics.trivial.majority)
        console.print(table.table)
        show_groups(console, None if metrics.result is None else metrics.result.groups)
    else:
        console.print(Text("There are no scores: the run had no test rows (--test)."))
    if metrics.estimate is not None:
        console.print(Text(estimate_sentence(metrics.estimate)))
    if metrics.teachers:
        _show_teachers(console, metrics.teachers)
    for baseline in (metrics.uda, metrics.mixtext):
        if baseline is not None:
            _show_semi_supervised(console, baseline)
    for classifier in (metrics.classifier, metrics.supervised, metrics.uda, metrics.mixtext):
        if classifier is not None and classifier.dev_each:
            best = ", ".join(map(percent, classifier.dev_each))
            console.print(Text(f"On the development rows, the best score of each training: {best}."))
    if with_warnings:
        show_warnings(console, metrics.warnings)


def _show_teachers(console: Console, teachers: Sequence[TeacherMetrics]) -> None:
    """Print every teacher of a run that has others than patterns."""
    table = Table("teacher", box=None, pad_edge=False)
    for name in ("weight", "accuracy (est.)", "on labelled", "coverage", "conflicts", "gain on test"):
        table.add_column(name, justify="right")
    for teacher in teachers[:SHOWN_TEACHERS]:
        table.add_row(
            Text(teacher.name),
            f"{teacher.weight:.2f}",
            percent(teacher.estimated_accuracy),
            f"{teacher.correct_on_labeled} of {teacher.votes_on_labeled}" if teacher.votes_on_labeled else "",
            "" if teacher.coverage is None else percent(teacher.coverage),
            "" if teacher.conflicts is None else percent(teacher.conflicts),
            "" if teacher.gain is None else f"{100 * teacher.gain:+.1f}",
        )
    console.print(table)
    if len(teachers) > SHOWN_TEACHERS:
        console.print(Text(f"{len(teachers) - SHOWN_TEACHERS} more teachers are in the report."))


def show_groups(console: Console, groups: GroupMetrics | None) -> None:
    """Print the accuracy of the groups, and how many errors leave the group; nothing where the task has none."""
    if groups is not None:
        console.print(
            Text(
                f"Groups: accuracy {percent(groups.accuracy)}, macro-F1 {percent(groups.macro_f1)}; "
                f"{groups.errors_across:,} of {groups.errors:,} errors leave the group of the true label."
            )
        )


def estimate_sentence(estimate: AccuracyMetrics) -> str:
    """The estimated accuracy with its interval, and what it comes from; of several labels a row, micro-F1 first."""

    def text(value: float, low: float, high: float) -> str:
        return f"{percent(value)} (95% interval {percent(low)} to {percent(high)})"

    several = estimate.micro_f1 is not None
    exact_match = f"; exact match {text(estimate.accuracy, estimate.low, estimate.high)}" if several else ""
    return (
        f"Estimated {'micro-F1' if several else 'accuracy'}, from the {estimate.rows:,} labelled rows alone: "
        f"{text(*estimate.main)}{exact_match}."
    )


class _RunTable:
    """The table of a run's scores on `rows` test rows."""

    def __init__(self, rows: int, multilabel: bool = False) -> None:
        self.rows = rows
        self.multilabel = multilabel
        self.table = metrics_table(f"on {rows:,} test rows", with_interval=True, with_micro_f1=multilabel)

    def add(self, name: str, metrics: _Scores | None) -> None:
        """Add a line, unless there are no scores."""
        if metrics is None or metrics.accuracy is None:
            return
        accuracy, macro_f1 = percent(metrics.accuracy), percent(metrics.macro_f1)
        if isinstance(metrics, ClassifierMetrics):
            accuracy += _plus_minus(metrics.accuracy_std)
            macro_f1 += _plus_minus(metrics.macro_f1_std)
            name += f", {metrics.chosen.upper()}" if metrics.chosen else ""
        interval = " - ".join(map(percent, wilson_interval(metrics.accuracy, self.rows)))
        micro_f1 = [percent(metrics.micro_f1)] if self.multilabel and metrics.micro_f1 is not None else []
        if micro_f1 and isinstance(metrics, ClassifierMetrics):
            micro_f1[0] += _plus_minus(metrics.micro_f1_std)
        self.table.add_row(Text(name), accuracy, interval, macro_f1, *micro_f1)


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


def show_findings(console: Console, findings: Findings) -> None:
    """Print the most confident errors and what to do next."""
    wrong = findings.wrong
    if wrong is not None and wrong.rows:
        console.print(Text(f"The most confident of {wrong.total:,} errors:"))
        for row in wrong.rows[:SHOWN_ERRORS]:
            text = " ".join(" ".join(row.texts).split())[:ERROR_CHARACTERS]
            console.print(Text(f"  {row.true}, predicted {row.predicted} with {percent(row.probability, 0)}%: {text}"))
    confusion = findings.confusion
    if confusion is not None and confusion.matrix is None and confusion.worst:
        console.print(Text("Most often confused:"))
        for pair in confusion.worst[:SHOWN_PAIRS]:
            console.print(Text(f"  {pair.true}, predicted as {pair.predicted}: {pair.rows} of {pair.total} rows"))
    if findings.steps:
        console.print(Text("What to do next:"))
        for step in findings.steps:
            console.print(Text(f"- {step.replace('`', '')}"))


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print several runs, one a line, and for each whether its difference to the first may be chance."""
    table = Table("run", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for name in ("labelled", "accuracy", "macro-F1", "against the first"):
        table.add_column(name, justify="right")
    for run in comparison.runs:
        table.add_row(Text(run.run), Text(run.method), f"{run.labelled:,}", *_compared_scores(run))
    console.print(table)
    below = "Below each number its 95% interval."
    if any(run.main is None and run.estimate is not None for run in comparison.runs):
        below += " (est.): estimated from the labelled rows alone, since the run has no test rows."
    console.print(Text(below))
    for run in comparison.runs:
        if run.sentence is not None:
            console.print(Text(run.sentence))
    show_warnings(console, comparison.notes)


def _compared_scores(run: ComparedRun) -> tuple[str, str, str]:
    """Accuracy, macro-F1 and the difference to the first run, each with its interval below it."""
    if run.main is None:
        if run.estimate is None:
            return "", "", ""
        estimate = f"{percent(run.estimate.accuracy)} (est.)"
        return _with_interval(estimate, (run.estimate.low, run.estimate.high)), "", ""
    accuracy = percent(run.main.accuracy) + _plus_minus(run.main.accuracy_std)
    macro_f1 = percent(run.main.macro_f1) + _plus_minus(run.main.macro_f1_std)
    difference = "" if run.difference is None else f"{100 * run.difference:+.1f}"
    if run.paired is not None:
        low, high = run.paired.micro_f1_interval or (run.paired.low, run.paired.high)
        difference += f"\n{100 * low:+.1f} to {100 * high:+.1f}"
    return (
        _with_interval(accuracy, run.main.interval),
        _with_interval(macro_f1, run.main.macro_f1_interval),
        difference,
    )


def _with_interval(number: str, interval: tuple[float, float] | None) -> str:
    return number if interval is None else f"{number}\n{percent(interval[0])} to {percent(interval[1])}"
