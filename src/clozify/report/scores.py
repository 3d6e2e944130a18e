"""A run's scores on the test rows: of each stage, of other methods on the same rows, of each pattern and each label."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clozify.metrics import BasicMetrics, Evaluation, LabelMetrics, wilson_interval
from clozify.report.run import RunRecord
from clozify.runs.metrics import ClassifierMetrics, MembersMetrics, UnsupervisedMetrics
from clozify.runs.results import ENSEMBLE_METHODS, METHOD_NAMES
from clozify.utils.atomic import atomic_write_text
from clozify.utils.checked_files import naming_damaged, read_json

MATRIX_LABELS = 20  # the most labels or pairs shown as a matrix; with more, only the most notable are listed
TABLE_LABELS = 1000  # the most labels in a table that sorts
DISTILLATION_GAP = 0.03  # a classifier this much below its ensemble is pointed out
TFIDF_NAME = "TF-IDF, logistic regression"
RESULTS = "results"  # folder with the score of every method that was trained in the run's folder


@dataclass(frozen=True)
class Score:
    """Accuracy and macro-F1 of one stage or method, with their spread over seeds or patterns.

    With several labels a row, `accuracy` is micro-F1, and `exact_match` the fraction of rows with all labels right.
    """

    name: str
    accuracy: float
    macro_f1: float
    result: bool = False  # whether it is the run's result
    accuracy_std: float | None = None
    macro_f1_std: float | None = None
    low: float | None = None  # accuracy of the worst pattern or training
    high: float | None = None
    spread: str | None = None  # what `low` and `high` range over
    calibration_error: float | None = None
    method: str | None = None  # of another method's result
    interval: tuple[float, float] | None = None  # 95% confidence interval of the accuracy
    macro_f1_interval: tuple[float, float] | None = None  # in comparisons of runs
    trivial: bool = False  # whether it takes no language model
    exact_match: float | None = None


def headline(run: RunRecord) -> str:
    """The name of the metric that the report shows as `Score.accuracy`."""
    return "micro-F1" if run.task.multilabel else "accuracy"


def _main(metrics: Any) -> float:
    """Micro-F1 where metrics have it, else the accuracy."""
    return float(metrics.accuracy if metrics.micro_f1 is None else metrics.micro_f1)


def stage_scores(run: RunRecord) -> list[Score]:
    """The score of every stage from the untrained patterns to the result, then of other methods and trivial ones."""
    if "test" not in run.inputs.data:
        return []
    names = {
        "unsupervised": "patterns before training, mean",
        "members": "trained patterns, mean",
        "ensemble": "ensemble",
        "classifier": f"classifier ({METHOD_NAMES[run.method]})",
        "static": "static classifier",
        **{key: f"classifier ({METHOD_NAMES[key]})" for key in ("supervised", "uda", "mixtext")},
    }
    scores = []
    for key, name in names.items():
        score = _score(getattr(run.metrics, key), name)
        if score is not None:
            scores.append(replace(score, result=key == run.result_key))
    scores += other_method_scores(run) + _trivial_scores(run)
    rows = run.metrics.rows["test"]
    if run.task.multilabel:  # the interval is one of fractions of rows
        return scores
    return [replace(score, interval=wilson_interval(score.accuracy, rows)) for score in scores]


def _trivial_scores(run: RunRecord) -> list[Score]:
    """The scores of what takes no language model."""
    trivial = run.metrics.trivial
    if trivial is None:
        return []
    lines = {TFIDF_NAME: trivial.tfidf, majority_name(trivial.majority_label): trivial.majority}
    scores = {name: _score(metrics, name) for name, metrics in lines.items()}
    return [replace(score, trivial=True) for score in scores.values() if score is not None]


def majority_name(label: str) -> str:
    """The name of the baseline that always answers the most frequent label."""
    return f"always '{label}'"


def _score(
    metrics: UnsupervisedMetrics | MembersMetrics | BasicMetrics | ClassifierMetrics | None, name: str
) -> Score | None:
    if metrics is None or metrics.accuracy is None or metrics.macro_f1 is None:
        return None
    exact_match = None if metrics.micro_f1 is None else metrics.accuracy
    score = Score(name, _main(metrics), metrics.macro_f1, exact_match=exact_match)
    if isinstance(metrics, UnsupervisedMetrics):
        accuracies = [pair.main for pair in metrics.pairs]
        return replace(score, low=min(accuracies), high=max(accuracies), spread="patterns")
    if isinstance(metrics, MembersMetrics):
        return replace(score, low=metrics.min, high=metrics.max, spread="patterns")
    if isinstance(metrics, (Evaluation, ClassifierMetrics)):
        score = replace(score, calibration_error=metrics.calibration_error)
    if isinstance(metrics, ClassifierMetrics) and len(each := metrics.micro_f1_each or metrics.accuracy_each or []) > 1:
        std = metrics.accuracy_std if metrics.micro_f1_std is None else metrics.micro_f1_std
        score = replace(score, accuracy_std=std, macro_f1_std=metrics.macro_f1_std)
        score = replace(score, low=min(each), high=max(each), spread=f"{len(each)} trainings")
    return score


def result_score(run: RunRecord) -> Score | None:
    """The score of the run's result; None without test rows."""
    return next((score for score in stage_scores(run) if score.result), None)


