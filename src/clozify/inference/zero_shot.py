"""Implements `clozify zero-shot`: predictions before any training (lines 1 and 2 of the paper's table 1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import entropy

from clozify.config.recipe import load_recipe
from clozify.config.task import Task, TaskSource, load_task
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.predictions import check_output, write_predictions
from clozify.data.rows import Rows
from clozify.errors import DataError
from clozify.inference.model_teachers import model_teachers
from clozify.methods.calibration import imbalance_warnings, min_rows
from clozify.methods.score import MAX_LENGTH
from clozify.methods.votes import hard_votes
from clozify.methods.zero_shot import ZeroShotScores, score_zero_shot
from clozify.metrics import accuracy
from clozify.models.language_model import LanguageModel, load_model
from clozify.runs.plan import empty_rows
from clozify.teachers.base import PATTERNS, ScoringContext, Teacher, by_row_limit, row_limit, silent_warnings
from clozify.teachers.build import build_teachers
from clozify.utils.user_cache import user_cache


@dataclass(frozen=True)
class PairScores:
    """One metric of the untrained pairs."""

    mean: float  # over the pairs
    best: float  # of the pairs
    ensemble: float
    patterns: list[float]  # one per pair


@dataclass(frozen=True)
class TeacherVotes:
    """A teacher without labelled rows: what it covers and counts for."""

    name: str
    weight: float
    estimated_accuracy: float  # where it votes, from how teachers agree
    coverage: float  # the fraction of rows on which it votes
    accuracy: float | None = None  # where it votes; None without labels


@dataclass(frozen=True)
class ZeroShotResult:
    """Predictions of the untrained pairs, and how good they are where the rows have labels."""

    task: Task
    model: str
    rows: Rows
    scores: ZeroShotScores  # of every pair
    accuracy: PairScores | None  # None without labels
    macro_f1: PairScores | None
    micro_f1: PairScores | None  # with several labels a row alone
    calibrated: bool
    teachers: list[TeacherVotes]  # besides the pairs, and first all pairs as one; empty where there are no others
    calibration: str  # whether the probabilities are calibrated, and why or why not: one sentence
    warnings: list[str]
    output: Path | None
    seconds: float

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """The ensemble's probabilities, (rows, labels), the columns in the order of `task.labels`."""
        return np.concatenate([self.scores.probabilities(start, stop) for start, stop in self.scores.chunks()])

    @cached_property
    def _predicted(self) -> NDArray[Any]:
        predicted: NDArray[Any] = self.scores.predictions()[-1]
        return predicted

    @property
    def labels(self) -> list[str]:
        """Each row's label as the ensemble predicts it; several in one text, as `a|b`."""
        return self.scores.decision.names(self._predicted)

    @property
    def label_counts(self) -> dict[str, int]:
        """How many rows each label is predicted for."""
        labels = self.task.labels
        several = self.task.multilabel
        counts = self._predicted.sum(axis=0) if several else np.bincount(self._predicted, minlength=len(labels))
        return {label: int(count) for label, count in zip(labels, counts, strict=True)}

    @property
    def groups(self) -> list[str] | None:
        """The group of each row's label; None where the task has no groups."""
        groups = self.task.label_groups
        return None if groups is None else [groups.by_label[index] for index in self._predicted]

    @property
    def group_accuracy(self) -> float | None:
        """The fraction of rows with a label whose group is predicted correctly; None without labels or groups."""
        groups = self.task.label_groups
        if groups is None or self.accuracy is None:
            return None
        labels, labelled = self.rows.labels, self.rows.is_labeled
        return accuracy(groups.indices[labels[labelled]], groups.indices[self._predicted[labelled]])

    def to_json(self) -> dict[str, Any]:
        """What `clozify zero-shot --json` prints."""
        metrics = {"accuracy": self.accuracy, "macro_f1": self.macro_f1, "micro_f1": self.micro_f1}
        group_accuracy = self.group_accuracy
        return {
            "task": self.task.name,
            "model": self.model,
            "data": self.rows.source,
            "rows": len(self.rows),
            "labeled_rows": int(self.rows.is_labeled.sum()) if self.rows.has_labels else 0,
            "calibrated": self.calibrated,
            "calibration": self.calibration,
            "pairs": [
                {"name": pair.name, "pattern": pair.pattern.text, "verbalizer": pair.verbalizer.name}
                for pair in self.task.pairs
            ],
            **{name: vars(metric) for name, metric in metrics.items() if metric is not None},
            **({} if group_accuracy is None else {"group_accuracy": group_accuracy}),
            **({"teachers": [vars(teacher) for teacher in self.teachers]} if self.teachers else {}),
            "predicted": self.label_counts,
            "warnings": self.warnings,
            "output": None if self.output is None else str(self.output),
            "seconds": round(self.seconds, 2),
        }


