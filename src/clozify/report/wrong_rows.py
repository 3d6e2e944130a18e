"""The test rows that a run's result gets wrong, the most confident errors first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

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
    probability: float  # of the predicted label


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
    if scores is None or result is None or result.confusion is None:
        return None
    matrix = np.array(result.confusion)
    if test is None or len(test) != len(scores):
        return WrongRows([], int(matrix.sum() - np.trace(matrix)), problem)
    probabilities = softmax(scores.astype(np.float64), axis=-1)
    predicted, confidence = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    wrong = np.flatnonzero(predicted != test.labels)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")[:MAX_WRONG]]
    selected, labels = test.select(chosen), run.task.labels
    texts = zip(*[selected.texts(field) for field in run.task.fields], strict=True)
    rows = [
        WrongRow(
            row_id,
            [shorten(text) for text in row_texts],
            labels[test.labels[index]],
            labels[predicted[index]],
            float(confidence[index]),
        )
        for index, row_id, row_texts in zip(chosen, selected.ids(), texts, strict=True)
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
