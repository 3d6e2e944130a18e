"""What `clozify check` prints: a page, however many labels there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.cli.tables import MANY_LABELS
from clozify.config.label_names import name_to_words
from clozify.errors import quoted
from clozify.report.format import percent
from clozify.report.terminal import show_warnings

if TYPE_CHECKING:  # it loads PyTorch
    from clozify.inference.check import PairWords, PatternCheck, TaskCheck
    from clozify.inference.check_rules import RuleCheck, RulesCheck

MAX_RULES = 15  # that are printed; of more, those to look at first
WEAK_LABELS = 10  # of many labels, those are printed that are recognised least


def show_check(console: Console, result: TaskCheck) -> None:
    """Print a task, its words' tokens, each pattern as the model reads it, the labels, and the problems."""
    many = len(result.labels) > MANY_LABELS
    labels = f"{len(result.labels)} labels" + ("" if many else f": {', '.join(result.labels)}")
    description = f": {result.description}" if result.description else ""
    console.print(Text.assemble(("Task ", "bold"), (result.task, "bold cyan"), description))
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
        _show_labels(console, result, many)
    if result.rules is not None:
        _show_rules(console, result.rules)
    if result.teachers:
        names = ", ".join(f"{teacher.name} ({teacher.kind})" for teacher in result.teachers)
        console.print(Text(f"Other teachers, which zero-shot and train ask: {names}."))
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
        _show_detail(console, f"accuracy before training{_verbalizer_name(pair)}", percent(accuracy))
    if len(result.labels) <= MANY_LABELS or not result.label_checks:
        _show_detail(console, "likeliest words of all", ", ".join(pattern.own_answers))


def _show_labels(console: Console, result: TaskCheck, many: bool) -> None:
    """Print how well labels are recognised before training, and words that tell them from the others."""
    calibrated = "calibrated, " if result.calibrated else ""
    baseline = f"always the most frequent label would be {percent(result.majority)}"
    console.print(Text(f"Accuracies are {calibrated}on {result.scored_rows:,} labelled rows; {baseline}."))
    labels = result.label_checks
    if many:
        scored = [label for label in labels if label.accuracy is not None]
        labels = sorted(scored, key=lambda label: label.accuracy or 0)[:WEAK_LABELS]
        console.print(Text(f"The {len(labels)} labels that are recognised least:"))
    table = Table("label", "right", "mistaken for", "words that tell it from the others", box=None, pad_edge=False)
    for label in labels:
        right = "no rows" if label.accuracy is None else percent(label.accuracy)
        table.add_row(Text(label.label), right, Text(label.confused_with or ""), Text(", ".join(label.words)))
    console.print(table)
    console.print()


def _show_rules(console: Console, result: RulesCheck) -> None:
    """Print what each rule covers, how often it is right, and how often others contradict it."""
    subject = f"{len(result.rules)} rules vote" if len(result.rules) > 1 else "The rule votes"
    conflicts = f"; {result.conflicting:,} of them have votes for different labels" if result.conflicting else ""
    coverage = f"{result.covered:,} of {result.rows:,} rows ({percent(result.coverage)}%)"
    console.print(Text(f"{subject} on {coverage}{conflicts}."))
    shown = result.rules
    if len(shown) > MAX_RULES:
        shown = sorted(shown, key=_rule_order)[:MAX_RULES]
    with_labels = any(rule.correct is not None for rule in shown)
    table = Table("rule", "label", box=None, pad_edge=False)
    for name in ("rows", "%", *(["right"] if with_labels else []), "conflicts"):
        table.add_column(name, justify="right")
    table.add_column("mostly with")
    for rule in shown:
        right = [f"{rule.correct:,} of {rule.labeled:,}"] if with_labels else []
        numbers = [f"{rule.rows:,}", percent(rule.coverage), *right, f"{rule.conflicts:,}"]
        table.add_row(Text(rule.rule), Text(rule.label), *numbers, Text(rule.conflicts_with or ""))
    console.print(table)
    if len(shown) < len(result.rules):
        console.print(Text(f"... the {len(shown)} of {len(result.rules)} rules to look at first; --json has all."))
    console.print()


def _rule_order(rule: RuleCheck) -> tuple[bool, float]:
    """Rules that match nothing come first, then those that are wrong most often."""
    return rule.rows > 0, rule.correct / rule.labeled if rule.correct is not None and rule.labeled else 1.0


def _show_detail(console: Console, name: str, text: str) -> None:
    console.print(Padding(Text.assemble((f"{name}  ", "dim"), text), (0, 0, 0, 2), expand=False))


def _verbalizer_name(pair: PairWords) -> str:
    return f" ({pair.verbalizer})" if pair.verbalizer else ""


def _show_tokens(console: Console, pairs: Sequence[PairWords], name: str, many: bool) -> None:
    """Print every word's tokens; of many labels, those whose words are their names are not named."""
    for pair in pairs:
        words = []
        for label, label_words in pair.words.items():
            named = not many or [word.word for word in label_words] != [name_to_words(label)]
            tokens = " | ".join(("+" if many else " + ").join(word.tokens) for word in label_words)
            words.append(f"{label} = {tokens}" if named else tokens)
        _show_detail(console, name + _verbalizer_name(pair), ", ".join(words))


def _excerpt(text: str, mask: str, length: int = 400) -> str:
    """The part of a long text around the mask or, without one, its end."""
    if len(text) <= length:
        return text
    middle = text.find(mask) if mask else len(text)
    start = max(0, min(middle - length // 2, len(text) - length))
    return ("... " if start else "") + text[start : start + length] + (" ..." if start + length < len(text) else "")
