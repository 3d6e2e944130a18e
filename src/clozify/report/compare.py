"""Compares several finished runs: their results, whether these differ by more than chance, and each label's F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clozify.data.rows import Rows
from clozify.errors import ClozifyError, DataError
from clozify.methods.paired import f1_interval, paired_difference
from clozify.report.costs import stage_costs, total_seconds
from clozify.report.differences import Compared, Difference, describe_difference
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.scores import MATRIX_LABELS, Score, headline, result_score, stage_scores
from clozify.report.test_predictions import TestPredictions, load_test_predictions
from clozify.runs.metrics import AccuracyMetrics
from clozify.runs.results import METHOD_NAMES

MANY_COMPARISONS = 3  # from here on, chance finds a difference among them often enough to say so


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
    estimate: AccuracyMetrics | None  # without test rows
    numbers: list[Score]
    seconds: float | None
    difference: float | None = None  # of the accuracy to the first run's; None where the test rows differ
    paired: Difference | None = None  # the same row by row; None where that is not possible
    sentence: str | None = None  # how it differs from the first run, and whether that may be chance


@dataclass(frozen=True)
class LabelComparison:
    """One label's F1 in each run, with its 95% interval; None where a run has no test rows."""

    label: str
    f1: list[float | None]
    intervals: list[tuple[float, float] | None]


@dataclass(frozen=True)
class Comparison:
    """Several runs."""

    runs: list[ComparedRun]
    labels: list[LabelComparison]
    truncated: bool  # whether only the labels that differ most are listed
    notes: list[str]


def compare_runs(records: Sequence[RunRecord], test: Rows | None = None) -> Comparison:
    """Compare the runs with the first one; `test` are the test rows, where they cannot be read again."""
    notes = []
    if len({key for record in records if (key := _test_key(record)) is not None}) > 1:
        notes.append("The runs do not have the same test rows, so their scores cannot be compared row by row.")
    if len({record.inputs.data["labeled"].texts for record in records}) > 1:
        notes.append("The runs were trained on different labelled rows.")
    predictions, problems = _load_predictions(records, test)
    if test is not None and not any(predictions):
        raise DataError(f"'{test.source}' does not hold the test rows of these runs; name the file with exactly these.")
    labels = _label_comparisons(records)
    truncated = len(labels) > MATRIX_LABELS
    if truncated:
        labels = sorted(labels, key=_range, reverse=True)[:MATRIX_LABELS]
    runs = [
        _compared_run(record, name, each)
        for record, name, each in zip(records, run_names(records), predictions, strict=True)
    ]
    compared = [runs[0]]
    for index in range(1, len(runs)):
        paired = _paired(predictions[index], predictions[0], records[index], records[0])
        compared.append(_against_first(runs, records, index, paired, problems[index] or problems[0]))
    if (count := sum(run.paired is not None for run in compared)) >= MANY_COMPARISONS:
        notes.append(f"Of {count} comparisons of equally good runs, one in twenty looks like more than chance.")
    return Comparison(compared, labels, truncated, notes)


def run_names(records: Sequence[RunRecord]) -> list[str]:
    """A name for each run: its folder's, with the method or the path where several have the same."""
    names = [record.name for record in records]
    for longer in (
        [f"{record.name} ({METHOD_NAMES[record.method]})" for record in records],
        [str(record.folder) for record in records],
    ):
        names = [long if names.count(name) > 1 else name for name, long in zip(names, longer, strict=True)]
    return names


def _compared_run(record: RunRecord, name: str, predictions: TestPredictions | None) -> ComparedRun:
    rows, score = record.metrics.rows, result_score(record)
    if score is not None and predictions is not None:
        score = replace(score, macro_f1_interval=predictions.macro_f1_interval(score.macro_f1))
        if record.task.multilabel:
            score = replace(score, interval=predictions.micro_f1_interval(score.accuracy))
    return ComparedRun(
        run=name,
        folder=str(record.folder),
        task=record.task.name,
        method=METHOD_NAMES[record.method],
        model=record.inputs.model,
        recipe=record.recipe.name,
        labelled=rows["labeled"],
        unlabelled=rows.get("unlabeled", 0),
        test=rows.get("test", 0),
        main=score,
        estimate=record.metrics.estimate,
        numbers=[score for score in stage_scores(record) if score.method is None],
        seconds=total_seconds(stage_costs(record)),
    )


