"""Collects everything that a run's report shows; the page, the model card and `--json` present it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozify.data.rows import Rows
from clozify.errors import ClozifyError
from clozify.report.costs import Costs, run_costs
from clozify.report.next_steps import next_steps
from clozify.report.run import RunRecord
from clozify.report.run_data import count_labels, reread_rows
from clozify.report.scores import (
    Confusion,
    PatternScore,
    Score,
    conclusions,
    confusion,
    headline,
    pattern_scores,
    result_score,
    stage_scores,
)
from clozify.report.selective import Selective, selective
from clozify.report.unlabeled import Agreement, NextRows, SoftLabels, agreement, label_next, soft_labels, unlabeled_ids
from clozify.report.wrong_rows import WrongRows, wrong_rows
from clozify.runs.metrics import AccuracyMetrics, Generation, TeacherMetrics
from clozify.runs.results import METHOD_NAMES

DATA_NAMES = {"labeled": "labelled", "unlabeled": "unlabelled", "test": "test", "dev": "development"}


@dataclass(frozen=True)
class RunSummary:
    """The run in short."""

    name: str
    method: str
    result: str  # 'classifier' or 'ensemble'
    model: str
    student: str
    recipe: str
    seed: int
    repetitions: int
    versions: dict[str, str]


@dataclass(frozen=True)
class VerbalizerSummary:
    """A verbalizer: the words of each label."""

    name: str
    words: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class TaskSummary:
    """The task in short."""

    name: str
    description: str
    fields: list[str]
    metric: str
    headline: str  # the metric that the report shows first
    multilabel: bool
    labels: list[str]
    verbalizers: list[VerbalizerSummary]
    patterns: list[str]
    groups: int = 0  # how many groups of labels the task has


@dataclass(frozen=True)
class DataSummary:
    """How many rows a data set has, and its source without folders."""

    rows: int
    source: str


@dataclass(frozen=True)
class Findings:
    """Everything that a run's report shows."""

    run: RunSummary
    task: TaskSummary
    rows: dict[str, DataSummary]  # labelled, unlabelled, test, development
    main: Score | None  # of the run's result
    conclusions: list[str]
    steps: list[str]  # what to do next
    numbers: list[Score]
    patterns: list[PatternScore]
    teachers: list[TeacherMetrics]  # where there are others than patterns
    agreement: Agreement | None
    generations: list[Generation]
    estimate: AccuracyMetrics | None  # without test rows
    soft_labels: SoftLabels | None
    confusion: Confusion | None
    selective: Selective | None
    wrong: WrongRows | None
    next: NextRows
    costs: Costs
    settings: dict[str, Any]  # of the recipe, by their dotted names
    notes: list[str]


def collect_findings(run: RunRecord, rows: Mapping[str, Rows | None] | None = None) -> Findings:
    """Everything that the report shows; `rows` are the run's rows by data set, else they are read again."""
    problems: dict[str, str] = {}
    if rows is None:
        rows, problems = _reread_all(run)
    labeled = rows.get("labeled")
    label_counts = None if labeled is None else count_labels(labeled)
    excluded = [data for name in ("labeled", "test", "dev") if (data := rows.get(name)) is not None and len(data)]
    next_rows = label_next(run, rows.get("unlabeled"), excluded, label_counts)
    score = result_score(run)
    patterns, agreed, confused = pattern_scores(run), agreement(run), confusion(run)
    return Findings(
        run=_run_summary(run),
        task=_task_summary(run),
        rows={
            DATA_NAMES[name]: DataSummary(data.rows, short_source(data.source))
            for name, data in run.inputs.data.items()
        },
        main=score,
        conclusions=conclusions(run, score),
        steps=next_steps(run, score, patterns, agreed, confused),
        numbers=stage_scores(run),
        patterns=patterns,
        teachers=run.metrics.teachers or [],
        agreement=agreed,
        generations=[generation.model_copy(update={"each": None}) for generation in run.metrics.generations or []],
        estimate=run.metrics.estimate,
        soft_labels=soft_labels(run, label_counts),
        confusion=confused,
        selective=selective(run, rows.get("test")),
        wrong=wrong_rows(run, rows.get("test"), problems.get("test")),
        next=replace(next_rows, problem=problems.get("unlabeled") if next_rows.rows else None),
        costs=run_costs(run),
        settings=_flatten(run.recipe.model_dump(exclude=None if run.task.multilabel else {"multilabel"})),
        notes=[_without_folders(note, run) for note in run.metrics.warnings],
    )


def _run_summary(run: RunRecord) -> RunSummary:
    return RunSummary(
        name=run.name,
        method=METHOD_NAMES[run.method],
        result="classifier" if run.has_classifier else "ensemble",
        model=run.inputs.model,
        student=run.inputs.student,
        recipe=run.recipe.name,
        seed=run.recipe.seed,
        repetitions=run.recipe.repetitions,
        versions={"clozify": run.inputs.clozify, "torch": run.inputs.torch},
    )


def _task_summary(run: RunRecord) -> TaskSummary:
    task = run.task
    return TaskSummary(
        name=task.name,
        description=task.description,
        fields=list(task.fields),
        metric=task.metric,
        headline=headline(run),
        multilabel=task.multilabel,
        labels=list(task.labels),
        verbalizers=[VerbalizerSummary(verbalizer.name, dict(verbalizer.words)) for verbalizer in task.verbalizers],
        patterns=list(task.patterns),
        groups=0 if task.label_groups is None else len(task.label_groups.names),
    )


def _reread_all(run: RunRecord) -> tuple[dict[str, Rows | None], dict[str, str]]:
    """The run's rows from their sources, and for those that cannot be read, why."""
    rows: dict[str, Rows | None] = {}
    problems: dict[str, str] = {}
    for name in run.inputs.data:
        if name == "unlabeled" and not run.scoring_members:
            continue
        try:
            rows[name] = reread_rows(run.inputs, name, unlabeled_ids(run) if name == "unlabeled" else None)
        except (ClozifyError, OSError) as error:
            rows[name] = None
            problems[name] = " ".join(str(error).split())
    return rows, problems


def short_source(source: str) -> str:
    """A data set's source; of a file, its name without folders."""
    return Path(source).name if Path(source).is_absolute() or source.count("/") > 1 else source


def _without_folders(note: str, run: RunRecord) -> str:
    for data in run.inputs.data.values():
        note = note.replace(data.source, short_source(data.source))
    return note


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
