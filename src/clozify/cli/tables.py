"""Tables that the commands print for people; programs take `--json`.

What `clozify check` prints is in `check_tables`, what `clozify train` and `clozify report` print about finished runs in
`clozify.report.terminal`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.config.task import Task
from clozify.errors import quoted
from clozify.metrics import wilson_interval
from clozify.report.format import percent, rough_duration
from clozify.report.terminal import metrics_table, show_groups, show_warnings

if TYPE_CHECKING:  # these modules load PyTorch
    from clozify.demo import DemoResult
    from clozify.inference.finished_run import EvaluationResult
    from clozify.inference.init_task import InitResult
    from clozify.inference.suggest import Suggestions
    from clozify.inference.zero_shot import ZeroShotResult
    from clozify.pipeline.cost import CostEstimate
    from clozify.pipeline.find_words import FindWordsReport

MAX_TEACHERS = 30
MAX_PREDICTIONS = 5  # that are printed
MANY_LABELS = 15  # more of them are not all printed
MAX_NAMES = 8  # labels that are named in a line
MAX_LABELS = 20  # that are printed; of more, the most notable


def show_tasks(console: Console, tasks: list[dict[str, Any]]) -> None:
    """Print the shipped tasks, one a line."""
    table = Table("task", "fields", "labels", "pairs", "question", box=None, pad_edge=False)
    for task in tasks:
        table.add_row(
            task["name"],
            ", ".join(task["fields"]),
            str(len(task["labels"])),
            str(task["pairs"]),
            Text(task["description"]),
        )
    console.print(table)


def show_init(console: Console, result: InitResult) -> None:
    """Print what was recognised in the data, and what to type next."""
    task = result.task
    names = ", ".join(task.labels[:MAX_NAMES]) + (", ..." if len(task.labels) > MAX_NAMES else "")
    console.print(Text(f"{result.data}: {result.rows:,} rows."))
    lines = [
        (f"text column{'s' if len(task.fields) > 1 else ''}", ", ".join(task.fields)),
        ("label column", result.label_column or "none in this file"),
        ("id column", task.id),
        (f"{len(task.labels)} labels", names),
        (f"{len(task.patterns)} patterns", f"for {result.kind}, such as {task.patterns[0]}"),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in lines:
        if value is not None:
            table.add_row(Text(name, style="dim"), Text(value))
    console.print(Padding(table, (0, 0, 0, 2)))
    show_warnings(console, result.notes)
    console.print(Text(f"The task is in {result.output}. Look it over, then try"))
    for command in result.commands:
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)
    if result.label_column is not None:
        console.print(Text("Texts without labels help, too: pass them to train with --unlabeled FILE.", style="dim"))


def show_zero_shot(console: Console, result: ZeroShotResult) -> None:
    """Print the accuracy of each pair and of the ensemble; without labels, the first predictions."""
    if result.accuracy is not None and result.macro_f1 is not None:
        table = metrics_table("pattern", with_micro_f1=result.micro_f1 is not None)
        scores = [result.accuracy, result.macro_f1, *([] if result.micro_f1 is None else [result.micro_f1])]
        for pair, *values in zip(result.task.pairs, *(score.patterns for score in scores), strict=True):
            name = pair.pattern.text + (f"  ({pair.verbalizer.name})" if pair.verbalizer.name else "")
            table.add_row(Text(name), *map(percent, values))
        table.add_row()
        for key, name in (("mean", "mean of the patterns"), ("best", "best pattern"), ("ensemble", "ensemble")):
            table.add_row(Text(name, style="bold"), *(percent(getattr(score, key)) for score in scores))
        console.print(table)
    else:
        _show_predictions(console, result)
    if result.teachers:
        _show_teachers(console, result)
    if result.group_accuracy is not None:
        console.print(Text(f"Accuracy of the groups, by the ensemble: {percent(result.group_accuracy)}."))
    console.print(Text(f"Predicted by the ensemble: {_label_counts(result)}."))
    console.print(Text(result.calibration))
    show_warnings(console, result.warnings)
    if result.output:
        console.print(Text(f"Predictions are in {result.output}."))


def _show_teachers(console: Console, result: ZeroShotResult) -> None:
    """Print what the teachers besides the patterns cover and count for."""
    table = Table("teacher", box=None, pad_edge=False)
    for name in ("weight", "accuracy (est.)", "coverage", "accuracy"):
        table.add_column(name, justify="right")
    for teacher in result.teachers[:MAX_TEACHERS]:
        right = "" if teacher.accuracy is None else percent(teacher.accuracy)
        estimated = percent(teacher.estimated_accuracy)
        table.add_row(Text(teacher.name), f"{teacher.weight:.2f}", estimated, percent(teacher.coverage), right)
    console.print(table)
    if len(result.teachers) > MAX_TEACHERS:
        console.print(Text(f"{len(result.teachers) - MAX_TEACHERS} more teachers voted.", style="dim"))


def _label_counts(result: ZeroShotResult) -> str:
    """How often each label is predicted; of many labels, the most frequent ones and those that never are."""
    counts = Counter(result.label_counts)
    if len(result.task.labels) <= MANY_LABELS:
        return ", ".join(f"{label} {counts[label]:,}" for label in result.task.labels)
    frequent = ", ".join(f"{label} {count:,}" for label, count in counts.most_common(MAX_NAMES))
    never = [label for label in result.task.labels if not counts[label]]
    others = f", {len(counts) - MAX_NAMES} other labels less often" if len(counts) > MAX_NAMES else ""
    return frequent + others + (f"; never {quoted(never, MAX_NAMES)}" if never else "")


def _show_predictions(console: Console, result: ZeroShotResult) -> None:
    """Print the first predictions."""
    count = min(MAX_PREDICTIONS, len(result.rows))
    probabilities = result.scores.probabilities(0, count)  # (rows, labels)
    texts = [result.rows.texts(field, 0, count) for field in result.task.fields]
    table = Table("id", "text", "prediction", "probability", box=None, pad_edge=False)
    for row_id, row, *fields in zip(result.rows.ids(0, count), probabilities, *texts, strict=True):
        text = " ".join(filter(None, fields))[:60]
        (label,) = result.scores.decision.names(result.scores.decision.predict(row[None]))
        table.add_row(Text(str(row_id)), Text(text), Text(label), percent(float(row.max())))
    console.print(table)
    if len(result.rows) > count:
        console.print(Text(f"... the first {count} of {len(result.rows):,} rows", style="dim"))


def show_words(console: Console, report: FindWordsReport) -> None:
    """Print each label's words, best first, with their scores; words of the task file are marked."""
    table = Table("label", "words, with their score in points", box=None, pad_edge=False)
    for label, words in report.labels.items():
        line = Text()
        for word in words:
            line.append(", " if line else "")
            line.append(word.word, style="bold" if word.is_seed else "cyan")
            score = "" if word.score is None else f" {100 * word.score:.0f}"
            line.append(score + (" (from the task file)" if word.is_seed else ""), style="dim")
        table.add_row(Text(label), line)
    console.print(table)
    console.print(
        Text(
            f"{report.candidates:,} candidate words, {report.rows:,} rows, {len(report.patterns)} patterns. "
            "A word's score is the label's mean probability with that word on rows of the label, minus its mean on all "
            "other rows."
        )
    )
    show_warnings(console, report.warnings)
    if report.output:
        console.print(Text(f"The task with these words is in {report.output}; delete the words that do not fit."))


