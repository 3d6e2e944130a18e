"""The test rows that a run's result gets wrong, the most confident errors first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.report.format import shorten
from clozify.report.run import RunRecord
from clozify.runs.metrics import ClassifierMetrics
from clozify.runs.records import TEST_SCORES
from clozify.utils.checked_files import open_npy

MAX_WRONG = 20  # rows on the page


@dataclass(frozen=True)
class WrongRow:
    """A test row that was predicted as another label."""

    id: Any
    texts: list[str]  # of the fields
    true: str
    predicted: str
    probability: float  # of the predicted label; of several, of the most confident wrong decision


@dataclass(frozen=True)
class WrongRows:
    """The most confident errors, and how many errors there are."""

    rows: list[WrongRow]
    total: int
    problem: str | None = None  # why the rows cannot be shown


def wrong_rows(run: RunRecord, test: Rows | None, problem: str | None) -> WrongRows | None:
    """The errors of the run's result; None without test rows or kept scores.

    `problem` says why the test rows could not be read, where `test` is None.
    """
    result = run.result
    scores = _test_scores(run)
    if scores is None or result is None or result.accuracy is None:
        return None
    if test is None or len(test) != len(scores):
        return WrongRows([], len(scores) - round(result.accuracy * len(scores)), problem)
    decision = run.decision
    probabilities = decision.probabilities(scores)
    predicted = decision.predict(probabilities)
    if decision.multilabel:
        errors = np.where(predicted != test.targets, np.where(predicted == 1, probabilities, 1 - probabilities), 0.0)
        wrong, confidence = np.flatnonzero(errors.any(axis=-1)), errors.max(axis=-1)
    else:
        wrong, confidence = np.flatnonzero(predicted != test.labels), probabilities.max(axis=-1)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")[:MAX_WRONG]]
    selected = test.select(chosen)
    true, answers = decision.names(test.targets[chosen]), decision.names(predicted[chosen])
    texts = zip(*[selected.texts(field) for field in run.task.fields], strict=True)
    rows = [
        WrongRow(
            row_id,
            [shorten(text) for text in row_texts],
            true_label,
            answer,
            float(confidence[index]),
        )
        for index, row_id, row_texts, true_label, answer in zip(
            chosen, selected.ids(), texts, true, answers, strict=True
        )
    ]
    return WrongRows(rows, len(wrong))


def _test_scores(run: RunRecord) -> NDArray[np.floating[Any]] | None:
    """The result's raw scores of the test rows, (rows, labels), where the run's folder has them."""
    if isinstance(run.result, ClassifierMetrics):
        job = run.result.jobs[run.result.kept or 0]
        path = run.jobs_folder / "classifiers" / job / TEST_SCORES
        return open_npy(path) if path.is_file() else None
    paths = [member.folder / TEST_SCORES for member in run.members]
    if not paths or not all(path.is_file() for path in paths):
        return None
    return combine_scores([open_npy(path) for path in paths], [member.weight for member in run.members])
