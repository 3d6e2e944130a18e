"""Everything that a run's report says, as plain values: for the page, and for programs.

In: a run and, where they are at hand, its rows. Out: a dictionary that JSON can hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clozify.data.rows import Rows
from clozify.errors import ClozifyError
from clozify.report.costs import disk, stages
from clozify.report.numbers import chance_level, confusion, generations, main_line, patterns, sayings, stage_numbers
from clozify.report.run import METHOD_NAMES, Run
from clozify.report.run_data import reread_rows
from clozify.report.unlabeled import agreement, label_next, soft_labels, unlabeled_ids

KINDS = {"labeled": "labelled", "unlabeled": "unlabelled", "test": "test", "dev": "development"}


def findings(run: Run, rows: dict[str, Rows | None] | None = None) -> dict[str, Any]:
    """All there is to say; `rows` are the run's, by their names in `run.json`, else they are read again."""
    problem = None
    if rows is None:
        rows, problem = _read(run)
    labeled = rows.get("labeled")
    counts = None if labeled is None else np.bincount(labeled.labels, minlength=len(run.task.labels))
    taken = [known for name in ("labeled", "test", "dev") if (known := rows.get(name)) is not None and len(known)]
    following = label_next(run, rows.get("unlabeled"), taken, counts)
    main = main_line(run)
    return {
        "run": {
            "name": run.name,
            "method": METHOD_NAMES[run.method],
            "result": "classifier" if run.result != "ensemble" else "ensemble",
            "model": run.described["model"],
            "student": run.described["student"],
            "recipe": run.described["recipe"]["name"],
            "seed": run.described["recipe"]["seed"],
            "repetitions": run.described["recipe"]["repetitions"],
            "versions": {name: run.described[name] for name in ("clozify", "torch")},
        },
        "task": {
            "name": run.task.name,
            "description": run.task.description,
            "fields": run.task.fields,
            "metric": run.task.metric,
            "labels": run.task.labels,
            "verbalizers": [{"name": v.name, "words": dict(v.words)} for v in run.task.verbalizers],
            "patterns": run.task.patterns,
        },
        "rows": {
            KINDS[name]: {"rows": known["rows"], "source": shown_source(known["source"])}
            for name, known in run.described["data"].items()
        },
        "main": main,
        "sayings": sayings(run, main),
        "chance": chance_level(run, main),
        "numbers": stage_numbers(run),
        "patterns": patterns(run),
        "agreement": agreement(run),
        "generations": generations(run),
        "soft_labels": soft_labels(run, counts),
        "confusion": confusion(run),
        "next": following | {"problem": problem if following["rows"] else None},
        "costs": _costs(run),
        "settings": _flat(run.described["recipe"]),
        "notes": [_without_folders(note, run) for note in run.metrics["warnings"]],
    }


def _costs(run: Run) -> dict[str, Any]:
    found = stages(run)
    known = [stage["seconds"] for stage in found if stage["seconds"] is not None]
    return {"stages": found, "total": sum(known) if known else None, "disk_mib": disk(run.folder)}


def _read(run: Run) -> tuple[dict[str, Rows | None], str | None]:
    """The run's rows from where they came, and why the pile's cannot be shown, if so."""
    found: dict[str, Rows | None] = {}
    problem = None
    for name in run.described["data"]:
        if name == "unlabeled" and not run.scorers:
            continue
        try:
            found[name] = reread_rows(run.described, name, unlabeled_ids(run) if name == "unlabeled" else None)
        except (ClozifyError, OSError) as error:
            found[name] = None
            if name == "unlabeled":
                problem = " ".join(str(error).split())
    return found, problem


def shown_source(source: str) -> str:
    """Where rows came from, in short: a file's name without the folders that it lies in."""
    return Path(source).name if Path(source).is_absolute() or source.count("/") > 1 else source


def _without_folders(note: str, run: Run) -> str:
    for known in run.described["data"].values():
        note = note.replace(known["source"], shown_source(known["source"]))
    return note


def _flat(recipe: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in recipe.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found