def comparison_key(run: RunRecord) -> dict[str, Any]:
    """What must be equal for the scores of two runs to be compared: labels, fields, labelled and test rows."""
    texts = {name: run.inputs.data[name].texts for name in ("labeled", "test") if name in run.inputs.data}
    return {"labels": list(run.task.labels), "fields": list(run.task.fields), "rows": texts}


def save_result(run: RunRecord, other: RunRecord | None = None) -> None:
    """Write the score of a run, or of another one, into the run's folder, where reports of other methods find it."""
    source = other or run
    score = result_score(source)
    if score is None:
        return
    line = {name: value for name, value in asdict(score).items() if value is not None}
    content = {"line": line, "recipe": source.recipe.name, **comparison_key(source)}
    path = run.jobs_folder / RESULTS / f"{source.method}.json"
    path.parent.mkdir(exist_ok=True)
    atomic_write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def other_method_scores(run: RunRecord) -> list[Score]:
    """The results of other methods in this folder, where the labelled and test rows are the same."""
    key = comparison_key(run)
    scores = []
    for method, name in METHOD_NAMES.items():
        path = run.jobs_folder / RESULTS / f"{method}.json"
        if method == run.method or not path.is_file():
            continue
        content = read_json(path)
        with naming_damaged(path):
            if all(content[part] == key[part] for part in key):
                line = {
                    part: value for part, value in dict(content["line"]).items() if part in Score.__dataclass_fields__
                }
                scores.append(Score(**line | {"name": f"for comparison: {name}", "result": False, "method": method}))
    return scores


def conclusions(run: RunRecord, result: Score | None) -> list[str]:
    """Sentences that compare the result with other methods and with its own ensemble."""
    if result is None:
        return []
    sentences = []
    metric, article = headline(run), "a" if run.task.multilabel else "an"
    for other in other_method_scores(run):
        points = 100 * (result.accuracy - other.accuracy)
        difference = f"{abs(points):.1f} points {'above' if points > 0 else 'below'} that"
        difference = difference if abs(points) >= 0.05 else "on a par"
        name = METHOD_NAMES[other.method or ""]
        sentences.append(
            f"For comparison: {name} reaches {article} {metric} of {100 * other.accuracy:.1f} with the same labelled "
            f"rows; this run is {difference}."
        )
    if run.metrics.ensemble is not None and loses_to_ensemble(run, result):
        gap = 100 * (run.metrics.ensemble.main - result.accuracy)
        sentences.append(
            f"The classifier is {gap:.1f} points less accurate than the ensemble that labelled its training rows: "
            "train it for more steps (`distill.max_steps`), or on more unlabelled rows."
        )
    transformer = _score(run.metrics.classifier, "") if run.metrics.static is not None else None
    if transformer is not None and transformer.accuracy - result.accuracy > DISTILLATION_GAP:
        gap = 100 * (transformer.accuracy - result.accuracy)
        sentences.append(
            f"The static classifier is {gap:.1f} points less accurate than the transformer that labelled its training "
            "rows: train it on more unlabelled rows, or keep the transformer (without `--student static`)."
        )
    return sentences


def loses_to_ensemble(run: RunRecord, result: Score) -> bool:
    """Whether a classifier is much less accurate than the ensemble that labelled its training rows."""
    ensemble = run.metrics.ensemble
    if run.result_key != "classifier" or ensemble is None:
        return False
    return ensemble.main - result.accuracy > DISTILLATION_GAP


@dataclass(frozen=True)
class PatternScore:
    """One pair: its wording, its accuracy before and after training, and its fraction of the ensemble's weights."""

    pair: str
    pattern: str
    verbalizer: str
    weight: float
    before_on_labelled: float | None = None
    before: float | None = None  # on the test rows, as all that follow
    after: float | None = None
    low: float | None = None
    high: float | None = None


def pattern_scores(run: RunRecord) -> list[PatternScore]:
    """Every pair of a run with an ensemble."""
    if run.method not in ENSEMBLE_METHODS:
        return []
    untrained, unsupervised, trained = run.metrics.untrained, run.metrics.unsupervised, run.metrics.members
    on_labeled = untrained.accuracy_on_labeled if untrained else None
    total = sum(member.weight for member in run.members)
    scores = []
    for index, pair in enumerate(run.task.pairs):
        weights = [member.weight for member in run.members if member.pair == pair.name]
        weight = sum(weights) / total if total else len(weights) / max(1, len(run.members))
        score = PatternScore(pair.name, pair.pattern.text, pair.verbalizer.name, weight)
        if on_labeled:
            score = replace(score, before_on_labelled=on_labeled[index])
        if unsupervised:
            score = replace(score, before=unsupervised.pairs[index].main)
        each = [_main(member) for member in trained.each if member.pair == pair.name] if trained else []
        if each:  # `max_pairs` may have left the pair out
            score = replace(score, after=float(np.mean(each)), low=min(each), high=max(each))
        scores.append(score)
    return scores


