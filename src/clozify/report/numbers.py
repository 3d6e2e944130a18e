"""A run's numbers on the test rows: each stage's, the baselines' beside them, each pattern's, each label's.

In: a run. Out: plain values for the page, shares between 0 and 1.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from clozify.report.run import METHOD_NAMES, Run
from clozify.utils.atomic import atomic_write_text

READABLE = 20  # labels or pairs that a matrix may have; beyond, the most telling ones are listed
FALLS_SHORT = 0.03  # a classifier that is so much worse than its teachers has not learned enough
BESIDE = "results"  # the folder with the numbers of every method that was trained in the run's folder


def stage_numbers(run: Run) -> list[dict[str, Any]]:
    """What was reached from the untrained patterns to the result; the spread is over patterns or over seeds."""
    if run.described["data"].get("test") is None:
        return []
    metrics, method = run.metrics, METHOD_NAMES[run.method]
    names = {
        "unsupervised": "patterns before training, mean",
        "members": "trained patterns, mean",
        "ensemble": "their ensemble",
        "classifier": f"the classifier ({method})",
        **{key: f"the classifier ({METHOD_NAMES[key]})" for key in ("supervised", "uda", "mixtext")},
    }
    found = []
    for key, name in names.items():
        if "accuracy" not in metrics.get(key, {}):
            continue
        line = numbers_of(metrics[key], name) | {"result": key == run.result}
        if key == "unsupervised":
            each = [of_pair["accuracy"] for of_pair in metrics[key]["pairs"]]
            line |= {"low": min(each), "high": max(each), "spread": "the patterns"}
        elif key == "members":
            line |= {"low": metrics[key]["min"], "high": metrics[key]["max"], "spread": "the patterns"}
        found.append(line)
    return found + beside(run)


def numbers_of(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    """One line of numbers: accuracy and macro-F1 with what is known of their spread over seeds."""
    line: dict[str, Any] = {"name": name, "accuracy": metrics["accuracy"], "macro_f1": metrics["macro_f1"]}
    each = metrics.get("accuracy_each", [])
    if len(each) > 1:
        line |= {"accuracy_std": metrics["accuracy_std"], "macro_f1_std": metrics["macro_f1_std"]}
        line |= {"low": min(each), "high": max(each), "spread": f"{len(each)} trainings"}
    if "calibration_error" in metrics:
        line["calibration_error"] = metrics["calibration_error"]
    return line


def main_line(run: Run) -> dict[str, Any] | None:
    """The line of the run's result."""
    return next((line for line in stage_numbers(run) if line.get("result")), None)


def keep_beside(run: Run, other: Run | None = None) -> None:
    """Keep a run's result where another method, trained or reported in the same folder, finds it."""
    source = other or run
    line = main_line(source)
    if line is None:
        return
    content = {"line": line, "recipe": source.described["recipe"]["name"], **comparable(source.described)}
    place = run.folder / BESIDE / f"{source.method}.json"
    place.parent.mkdir(exist_ok=True)
    atomic_write_text(place, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def beside(run: Run) -> list[dict[str, Any]]:
    """What other methods reached with the same labelled and test rows in this folder."""
    found = []
    for method, name in METHOD_NAMES.items():
        file = run.folder / BESIDE / f"{method}.json"
        if method == run.method or not file.is_file():
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        line, own = content["line"], comparable(run.described)
        if all(content[name] == own[name] for name in own):
            found.append(line | {"name": f"beside it: {name}", "result": False, "beside": method})
    return found


def sayings(run: Run, main: dict[str, Any] | None) -> list[str]:
    """What the numbers come to: how far the result lies from the others beside it, and from its own ensemble."""
    if main is None:
        return []
    found = []
    for line in beside(run):
        points = 100 * (main["accuracy"] - line["accuracy"])
        where = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} it" if abs(points) >= 0.05 else "level"
        name, reached = METHOD_NAMES[line["beside"]], f"{100 * line['accuracy']:.1f}"
        found.append(f"Beside it: {name} reaches {reached} with the same labelled rows; this run lies {where}.")
    ensemble = run.metrics.get("ensemble", {}).get("accuracy")
    if run.result == "classifier" and ensemble is not None and ensemble - main["accuracy"] > FALLS_SHORT:
        short = f"{100 * (ensemble - main['accuracy']):.1f}"
        found.append(
            f"The classifier falls {short} points short of the ensemble that taught it: it needs more steps "
            "(distill.max_steps) or a larger pile."
        )
    return found


