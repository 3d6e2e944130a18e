"""The test rows that a run's result gets wrong, the most confident errors first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from clozify.data.predictions import top_labels
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.ensemble import Ensemble
from clozify.report.format import shorten
from clozify.report.run import RunRecord
from clozify.report.scores import MATRIX_LABELS, confused_labels
from clozify.runs.metrics import ClassifierMetrics
from clozify.runs.records import TEST_SCORES
from clozify.utils.checked_files import open_npy

MAX_WRONG = 20  # rows on the page
OTHER_LABELS = 2  # that are shown besides the predicted one, where there are many labels


@dataclass(frozen=True)
class WrongRow:
    """A test row that was predicted as another label."""

    id: Any
    texts: list[str]  # of the fields
    true: str
    predicted: str
    probability: float  # of the predicted label
    others: list[tuple[str, float]]  # the next likeliest labels, where there are many


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
    scores, labels = _test_scores(run), run.task.labels
    if scores is None or run.result is None or run.result.labels is None:
        return None
    if test is None or len(test) != len(scores):
        return WrongRows([], sum(rows for *_, rows in confused_labels(run)), problem)
    predicted, confidence = np.empty(len(test), dtype=np.int64), np.empty(len(test))
    for start, chunk in scores.chunks(chunk_rows(len(labels))):
        rows = slice(start, start + len(chunk))
        probabilities = softmax(chunk, axis=-1)
        predicted[rows], confidence[rows] = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    wrong = np.flatnonzero(predicted != test.labels)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")[:MAX_WRONG]]
    selected, of_chosen = test.select(chosen), softmax(scores[chosen], axis=-1)
    shown = OTHER_LABELS if len(labels) > MATRIX_LABELS else 0
    next_best = top_labels(of_chosen, 1 + shown)[:, 1:]
    texts = zip(*[selected.texts(field) for field in run.task.fields], strict=True)
    wrong_rows = [
        WrongRow(
            row_id,
            [shorten(text) for text in row_texts],
            labels[test.labels[index]],
            labels[predicted[index]],
            float(confidence[index]),
            [(labels[label], float(of_chosen[position, label])) for label in next_best[position]],
        )
        for position, (index, row_id, row_texts) in enumerate(zip(chosen, selected.ids(), texts, strict=True))
    ]
    return WrongRows(wrong_rows, len(wrong))


def _test_scores(run: RunRecord) -> Ensemble | None:
    """The result's raw scores of the test rows, (rows, labels), where the run's folder has them."""
    if isinstance(run.result, ClassifierMetrics):
        job = run.result.jobs[run.result.kept or 0]
        path = run.jobs_folder / "classifiers" / job / TEST_SCORES
        return Ensemble([open_npy(path)], [1.0]) if path.is_file() else None
    paths = [member.folder / TEST_SCORES for member in run.members]
    if not paths or not all(path.is_file() for path in paths):
        return None
    return Ensemble([open_npy(path) for path in paths], [member.weight for member in run.members])
