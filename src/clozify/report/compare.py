"""Several runs side by side: one table, their main numbers, each label's F1.

In: finished runs. Out: plain values for the page, the terminal and programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clozify.report.costs import stages
from clozify.report.numbers import READABLE, main_line, stage_numbers
from clozify.report.run import METHOD_NAMES, Run


def compared(runs: Sequence[Run]) -> dict[str, Any]:
    """Each run's line; differences are to the first, where both were measured on the same test rows."""
    lines = [_line(run) for run in runs]
    first = runs[0]
    for run, line in zip(runs, lines, strict=True):
        comparable = run is not first and line["main"] and lines[0]["main"] and _test(run) == _test(first)
        line["difference"] = line["main"]["accuracy"] - lines[0]["main"]["accuracy"] if comparable else None
    notes = []
    tested = [run for run in runs if _test(run) is not None]
    if len({_test(run) for run in tested}) > 1:
        notes.append(
            "The runs were not measured on the same test rows, so their numbers cannot be set against each other."
        )
    if len({str(_labeled(run)) for run in runs}) > 1:
        notes.append("The runs were trained on different labelled rows.")
    labels = _labels(runs)
    shown = sorted(labels, key=_apart, reverse=True)[:READABLE] if len(labels) > READABLE else labels
    return {"runs": lines, "labels": shown, "cut": len(labels) > READABLE, "notes": notes}


def _line(run: Run) -> dict[str, Any]:
    seconds = [stage["seconds"] for stage in stages(run) if stage["seconds"] is not None]
    rows = run.metrics["rows"]
    return {
        "run": run.name,
        "folder": str(run.folder),
        "task": run.task.name,
        "method": METHOD_NAMES[run.method],
        "model": run.described["model"],
        "recipe": run.described["recipe"]["name"],
        "labelled": rows["labeled"],
        "unlabelled": rows.get("unlabeled", 0),
        "test": rows.get("test", 0),
        "main": main_line(run),
        "numbers": [line for line in stage_numbers(run) if "beside" not in line],
        "seconds": sum(seconds) if seconds else None,
    }


def _labels(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each label's F1 in each run, where all have the same labels."""
    if any(run.task.labels != runs[0].task.labels for run in runs):
        return []
    of_runs = [run.metrics.get(run.result, {}).get("labels") for run in runs]
    if not any(of_runs):
        return []
    return [{"label": label, "f1": [of and of[label]["f1"] for of in of_runs]} for label in runs[0].task.labels]


def _apart(line: dict[str, Any]) -> float:
    known = [share for share in line["f1"] if share is not None]
    return float(max(known) - min(known))


def _test(run: Run) -> str | None:
    test = run.described["data"].get("test")
    return None if test is None else str(test["texts"])


def _labeled(run: Run) -> str:
    return str(run.described["data"]["labeled"]["texts"])
