"""Tables for the terminal: what the commands print for people (programs take `--json`)."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clozify.config.task import Task


def percent(share: float) -> str:
    """`53.1` for 0.5312: percent as the paper prints them."""
    return f"{100 * share:.1f}"


def show_tasks(console: Console, tasks: list[dict[str, Any]]) -> None:
    """The shipped tasks, a line each."""
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


def show_check(console: Console, found: dict[str, Any]) -> None:
    """A task in words, each pattern as the model reads it, each label's token, and the problems."""
    labels = ", ".join(found["labels"])
    console.print(Text.assemble(("Task ", "bold"), (found["task"], "bold cyan"), f": {found['description']}"))
    console.print(
        Text(
            f"A row has {', '.join(found['fields'])}; it gets one of {len(found['labels'])} labels: {labels}. "
            f"Judged by {found['metric']}. Model: {found['model']}."
        )
    )
    if found["rows"] is not None:
        counts = found["rows_per_label"]
        spread = "" if not counts else ": " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
        console.print(Text(f"Data: {found['data']}, {found['rows']:,} rows{spread}."))
    same = all(pattern["pairs"] == found["patterns"][0]["pairs"] for pattern in _unnamed(found["patterns"]))
    if same and found["patterns"]:
        _show_words(console, found["patterns"][0], "words")
    for number, pattern in enumerate(found["patterns"], start=1):
        console.print()
        console.print(Text.assemble((f"Pattern {number}  ", "bold"), (pattern["pattern"], "cyan")))
        if not same:
            _show_words(console, pattern, "words here")
        for row, label in zip_longest(pattern["rows"], found["first_labels"]):
            _line(console, "the model reads", _shortened(row["read_as"], found["mask"]))
            for pair, answer in zip(pattern["pairs"], row["answers"], strict=True):
                first = sorted(answer.items(), key=lambda item: -item[1])[:3]
                shares = ", ".join(f"{name} {percent(share)}%" for name, share in first)
                truth = f" (labelled {label})" if label else ""
                _line(console, f"it answers{_verbalizer(pair)}", shares + truth)
        _line(console, "by itself it would say", ", ".join(pattern["own_answers"]))
    console.print()
    show_remarks(console, found["warnings"])
    if found["problems"]:
        for problem in found["problems"]:
            console.print(Text.assemble(("problem: ", "bold red"), problem))
    else:
        console.print(Text("No problems found.", style="green"))