def zero_shot(
    task: TaskSource,
    data: RowSource,
    model: str | Path | LanguageModel = "builtin",
    output: str | Path | None = None,
    calibrate: bool | None = None,
    column_mapping: Mapping[str, str] | None = None,
    max_length: int = MAX_LENGTH,
    labels_a_row: float = 1.0,
    teachers: Sequence[Any] = (),
    budget: str | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
) -> ZeroShotResult:
    """Predict every row with every pair of the task, and its rules and teachers, without any training.

    - `task`: a task file, a shipped task's name, a dict with the entries of a task file, or a `Task`.
    - `data`: a file's name, or rows in memory, as for `predict`; with labels, accuracy and macro-F1 are measured.
    - `model`: a folder, a hub name, `builtin`, or what `load_model` returned.
    - `output`: a file to write the predictions to: .csv, .jsonl or .parquet.
    - `calibrate`: divide each label's probability by its mean over the data; by default where there are enough rows.
    - `column_mapping`: the data's column for a field, as in `{"text": "body"}`.
    - `max_length`: the most tokens of a row.
    - `settings`: of the recipe's section `generative`, such as `{"generative.chat": "never"}`.
    - `labels_a_row`: how many labels a row has on average, where a task allows several: the highest scores of all rows
      are predicted, so many that this holds. Without labelled rows no threshold can be chosen.
    - `teachers`: who votes besides the patterns and the task's own rules and teachers, as for `train`.
    - `budget`: the most that an LLM behind an API may cost, as for `train`. Its answers are kept in the folder
      `clozify` of the user's cache, so that none is paid for twice.
    """
    task = load_task(task)
    others: list[Teacher] = by_row_limit(build_teachers(task, teachers, budget))
    if not 0 < labels_a_row <= len(task.labels):
        raise DataError(
            f"Rows cannot have {labels_a_row:g} of {len(task.labels)} labels on average; name more or fewer."
        )
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path, *([data] if isinstance(data, (str, Path)) else []))
    rows = load_rows(data, task, column_mapping)
    unlabeled = int((~rows.is_labeled).sum()) if rows.has_labels else 0  # unknown labels fail before the model
    generative = load_recipe("paper", settings).generative
    model = load_model(model, generative=generative) if isinstance(model, (str, Path)) else model
    calibrated = len(rows) >= min_rows(len(task.labels)) if calibrate is None else calibrate
    others = [*model_teachers(task, calibrated, max_length, generative), *others]
    start_time, remarks = time.monotonic(), list[str]()
    scores = score_zero_shot(model, rows, calibrated, max_length, labels_a_row)
    if others:
        scores = _with_teachers(scores, others, model.device.type, remarks.append)
    seconds = time.monotonic() - start_time
    if path is not None:
        chunks = ((start, scores.probabilities(start, stop)) for start, stop in scores.chunks())
        write_predictions(path, rows, chunks, decision=scores.decision)
    voters = _teacher_votes(others, scores) if others else []
    warnings = scores.warnings + remarks + silent_warnings([voter.name for voter in voters if not voter.coverage])
    if unlabeled:
        warnings.append(f"{unlabeled:,} of {len(rows):,} rows have no label and do not count in the accuracy.")
    if calibrated and rows.has_labels and not task.multilabel:
        warnings += imbalance_warnings(rows.labels, task.labels)
    metrics = {name: PairScores(**values) for name, values in (scores.metrics() if rows.has_labels else {}).items()}
    return ZeroShotResult(
        task=task,
        model=model.name,
        rows=rows,
        scores=scores,
        accuracy=metrics.get("accuracy"),
        macro_f1=metrics.get("macro_f1"),
        micro_f1=metrics.get("micro_f1"),
        calibrated=calibrated,
        teachers=voters,
        calibration=_explain_calibration(calibrate, calibrated, rows) + _explain_count(task, labels_a_row),
        warnings=warnings,
        output=path,
        seconds=seconds,
    )


def _with_teachers(
    scores: ZeroShotScores, teachers: Sequence[Teacher], device: str, log: Callable[[str], None]
) -> ZeroShotScores:
    """The scores with the votes of other teachers; nothing is known of the rows' labels.

    `teachers` are in the order of `by_row_limit`: who cannot score all rows is asked about those that the others are
    least sure of.
    """
    rows = scores.rows
    context = ScoringContext(empty_rows(rows.task), device, user_cache() / "answers", log)
    for teacher in teachers:
        uncertainty = None
        if row_limit(teacher) is not None:
            entropies = [entropy(scores.probabilities(start, stop), axis=-1) for start, stop in scores.chunks()]
            uncertainty = np.concatenate(entropies)
        votes = teacher.score(rows, replace(context, uncertainty=uncertainty))
        scores = scores.with_teachers([*scores.other_scores, votes])
    return scores


def _teacher_votes(teachers: Sequence[Teacher], scores: ZeroShotScores) -> list[TeacherVotes]:
    """What each teacher covers and counts for, the pairs first."""
    rows = scores.rows
    truth = rows.labels if rows.has_labels and rows.is_labeled.any() else None
    pairs = [hard_votes(scores.pair_scores(start, stop).mean(axis=0)) for start, stop in scores.chunks()]
    votes = [np.concatenate(pairs), *(hard_votes(of_teacher) for of_teacher in scores.other_scores)]
    lines = []
    for name, of_teacher, weight in zip([PATTERNS, *(t.name for t in teachers)], votes, scores.weights, strict=True):
        voted = of_teacher >= 0 if truth is None else (of_teacher >= 0) & rows.is_labeled
        right = None if truth is None or not voted.any() else accuracy(truth[voted], of_teacher[voted])
        lines.append(TeacherVotes(name, weight.weight, weight.accuracy, weight.coverage, right))
    return lines


def _explain_count(task: Task, labels_a_row: float) -> str:
    """A sentence about the assumed number of labels, where rows may have several."""
    if not task.multilabel:
        return ""
    return (
        f" The highest scores of all rows are predicted, {labels_a_row:g} a row on average: --labels-a-row sets the "
        "number, since thresholds take labelled rows."
    )


def _explain_calibration(calibrate: bool | None, calibrated: bool, rows: Rows) -> str:
    """A sentence that says whether the probabilities are calibrated, and why or why not."""
    if calibrated:
        return f"Probabilities are calibrated on these {len(rows):,} rows."
    if calibrate is None:
        labels = len(rows.task.labels)
        return f"Probabilities are not calibrated: with {labels} labels that takes {min_rows(labels)} rows or more."
    return "Probabilities are not calibrated, as requested."