def show_examples(console: Console, task: Task) -> None:
    """Print a task's description, patterns and words."""
    console.print(Text.assemble(("Task ", "bold"), (task.name, "bold cyan"), f": {task.description}"))
    for pattern in task.patterns:
        console.print(Padding(Text(pattern, style="cyan"), (0, 0, 0, 2), expand=False))
    (verbalizer, *_) = task.verbalizers
    words = ", ".join(" or ".join(words) for words in verbalizer.words.values())
    console.print(Text(f"{{mask}} is one of: {words}."))
    console.print()


def show_demo(console: Console, result: DemoResult) -> None:
    """Print the demo's runs in one table, and how to use the classifier."""
    rows, pet, supervised = result.pet.rows, result.pet, result.supervised.supervised
    assert pet.members is not None
    assert pet.trivial is not None
    lines: list[tuple[str, Any]] = [
        (
            f"TF-IDF and logistic regression on {rows['labeled']} labelled rows",
            pet.trivial.tfidf,
        ),
        ("patterns before training, mean", pet.unsupervised),
        (f"supervised training on the same {rows['labeled']} rows", supervised),
        (f"PET's ensemble: {len(pet.members.pairs)} trained patterns", pet.ensemble),
        (f"PET: classifier trained on {rows['unlabeled']:,} rows that they label", pet.classifier or pet.ensemble),
        (
            "iPET: classifier, after a second generation of patterns",
            result.ipet.classifier or result.ipet.ensemble,
        ),
    ]
    table = Table(f"on {rows['test']:,} test rows", box=None, pad_edge=False)
    table.add_column("accuracy", justify="right")
    table.add_column("95% interval", justify="right")
    for name, metrics in lines:
        if metrics is not None:
            low, high = wilson_interval(metrics.accuracy, rows["test"])
            table.add_row(name, percent(metrics.accuracy), f"{percent(low)} to {percent(high)}")
    console.print()
    console.print(table)
    run = f"{result.output}/pet"
    console.print(Text(f"The run is in {run}, its report in {run}/report.html. To use its classifier:"))
    console.print(Text(f"  clozify predict {run} --data builtin:test"), soft_wrap=True)