def _unnamed(patterns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Patterns with their pairs' names taken away, which differ where the words do not."""
    for pattern in patterns:
        pattern["pairs"] = [{**pair, "pair": ""} for pair in pattern["pairs"]]
    return patterns


def _line(console: Console, what: str, text: str) -> None:
    console.print(Padding(Text.assemble((f"{what}  ", "dim"), text), (0, 0, 0, 2), expand=False))


def _verbalizer(pair: dict[str, Any]) -> str:
    return f" ({pair['verbalizer']})" if pair["verbalizer"] else ""


def _show_words(console: Console, pattern: dict[str, Any], what: str) -> None:
    for pair in pattern["pairs"]:
        words = (
            f"{label} = " + " | ".join(f"{token['token']} ({token['id']})" for token in tokens)
            for label, tokens in pair["words"].items()
        )
        _line(console, what + _verbalizer(pair), ", ".join(words))


def _shortened(text: str, mask: str, most: int = 400) -> str:
    """A long row's part around the mask."""
    if len(text) <= most:
        return text
    start = max(0, min(text.find(mask) - most // 2, len(text) - most))
    return ("... " if start else "") + text[start : start + most] + (" ..." if start + most < len(text) else "")


def show_remarks(console: Console, remarks: list[str]) -> None:
    """Warnings, a line each."""
    for remark in remarks:
        console.print(Text.assemble(("note: ", "yellow"), remark))


def show_zero_shot(console: Console, report: dict[str, Any], examples: list[tuple[str, str, str, float]]) -> None:
    """Each pair's accuracy, their mean and best, the ensemble's; or the predictions where there are no labels."""
    if "accuracy" in report:
        table = Table(box=None, pad_edge=False)
        table.add_column("pattern")
        table.add_column("accuracy", justify="right")
        table.add_column("macro-F1", justify="right")
        scores = report["accuracy"], report["macro_f1"]
        for pair, *values in zip(report["pairs"], *(score["patterns"] for score in scores), strict=True):
            name = pair["pattern"] + (f"  ({pair['verbalizer']})" if pair["verbalizer"] else "")
            table.add_row(Text(name), *map(percent, values))
        table.add_row()
        for key, name in (
            ("mean", "mean of the patterns"),
            ("best", "best pattern"),
            ("ensemble", "ensemble"),
        ):
            table.add_row(Text(name, style="bold"), *(percent(score[key]) for score in scores))
        console.print(table)
    else:
        table = Table("id", "text", "prediction", "probability", box=None, pad_edge=False)
        for row, text, label, share in examples:
            table.add_row(escape(row), Text(text), escape(label), percent(share))
        console.print(table)
        if report["rows"] > len(examples):
            console.print(Text(f"... the first {len(examples)} of {report['rows']:,} rows", style="dim"))
    counts = ", ".join(f"{label} {count:,}" for label, count in report["predicted"].items())
    console.print(Text(f"Predicted by the ensemble: {counts}."))
    show_remarks(console, report["warnings"])
    if report["output"]:
        console.print(Text(f"Predictions are in {report['output']}."))


def show_words(console: Console, report: dict[str, Any]) -> None:
    """The words found for each label, the likeliest first, each with its score in points; given words are marked."""
    table = Table("label", "words, with their score in points", box=None, pad_edge=False)
    for label, words in report["labels"].items():
        line = Text()
        for word in words:
            line.append(", " if line else "")
            line.append(word["word"], style="bold" if word["given"] else "cyan")
            score = "" if word["score"] is None else f" {100 * word['score']:.0f}"
            line.append(score + (" (given)" if word["given"] else ""), style="dim")
        table.add_row(Text(label), line)
    console.print(table)
    console.print(
        Text(
            f"From {report['candidates']:,} words on {report['rows']:,} rows and {len(report['patterns'])} patterns. "
            "The score is the label's mean probability with that word on its own rows, less that on the others."
        )
    )
    show_remarks(console, report["warnings"])
    if report["output"]:
        console.print(Text(f"The task with these words is in {report['output']}; delete there what does not fit."))


def show_run(console: Console, metrics: dict[str, Any]) -> None:
    """What a run reached on the test rows, from the untrained pairs to the classifier."""
    table = Table(box=None, pad_edge=False)
    table.add_column("on the test rows")
    table.add_column("accuracy", justify="right")
    table.add_column("macro-F1", justify="right")
    _show_generations(table, metrics.get("generations", []))
    names = {
        "unsupervised": "patterns before training, mean",
        "members": "trained patterns, mean",
        "ensemble": "ensemble",
        "classifier": f"classifier ({'iPET' if metrics.get('method') == 'ipet' else 'PET'})",
        "supervised": "supervised baseline",
        "uda": "UDA",
        "mixtext": "MixText",
    }
    for key, name in names.items():
        found = metrics.get(key)
        if not found or "accuracy" not in found:
            continue
        spread = [f" ±{percent(found[f'{m}_std'])}" if found.get(f"{m}_std") else "" for m in ("accuracy", "macro_f1")]
        name += f", {found['chosen'].upper()}" if "chosen" in found else ""
        table.add_row(name, percent(found["accuracy"]) + spread[0], percent(found["macro_f1"]) + spread[1])
        if key == "members":
            table.add_row("  worst and best pattern", f"{percent(found['min'])} - {percent(found['max'])}", "")
    if table.row_count:
        console.print(table)
    else:
        console.print(Text("There were no test rows to measure on (--test)."))
    for key in ("uda", "mixtext"):
        _show_comparison(console, metrics.get(key, {}))
    for key in ("classifier", "supervised", "uda", "mixtext"):
        if dev := metrics.get(key, {}).get("dev_each"):
            console.print(Text(f"On the development rows, each training's best: {', '.join(map(percent, dev))}."))
    show_remarks(console, metrics["warnings"])


def _show_comparison(console: Console, found: dict[str, Any]) -> None:
    """How UDA's or MixText's text was augmented, and whether the test set chose its steps."""
    if not found:
        return
    console.print(
        Text(f"Augmented text: {found['augmentation']}; {found['unlabeled_rows']:,} unlabelled rows were used.")
    )
    if "layers" in found:
        console.print(Text(f"Hidden states were mixed behind layer {' or '.join(map(str, found['layers']))}."))
    if "chosen" in found:
        console.print(
            Text(
                f"{found['steps']:,} steps were {found['chosen']}, of {', '.join(found['tried'])}: the number above is "
                "better than what new rows will show."
            )
        )


def _show_generations(table: Table, generations: list[dict[str, Any]]) -> None:
    for told in generations:
        if "accuracy" in told:
            name = f"generation {told['generation']}, mean ({told['training_rows']:,} rows a member)"
            table.add_row(name, percent(told["accuracy"]), percent(told["macro_f1"]))


def show_examples(console: Console, task: Task) -> None:
    """A task in a few lines: what is asked, with which patterns, and which words answer."""
    console.print(Text.assemble(("Task ", "bold"), (task.name, "bold cyan"), f": {task.description}"))
    for pattern in task.patterns:
        console.print(Padding(Text(pattern, style="cyan"), (0, 0, 0, 2), expand=False))
    (verbalizer, *_) = task.verbalizers
    words = ", ".join(" or ".join(words) for words in verbalizer.words.values())
    console.print(Text(f"{{mask}} is one of: {words}."))
    console.print()


def show_demo(console: Console, found: dict[str, Any]) -> None:
    """Supervised training beside PET and iPET, and where to go on."""
    rows, pet = found["rows"], found["pet"]
    table = Table(box=None, pad_edge=False)
    table.add_column(f"right answers on {rows['test']:,} test rows")
    table.add_column("accuracy", justify="right")
    table.add_column("macro-F1", justify="right")
    lines = [
        ("the patterns, before any training (mean)", pet["unsupervised"]),
        (f"supervised training on {rows['labeled']} labelled rows", found["supervised"]["supervised"]),
        (f"PET: a classifier from {rows['unlabeled']:,} rows that the patterns labelled", pet["classifier"]),
        (f"PET's ensemble itself: {len(pet['members']['pairs'])} patterns trained on the same rows", pet["ensemble"]),
        ("iPET's ensemble: after the patterns taught each other", found["ipet"]["ensemble"]),
    ]
    for name, numbers in lines:
        table.add_row(name, percent(numbers["accuracy"]), percent(numbers["macro_f1"]))
    console.print()
    console.print(table)
    gain = 100 * (pet["classifier"]["accuracy"] - found["supervised"]["supervised"]["accuracy"])
    console.print(Text(f"PET against supervised training on the same labels: {gain:+.1f} points of accuracy."))
    run = f"{found['output']}/pet"
    console.print(Text(f"The run is in {run}, its report in {run}/report.html; use its classifier with:"))
    console.print(Text(f"  clozify predict {run} --data builtin:test"), soft_wrap=True)


def show_evaluation(console: Console, found: dict[str, Any]) -> None:
    """Accuracy and macro-F1, then each label's precision and recall."""
    table = Table("label", box=None, pad_edge=False)
    for name in ("precision", "recall", "F1", "rows"):
        table.add_column(name, justify="right")
    for label, of_label in found["labels"].items():
        shares = (percent(of_label[name]) for name in ("precision", "recall", "f1"))
        table.add_row(Text(label), *shares, f"{of_label['rows']:,}")
    console.print(table)
    console.print(
        Text(
            f"Accuracy {percent(found['accuracy'])}, macro-F1 {percent(found['macro_f1'])}, calibration error "
            f"{percent(found['calibration_error'])}, on {found['rows']:,} rows."
        )
    )
    show_remarks(console, found["warnings"])


def show_plan(console: Console, cost: dict[str, Any]) -> None:
    """What a run will cost."""
    minutes = cost["seconds"] / 60
    if cost["members"]:
        console.print(
            f"{cost['members']} members, each {cost['steps_a_member']:,} steps of fine-tuning, then "
            f"{cost['rows_to_score_a_member']:,} rows to score."
        )
    if cost.get("rows_to_augment"):
        console.print(f"{cost['rows_to_augment']:,} texts to say in other words.")
    if cost["classifiers"]:
        console.print(f"{cost['classifiers']} classifiers, each {cost['steps_a_classifier']:,} steps.")
    time_needed = f"{minutes / 60:,.1f} hours" if minutes > 90 else f"{minutes:,.0f} minutes"
    console.print(f"About {time_needed} on this machine and {cost['disk_mib']:,.0f} MiB on disk.")
    if "why" in cost:
        console.print(f"{cost['why'].capitalize()}; the time is that of one at a time.")


def show_comparison(console: Console, found: dict[str, Any]) -> None:
    """Several runs, a line each."""
    table = Table("run", "method", box=None, pad_edge=False)
    for name in ("labelled", "accuracy", "macro-F1", "against the first"):
        table.add_column(name, justify="right")
    for run in found["runs"]:
        main = run["main"]
        cells = [f"{percent(main[key])}{_plus(main, key)}" for key in ("accuracy", "macro_f1")] if main else ["", ""]
        difference = "" if run["difference"] is None else f"{100 * run['difference']:+.1f}"
        table.add_row(Text(run["run"]), run["method"], f"{run['labelled']:,}", *cells, difference)
    console.print(table)
    show_remarks(console, found["notes"])


def _plus(numbers: dict[str, Any], key: str) -> str:
    return f" ±{percent(numbers[f'{key}_std'])}" if f"{key}_std" in numbers else ""


def show_suggestions(console: Console, found: dict[str, Any]) -> None:
    """The rows to label next, and what to do with them."""
    table = Table("id", "text", "so far taken for", box=None, pad_edge=False)
    for row in found["rows"]:
        table.add_row(Text(str(row["id"])), Text(row["text"][:80]), Text(row["prediction"]))
    console.print(table)
    show_remarks(console, found["warnings"])
    console.print(
        Text(
            f"{len(found['rows'])} rows are in {found['output']}: fill in the column '{found['label']}' and give the "
            "file to --labeled. Rows that you leave empty are ignored."
        )
    )
