"""What `clozify check` prints: a page, however many labels there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.errors import quoted
from clozify.report.format import percent
from clozify.report.terminal import show_warnings

if TYPE_CHECKING:  # it loads PyTorch
    from clozify.inference.check import LabelCheck, PairWords, PatternCheck, TaskCheck

MANY_LABELS = 15  # more of them are printed in short
WEAK_LABELS = 10  # of many labels, those are printed that are recognised least


def show_check(console: Console, result: TaskCheck) -> None:
    """Print a task, its words' tokens, each pattern as the model reads it, the labels, and the problems."""
    many = len(result.labels) > MANY_LABELS
    labels = f"{len(result.labels)} labels" + ("" if many else f": {', '.join(result.labels)}")
    console.print(Text.assemble(("Task ", "bold"), (result.task, "bold cyan"), f": {result.description}"))
    console.print(
        Text(f"Fields: {', '.join(result.fields)}. {labels}. Metric: {result.metric}. Model: {result.model}.")
    )
    if result.rows is not None:
        console.print(Text(f"Data: {result.data}, {result.rows:,} rows{_rows_per_label(result, many)}."))
    words = [[pair.model_copy(update={"pair": ""}) for pair in pattern.pairs] for pattern in result.patterns]
    same_words = all(pairs == words[0] for pairs in words)
    if same_words and words:
        _show_tokens(console, words[0], "words", many)
    for index, pattern in enumerate(result.patterns, start=1):
        console.print()
        console.print(Text.assemble((f"Pattern {index}  ", "bold"), (pattern.pattern, "cyan")))
        if not same_words:
            _show_tokens(console, pattern.pairs, "words of this pattern", many)
        _show_pattern(console, result, pattern)
    console.print()
    if result.label_checks:
        _show_labels(console, result.label_checks, many)
    show_warnings(console, result.warnings)
    if result.problems:
        for problem in result.problems:
            console.print(Text.assemble(("problem: ", "bold red"), problem))
    elif result.warnings:
        count = len(result.warnings)
        console.print(Text(f"The task can be used; see the note{'s' if count > 1 else ''} above.", style="yellow"))
    else:
        console.print(Text("No problems found.", style="green"))


def _rows_per_label(result: TaskCheck, many: bool) -> str:
    """How many rows each label has; of many labels, the smallest and the largest number."""
    counts = result.rows_per_label
    if not counts:
        return ""
    if not many:
        return ": " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
    low, high = min(counts.values()), max(counts.values())
    rows = f": {low:,} of each label" if low == high else f": {low:,} to {high:,} of a label"
    missing = [name for name, count in counts.items() if not count]
    return rows + (f", none of {quoted(missing, 5)}" if missing else "")


def _show_pattern(console: Console, result: TaskCheck, pattern: PatternCheck) -> None:
    """Print a pattern's rows, its pairs' answers and accuracies, and the model's own words."""
    for row, label in zip_longest(pattern.rows, result.first_labels):
        _show_detail(console, "the model reads", _excerpt(row.read_as, result.mask))
        for pair, answer in zip(pattern.pairs, row.answers, strict=True):
            likeliest = sorted(answer.items(), key=lambda item: -item[1])[:3]
            probabilities = ", ".join(f"{name} {percent(probability)}%" for name, probability in likeliest)
            truth = f" (true label: {label})" if label else ""
            _show_detail(console, f"the model answers{_verbalizer_name(pair)}", probabilities + truth)
    for pair, accuracy in zip(pattern.pairs, pattern.accuracies or (), strict=False):
        compared = f"{percent(accuracy)} on {result.scored_rows:,} labelled rows"
        compared += f"; always the most frequent label: {percent(result.majority)}"
        name = "accuracy before training" + (", calibrated" if result.calibrated else "")
        _show_detail(console, name + _verbalizer_name(pair), compared)
    _show_detail(console, "likeliest words of all", ", ".join(pattern.own_answers))


def _show_labels(console: Console, labels: Sequence[LabelCheck], many: bool) -> None:
    """Print how well labels are recognised before training, and words that tell them from the others."""
    scored = sorted(
        (label for label in labels if label.accuracy is not None), key=lambda label: (label.accuracy, -label.rows)
    )
    title = f"the {WEAK_LABELS} labels that are recognised least" if many else "label"
    table = Table(title, "right", "mistaken for", "words that tell it from the others", box=None, pad_edge=False)
    for label in scored[:WEAK_LABELS] if many else labels:
        right = "no rows" if label.accuracy is None else f"{percent(label.accuracy, 0)}%"
        table.add_row(Text(label.label), right, Text(label.confused_with or ""), Text(", ".join(label.words)))
    console.print(table)
    console.print()


def _show_detail(console: Console, name: str, text: str) -> None:
    console.print(Padding(Text.assemble((f"{name}  ", "dim"), text), (0, 0, 0, 2), expand=False))


def _verbalizer_name(pair: PairWords) -> str:
    return f" ({pair.verbalizer})" if pair.verbalizer else ""


def _show_tokens(console: Console, pairs: Sequence[PairWords], name: str, many: bool) -> None:
    """Print every word's tokens: those of many labels in columns."""
    for pair in pairs:
        if not many:
            words = (
                f"{label} = " + " | ".join(" + ".join(word.tokens) for word in words)
                for label, words in pair.words.items()
            )
            _show_detail(console, name + _verbalizer_name(pair), ", ".join(words))
            continue
        _show_detail(console, f"{name} in the model's tokens{_verbalizer_name(pair)}", "")
        lines = [
            Text.assemble((f"{label} ", "dim"), " | ".join(" ".join(word.tokens) for word in words))
            for label, words in pair.words.items()
        ]
        console.print(Padding(Columns(lines, padding=(0, 2), column_first=True), (0, 0, 0, 2)))


def _excerpt(text: str, mask: str, length: int = 400) -> str:
    """The part of a long text around the mask."""
    if len(text) <= length:
        return text
    start = max(0, min(text.find(mask) - length // 2, len(text) - length))
    return ("... " if start else "") + text[start : start + length] + (" ..." if start + length < len(text) else "")