def show_evaluation(console: Console, result: EvaluationResult) -> None:
    """Print each label's precision, recall and F1, then the overall metrics."""
    table = Table("label", box=None, pad_edge=False)
    for name in ("precision", "recall", "F1", "rows"):
        table.add_column(name, justify="right")
    worst_first = sorted(result.labels.items(), key=lambda item: (not item[1].rows, item[1].f1))
    shown = list(result.labels.items()) if len(worst_first) <= MAX_LABELS else worst_first[:MAX_LABELS]
    for label, metrics in shown:
        fractions = map(percent, (metrics.precision, metrics.recall, metrics.f1))
        table.add_row(Text(label), *fractions, f"{metrics.rows:,}")
    console.print(table)
    if len(shown) < len(result.labels):
        console.print(Text(f"... the {len(shown)} of {len(result.labels)} labels with the lowest F1; --json has all."))
    name = "Accuracy"
    if result.micro_f1 is not None:
        name = f"Micro-F1 {percent(result.micro_f1)}, exact match"
    console.print(
        Text(
            f"{name} {percent(result.accuracy)}, macro-F1 {percent(result.macro_f1)}, calibration error "
            f"{percent(result.calibration_error)}, on {result.rows:,} rows."
        )
    )
    show_groups(console, result.groups)
    show_warnings(console, result.warnings)


def show_plan(console: Console, cost: CostEstimate) -> None:
    """Print the estimated cost of a run."""
    if cost.members:
        console.print(
            f"{cost.members} members: {cost.steps_a_member:,} fine-tuning steps and "
            f"{cost.rows_to_score_a_member:,} rows to score for each."
        )
    if cost.rows_to_label:
        console.print(f"{cost.rows_to_label:,} rows for the classifier to label, which train the static one.")
    if cost.estimate_models:
        console.print(
            f"{cost.estimate_models} models more, each without a part of the labelled rows, to estimate the accuracy "
            "(--no-estimate leaves them out)."
        )
    if cost.threshold_models:
        console.print(
            f"{cost.threshold_models} models more, each without a part of the labelled rows, for thresholds and an "
            "estimate of micro-F1."
        )
    if cost.rows_to_augment:
        console.print(f"{cost.rows_to_augment:,} texts to augment.")
    if cost.classifiers:
        console.print(f"{cost.classifiers} classifiers: {cost.steps_a_classifier:,} training steps for each.")
    console.print(f"About {rough_duration(cost.seconds)} on this machine and {cost.disk_mib:,.0f} MiB on disk.")
    if cost.requests:
        tokens = f"about {cost.input_tokens:,} input and {cost.output_tokens:,} output tokens"
        digits = 2 if cost.price is None or cost.price >= 0.1 else 4
        price = "" if cost.price is None else f", {cost.price:,.{digits}f} at the prices of the task file"
        console.print(f"At most {cost.requests:,} requests to an LLM, {tokens}{price}.")
    if cost.why is not None:
        console.print(f"{cost.why.capitalize()}; the time assumes one at a time.")


def show_suggestions(console: Console, result: Suggestions) -> None:
    """Print the rows to label next, how to use the file, and what their labels will probably bring."""
    table = Table("id", "text", "predicted label", box=None, pad_edge=False)
    for row in result.rows:
        table.add_row(Text(str(row.id)), Text(row.text[:80]), Text(row.prediction))
    console.print(table)
    show_warnings(console, result.warnings)
    console.print(
        Text(
            f"{len(result.rows)} rows are in {result.output}: fill in the column '{result.label}' and pass the file to "
            "--labeled. Rows left empty are ignored."
        )
    )
    console.print(Text(" ".join(result.outlook.sentences)))
