"""Compares several finished runs: their results, their stages, and each label's F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozify.report.costs import stage_costs, total_seconds
from clozify.report.run import RunRecord
from clozify.report.scores import MATRIX_LABELS, Score, result_score, stage_scores
from clozify.runs.results import METHOD_NAMES


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    run: str
    folder: str
    task: str
    method: str
    model: str
    recipe: str
    labelled: int
    unlabelled: int
    test: int
    main: Score | None
    numbers: list[Score]
    seconds: float | None
    difference: float | None = None  # of the accuracy to the first run's; None where the test rows differ


@dataclass(frozen=True)
class LabelComparison:
    """One label's F1 in each run; None where a run has no test rows."""

    label: str
    f1: list[float | None]


@dataclass(frozen=True)
class Comparison:
    """Several runs."""

    runs: list[ComparedRun]
    labels: list[LabelComparison]
    truncated: bool  # whether only the labels that differ most are listed
    notes: list[str]


def compare_runs(records: Sequence[RunRecord]) -> Comparison:
    """Compare the runs with the first one."""
    notes = []
    if len({key for record in records if (key := _test_key(record)) is not None}) > 1:
        notes.append("The runs do not have the same test rows, so their scores cannot be compared.")
    if len({record.inputs.data["labeled"].texts for record in records}) > 1:
        notes.append("The runs were trained on different labelled rows.")
    labels = _label_comparisons(records)
    truncated = len(labels) > MATRIX_LABELS
    if truncated:
        labels = sorted(labels, key=_range, reverse=True)[:MATRIX_LABELS]
    return Comparison([_compared_run(record, records[0]) for record in records], labels, truncated, notes)


def _compared_run(record: RunRecord, first: RunRecord) -> ComparedRun:
    rows, score, first_score = record.metrics.rows, result_score(record), result_score(first)
    difference = None
    if record is not first and score and first_score and _test_key(record) == _test_key(first):
        difference = score.accuracy - first_score.accuracy
    return ComparedRun(
        run=record.name,
        folder=str(record.folder),
        task=record.task.name,
        method=METHOD_NAMES[record.method],
        model=record.inputs.model,
        recipe=record.recipe.name,
        labelled=rows["labeled"],
        unlabelled=rows.get("unlabeled", 0),
        test=rows.get("test", 0),
        main=score,
        numbers=[score for score in stage_scores(record) if score.method is None],
        seconds=total_seconds(stage_costs(record)),
        difference=difference,
    )


def _label_comparisons(records: Sequence[RunRecord]) -> list[LabelComparison]:
    """Each label's F1 in each run; empty where the runs have different labels."""
    if any(record.task.labels != records[0].task.labels for record in records):
        return []
    label_metrics = [record.result.labels if record.result else None for record in records]
    if not any(label_metrics):
        return []
    return [
        LabelComparison(label, [metrics[label].f1 if metrics else None for metrics in label_metrics])
        for label in records[0].task.labels
    ]


def _range(line: LabelComparison) -> float:
    values = [f1 for f1 in line.f1 if f1 is not None]
    return max(values) - min(values)


def _test_key(record: RunRecord) -> str | None:
    test = record.inputs.data.get("test")
    return None if test is None else test.texts
