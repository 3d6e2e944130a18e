"""The test rows that a run's result gets wrong, the most confident errors first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.predictions import top_labels
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.ensemble import Ensemble
from clozify.report.format import shorten
from clozify.report.run import RunRecord
from clozify.report.scores import MATRIX_LABELS
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
    probability: float  # of the predicted label; of several, of the most confident wrong decision
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
    scores, labels, decision = test_scores(run), run.task.labels, run.decision
    if scores is None or run.result is None or run.result.labels is None:
        return None
    if test is None or len(test) != len(scores):
        assert run.result.accuracy is not None
        return WrongRows([], len(scores) - round(run.result.accuracy * len(scores)), problem)
    is_wrong, confidence = np.empty(len(test), dtype=bool), np.empty(len(test))
    for start, chunk in scores.chunks(chunk_rows(len(labels))):
        rows = slice(start, start + len(chunk))
        is_wrong[rows], confidence[rows] = _errors(decision, decision.probabilities(chunk), test.targets[rows])
    wrong = np.flatnonzero(is_wrong)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")[:MAX_WRONG]]
    selected, of_chosen = test.select(chosen), decision.probabilities(scores[chosen])
    true, answers = decision.names(test.targets[chosen]), decision.names(decision.predict(of_chosen))
    shown = OTHER_LABELS if len(labels) > MATRIX_LABELS and not decision.multilabel else 0
    next_best = top_labels(of_chosen, 1 + shown)[:, 1:]
    texts = zip(*[selected.texts(field) for field in run.task.fields], strict=True)
    wrong_rows = [
        WrongRow(
            row_id,
            [shorten(text) for text in row_texts],
            true_label,
            answer,
            float(confidence[index]),
            [(labels[label], float(of_chosen[position, label])) for label in next_best[position]],
        )
        for position, (index, row_id, row_texts, true_label, answer) in enumerate(
            zip(chosen, selected.ids(), texts, true, answers, strict=True)
        )
    ]
    return WrongRows(wrong_rows, len(wrong))


def _errors(
    decision: Decision, probabilities: NDArray[np.float64], truth: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each row's prediction is wrong, and how confident it is; of several labels, the worst one counts."""
    predicted = decision.predict(probabilities)
    if not decision.multilabel:
        wrong: NDArray[np.bool_] = np.not_equal(predicted, truth)
        return wrong, probabilities.max(axis=-1)
    errors = np.where(predicted != truth, np.where(predicted == 1, probabilities, 1 - probabilities), 0.0)
    return np.asarray(errors.any(axis=-1)), errors.max(axis=-1)


def test_scores(run: RunRecord) -> Ensemble | None:
    """The result's raw scores of the test rows, (rows, labels), where the run's folder has them."""
    if isinstance(run.result, ClassifierMetrics):
        job = run.result.jobs[run.result.kept or 0]
        path = run.jobs_folder / "classifiers" / job / TEST_SCORES
        return Ensemble([open_npy(path)], [1.0]) if path.is_file() else None
    if (combined := run.combined_scores_folder) is not None:  # of patterns and other teachers
        path = combined / TEST_SCORES
        return Ensemble([open_npy(path)], [1.0]) if path.is_file() else None
    paths = [member.folder / TEST_SCORES for member in run.members]
    if not paths or not all(path.is_file() for path in paths):
        return None
    return Ensemble([open_npy(path) for path in paths], [member.weight for member in run.members])
