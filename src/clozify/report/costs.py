"""What each stage of a run cost: models, seconds of work, and the folder's size.

In: a run. Out: one entry a stage. Seconds are each job's own, written when it was done: a run that was killed and went
on counts each job once, and jobs done at a time are added up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clozify.report.run import Run


def stages(run: Run) -> list[dict[str, Any]]:
    """Each stage's name, models, and seconds, `None` where they were not written down."""
    found: list[dict[str, Any]] = []
    if "untrained" in run.metrics:
        job = run.folder / "untrained" / run.metrics["untrained"].get("job", "") / "untrained.json"
        seconds = json.loads(job.read_text()).get("seconds") if job.exists() else None
        found.append({"stage": "scoring the labelled and test rows before training", "models": 0, "seconds": seconds})
    if generations := run.metrics.get("generations"):
        for told in generations:
            jobs = told.get("jobs") or [member["job"] for member in told.get("each", [])]
            files = [run.folder / job / "member.json" for job in jobs]
            found.append(_stage(f"generation {told['generation']}: training and scoring", files))
    elif run.members:
        files = [member.folder / "member.json" for member in run.members]
        found.append(_stage("patterns: training and scoring", files))
    result = run.metrics.get(run.result, {})
    if result.get("augmentation_seconds"):
        found.append({"stage": "augmenting text", "models": 0, "seconds": result["augmentation_seconds"]})
    jobs = dict.fromkeys(job for tried in result.get("tried", {}).values() for job in tried.get("jobs", []))
    jobs |= dict.fromkeys(result.get("jobs", []))
    if jobs:
        found.append(_stage("classifier: training", [run.folder / "classifiers" / j / "classifier.json" for j in jobs]))
    known = sum(stage["seconds"] or 0 for stage in found)
    for stage in found:
        stage["share"] = (stage["seconds"] or 0) / known if known else 0.0
    return found


def _stage(name: str, files: Iterable[Path]) -> dict[str, Any]:
    files = list(dict.fromkeys(files))
    known = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    seconds = sum(job["seconds"] for job in known) if known else None
    found: dict[str, Any] = {"stage": name, "models": len(known), "seconds": seconds}
    if known and all("training_seconds" in job for job in known):
        found["training_seconds"] = sum(job["training_seconds"] for job in known)
    return found


def disk(folder: Path) -> float:
    """The folder's size in MiB; a file with two names counts once."""
    sizes = {(s.st_dev, s.st_ino): s.st_size for s in (file.lstat() for file in folder.rglob("*") if file.is_file())}
    return sum(sizes.values()) / 2**20
