"""The cost of each stage of a run: models trained, seconds of work, and the folder's size.

Every job records its own seconds when it is done, so a resumed run counts each job once, and the seconds of jobs that
ran at the same time add up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from clozify.report.run import RunRecord
from clozify.runs.metrics import ClassifierMetrics
from clozify.utils.checked_files import naming_damaged, read_json


@dataclass(frozen=True)
class StageCost:
    """One stage's models and seconds; None where no seconds were recorded."""

    stage: str
    models: int
    seconds: float | None
    training_seconds: float | None = None
    fraction: float = 0.0  # of the seconds of all stages


@dataclass(frozen=True)
class Costs:
    """What a run cost."""

    stages: list[StageCost]
    total: float | None  # seconds
    disk_mib: float


def run_costs(run: RunRecord) -> Costs:
    """The cost of every stage, and of the folder."""
    stages = stage_costs(run)
    return Costs(stages, total_seconds(stages), disk_mib(run.jobs_folder))


def total_seconds(stages: Iterable[StageCost]) -> float | None:
    """The sum of the recorded seconds; None where none were recorded."""
    recorded = [stage.seconds for stage in stages if stage.seconds is not None]
    return sum(recorded) if recorded else None


def stage_costs(run: RunRecord) -> list[StageCost]:
    """The cost of each stage, in the order of the run."""
    stages = []
    metrics, result = run.metrics, run.result
    if metrics.untrained is not None and metrics.untrained.job is not None:
        path = run.jobs_folder / "untrained" / metrics.untrained.job / "untrained.json"
        cost = _job_costs("scoring the labelled and test rows before training", [path])
        stages.append(replace(cost, models=0))
    if metrics.generations:
        for generation in metrics.generations:
            paths = [run.jobs_folder / job / "member.json" for job in generation.jobs]
            stages.append(_job_costs(f"generation {generation.generation}: training and scoring", paths))
    elif run.members:
        paths = [member.folder / "member.json" for member in run.members]
        stages.append(_job_costs("patterns: training and scoring", paths))
    if metrics.static is not None and metrics.classifier is not None:
        stages.append(_classifier_costs(run, "classifier: training", metrics.classifier.jobs))
    if isinstance(result, ClassifierMetrics):
        if result.augmentation_seconds:
            stages.append(StageCost("text augmentation", 0, result.augmentation_seconds))
        jobs = [job for tried in (result.tried or {}).values() for job in tried.jobs] + result.jobs
        if jobs:
            name = (
                "classifier: training" if metrics.static is None else "static classifier: labelling rows and training"
            )
            stages.append(_classifier_costs(run, name, jobs))
    total = total_seconds(stages)
    return [replace(stage, fraction=(stage.seconds or 0) / total if total else 0.0) for stage in stages]


def _classifier_costs(run: RunRecord, name: str, jobs: Iterable[str]) -> StageCost:
    return _job_costs(name, [run.jobs_folder / "classifiers" / job / "classifier.json" for job in jobs])


def _job_costs(name: str, paths: Iterable[Path]) -> StageCost:
    seconds, training_seconds = [], []
    for path in dict.fromkeys(paths):
        if path.is_file():
            job = read_json(path)
            with naming_damaged(path):
                seconds.append(float(job["seconds"]))
                training_seconds += [float(job["training_seconds"])] if "training_seconds" in job else []
    cost = StageCost(name, len(seconds), sum(seconds) if seconds else None)
    if seconds and len(training_seconds) == len(seconds):
        cost = replace(cost, training_seconds=sum(training_seconds))
    return cost


def disk_mib(folder: Path) -> float:
    """The folder's size in MiB; hard links to one file count once."""
    stats = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values()) / 2**20