def _against_first(
    runs: Sequence[ComparedRun],
    records: Sequence[RunRecord],
    index: int,
    paired: Difference | None,
    problem: str | None,
) -> ComparedRun:
    """A run with its difference to the first one, in numbers and in words."""
    run, first = runs[index], runs[0]
    same_rows = _test_key(records[index]) == _test_key(records[0])
    difference = None
    if run.main is not None and first.main is not None and same_rows:
        difference = run.main.accuracy - first.main.accuracy
    one, other = (Compared(each.run, each.main, each.estimate) for each in (run, first))
    sentence = describe_difference(one, other, headline(records[index]), paired, same_rows, problem)
    return replace(run, difference=difference, paired=paired, sentence=sentence)


def _paired(
    predictions: TestPredictions | None, first: TestPredictions | None, run: RunRecord, other: RunRecord
) -> Difference | None:
    """The difference of two runs row by row; None where the rows or the labels differ, or predictions are missing."""
    if predictions is None or first is None or _test_key(run) != _test_key(other):
        return None
    if list(run.task.labels) != list(other.task.labels):
        return None
    accuracy = paired_difference(predictions.hits, first.hits)
    if not run.task.multilabel:
        return Difference(**vars(accuracy))
    score, first_score = result_score(run), result_score(other)
    assert score is not None  # there are predictions
    assert first_score is not None
    samples = predictions.f1_samples.micro - first.f1_samples.micro
    interval = accuracy.low, accuracy.high
    micro_f1 = f1_interval(score.accuracy - first_score.accuracy, samples, accuracy.difference, interval)
    return Difference(**vars(accuracy), micro_f1_interval=micro_f1)


def _load_predictions(
    records: Sequence[RunRecord], test: Rows | None
) -> tuple[list[TestPredictions | None], list[str | None]]:
    """Each run's predictions of its test rows, and where there are none, why; rows are read once for equal texts."""
    rows_of_key: dict[str, Rows] = {}
    predictions: list[TestPredictions | None] = []
    problems: list[str | None] = []
    for record in records:
        problem, loaded = None, None
        if (key := _test_key(record)) is not None:
            try:
                if key not in rows_of_key:
                    rows_of_key[key] = _read_test_rows(record, records, test)
                loaded = load_test_predictions(record, rows_of_key[key].with_task(record.task))
            except (ClozifyError, OSError) as error:
                problem = " ".join(str(error).split())
        predictions.append(loaded)
        problems.append(problem)
    return predictions, problems


def _read_test_rows(record: RunRecord, records: Sequence[RunRecord], test: Rows | None) -> Rows:
    """The test rows of a run, from its own source or that of another run with the same rows."""
    errors = list[Exception]()
    for other in [record, *(other for other in records if _test_key(other) == _test_key(record))]:
        try:
            return reread_rows(other.inputs, "test", source_rows=None if test is None else test.with_task(other.task))
        except (ClozifyError, OSError) as error:
            errors.append(error)
    raise errors[0]


def _label_comparisons(records: Sequence[RunRecord]) -> list[LabelComparison]:
    """Each label's F1 in each run; empty where the runs have different labels."""
    if any(record.task.labels != records[0].task.labels for record in records):
        return []
    label_metrics = [record.result.labels if record.result else None for record in records]
    if not any(label_metrics):
        return []
    return [
        LabelComparison(
            label,
            [metrics[label].f1 if metrics else None for metrics in label_metrics],
            [metrics[label].f1_interval if metrics else None for metrics in label_metrics],
        )
        for label in records[0].task.labels
    ]


def _range(line: LabelComparison) -> float:
    values = [f1 for f1 in line.f1 if f1 is not None]
    return max(values) - min(values)


def _test_key(record: RunRecord) -> str | None:
    test = record.inputs.data.get("test")
    return None if test is None else test.texts