def comparable(described: dict[str, Any]) -> dict[str, Any]:
    """What must be the same for two numbers to stand beside each other."""
    task, data = described["task"], described["data"]
    labels = list(task["verbalizers"][0]["words"])
    same = {name: data[name]["texts"] for name in ("labeled", "test") if name in data}
    return {"labels": labels, "fields": task["fields"], "rows": same}


def chance_level(run: Run, line: dict[str, Any] | None) -> float | None:
    """Half of the 95% interval that the number of test rows alone leaves to an accuracy."""
    rows = run.metrics["rows"].get("test")
    if line is None or not rows:
        return None
    share = line["accuracy"]
    return 1.96 * math.sqrt(share * (1 - share) / rows)


def patterns(run: Run) -> list[dict[str, Any]]:
    """Each pair: its words, its accuracy before and after training, its weight as a share of all."""
    if run.method not in ("pet", "ipet"):
        return []
    before = run.metrics.get("untrained", {}).get("accuracy_on_labeled")
    on_test = run.metrics.get("unsupervised", {}).get("pairs")
    after = run.metrics.get("members", {})
    total = sum(member.weight for member in run.members)
    found = []
    for number, pair in enumerate(run.task.pairs):
        own = [member.weight for member in run.members if member.pair == pair.name]
        line: dict[str, Any] = {"pair": pair.name, "pattern": pair.pattern.text, "verbalizer": pair.verbalizer.name}
        line["weight"] = sum(own) / total if total else len(own) / max(1, len(run.members))
        if before:
            line["before_on_labelled"] = before[number]
        if on_test:
            line["before"] = on_test[number]["accuracy"]
        if after:
            each = [member["accuracy"] for member in after["each"] if member["pair"] == pair.name]
            line |= {"after": float(np.mean(each)), "low": min(each), "high": max(each)}
        found.append(line)
    return found


def generations(run: Run) -> list[dict[str, Any]]:
    """iPET's generations, without what concerns each member."""
    wanted = ("generation", "members", "training_rows", "accuracy", "min", "max", "agreement", "certainty")
    more = ("certainty_of_drawn", "topped_up")
    return [
        {name: told[name] for name in (*wanted, *more) if name in told} for told in run.metrics.get("generations", [])
    ]


def confusion(run: Run) -> dict[str, Any] | None:
    """The matrix of the result, or of many labels the pairs most confused, and each label's precision and recall."""
    found = run.metrics.get(run.result, {})
    if "confusion" not in found:
        return None
    matrix, labels = np.array(found["confusion"]), run.task.labels
    rows = matrix.sum(axis=1)
    wrong = matrix - np.diag(np.diag(matrix))
    worst = [divmod(int(place), len(labels)) for place in np.argsort(-wrong, axis=None, kind="stable")[:READABLE]]
    by_label = [{"label": label, **found["labels"][label]} for label in labels]
    if len(labels) > READABLE:
        by_label = sorted(by_label, key=lambda of_label: of_label["f1"])[:READABLE]
    return {
        "labels": labels,
        "matrix": matrix.tolist() if len(labels) <= READABLE else None,
        "shares": (matrix / np.maximum(rows, 1)[:, None]).tolist() if len(labels) <= READABLE else None,
        "worst": [
            {"true": labels[a], "taken": labels[b], "rows": int(wrong[a, b]), "of": int(rows[a])}
            for a, b in worst
            if wrong[a, b] > 0
        ],
        "by_label": by_label,
        "cut": len(labels) > READABLE,
    }