@dataclass(frozen=True)
class LabelScore:
    """One label's, or one group's, precision, recall and F1 on the test rows."""

    label: str
    precision: float
    recall: float
    f1: float
    rows: int
    recall_interval: tuple[float, float] | None = None  # 95% confidence interval
    group: str | None = None  # of the label, where the task has groups


@dataclass(frozen=True)
class ConfusedLabels:
    """How many test rows of one label were predicted as another."""

    true: str
    predicted: str
    rows: int
    total: int  # test rows with the true label
    groups: tuple[str, str] | None = None  # of the true and the predicted label, where the task has groups


@dataclass(frozen=True)
class GroupScores:
    """The result's predictions as groups of labels."""

    accuracy: float
    interval: tuple[float, float]
    macro_f1: float
    errors: int  # rows whose label is wrong
    errors_across: int  # of these, the rows whose group is wrong, too
    scores: list[LabelScore]  # of many groups those with the lowest F1 first


@dataclass(frozen=True)
class Confusion:
    """What the result confuses, and the scores of its labels; of many labels the most confused and the worst first."""

    labels: list[str]
    matrix: list[list[int]] | None  # [true label][predicted label]; None with many labels
    fractions: list[list[float]] | None  # of the true label's rows
    worst: list[ConfusedLabels]
    label_scores: list[LabelScore]
    truncated: bool  # whether there are more labels than `label_scores` has
    groups: GroupScores | None = None


def confusion(run: RunRecord) -> Confusion | None:
    """What the result confuses; None without test rows. With several labels a row, the labels' scores alone."""
    result, labels, groups = run.result, list(run.task.labels), run.task.label_groups
    if result is None or result.labels is None:
        return None
    group_of = dict(zip(labels, groups.by_label, strict=True)) if groups is not None else {}
    worst = [
        ConfusedLabels(
            true,
            predicted,
            rows,
            result.labels[true].rows,
            (group_of[true], group_of[predicted]) if group_of else None,
        )
        for true, predicted, rows in confused_labels(run)[:MATRIX_LABELS]
    ]
    label_scores = _sorted_scores({label: result.labels[label] for label in labels}, group_of)
    truncated = len(label_scores) < len(labels)
    grouped = _group_scores(run)
    if len(labels) > MATRIX_LABELS or result.confusion is None:
        return Confusion(labels, None, None, worst, label_scores, truncated, grouped)
    matrix = np.array(result.confusion)
    fractions = (matrix / np.maximum(matrix.sum(axis=1), 1)[:, None]).tolist()
    return Confusion(labels, matrix.tolist(), fractions, worst, label_scores, truncated, grouped)


def confused_labels(run: RunRecord) -> list[tuple[str, str, int]]:
    """The true and the predicted label of the result's errors on the test rows, with their number; most rows first."""
    result, labels = run.result, run.task.labels
    if result is None or result.confusion is None:
        return [] if result is None else result.confused or []
    matrix = np.array(result.confusion)
    np.fill_diagonal(matrix, 0)
    true, predicted = np.nonzero(matrix)
    rows = matrix[true, predicted]
    order = np.argsort(-rows, kind="stable")
    return [(labels[true[index]], labels[predicted[index]], int(rows[index])) for index in order]


def _sorted_scores(metrics: Mapping[str, LabelMetrics], group_of: Mapping[str, str]) -> list[LabelScore]:
    """The scores in their order; of many, at most `TABLE_LABELS`, the lowest F1 first, those without rows last."""
    scores = []
    for label, values in metrics.items():
        interval = wilson_interval(values.recall, values.rows) if values.rows else None
        numbers = (values.precision, values.recall, values.f1, values.rows)
        scores.append(LabelScore(label, *numbers, interval, group_of.get(label)))
    if len(scores) > MATRIX_LABELS:
        scores = sorted(scores, key=lambda score: (not score.rows, score.f1))[:TABLE_LABELS]
    return scores


def _group_scores(run: RunRecord) -> GroupScores | None:
    groups = None if run.result is None else run.result.groups
    if groups is None:
        return None
    return GroupScores(
        accuracy=groups.accuracy,
        interval=wilson_interval(groups.accuracy, run.metrics.rows["test"]),
        macro_f1=groups.macro_f1,
        errors=groups.errors,
        errors_across=groups.errors_across,
        scores=_sorted_scores(groups.groups, {}),
    )
