"""The test rows that a run's result gets wrong, the most confident errors first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.predictions import top_labels
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.ensemble import Ensemble
from clozify.report.format import shorten
from clozify.report.highlight import ExplainedTexts, explained_texts
from clozify.report.run import RunRecord
from clozify.report.scores import MATRIX_LABELS
from clozify.runs.explanations import ExplainedRow, load_explained_rows
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
    explained: ExplainedTexts | None = None  # the words that moved the label, where the run has computed them


@dataclass(frozen=True)
class WrongRows:
    """The most confident errors, and how many errors there are."""

    rows: list[WrongRow]
    total: int
    problem: str | None = None  # why the rows cannot be shown


@dataclass(frozen=True)
class ConfidentErrors:
    """The most confident errors; arrays are (errors,)."""

    rows: NDArray[np.int64]  # indices of test rows
    labels: NDArray[np.int64]  # the predicted label; of several, that of the most confident wrong decision
    confidence: NDArray[np.float64]
    total: int  # of all errors


def confident_errors(run: RunRecord, scores: Ensemble, test: Rows, count: int = MAX_WRONG) -> ConfidentErrors:
    """At most `count` test rows that the result gets wrong, the most confident first."""
    decision, size = run.decision, len(test)
    is_wrong, confidence, label = np.empty(size, bool), np.empty(size), np.empty(size, np.int64)
    for start, chunk in scores.chunks(chunk_rows(len(run.task.labels))):
        rows = slice(start, start + len(chunk))
        errors = _errors(decision, decision.probabilities(chunk), test.targets[rows])
        is_wrong[rows], confidence[rows], label[rows] = errors
    wrong = np.flatnonzero(is_wrong)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")[:count]]
    return ConfidentErrors(chosen, label[chosen], confidence[chosen], len(wrong))


def wrong_rows(run: RunRecord, test: Rows | None, problem: str | None) -> WrongRows | None:
    """The errors of the run's result; None without test rows or kept scores.

    `problem` says why the test rows could not be read, where `test` is None.
    """
    scores, labels, decision = result_test_scores(run), run.task.labels, run.decision
    if scores is None or run.result is None or run.result.labels is None:
        return None
    if test is None or len(test) != len(scores):
        assert run.result.accuracy is not None
        return WrongRows([], len(scores) - round(run.result.accuracy * len(scores)), problem)
    errors = confident_errors(run, scores, test)
    chosen, explained = errors.rows, _explained_rows(run, test)
    selected, of_chosen = test.select(chosen), decision.probabilities(scores[chosen])
    true, answers = decision.names(test.targets[chosen]), decision.names(decision.predict(of_chosen))
    shown = OTHER_LABELS if len(labels) > MATRIX_LABELS and not decision.multilabel else 0
    next_best = top_labels(of_chosen, 1 + shown)[:, 1:]
    texts = list(zip(*[selected.texts(field) for field in run.task.fields], strict=True))
    row_ids = selected.ids()
    wrong_rows = []
    for position, index in enumerate(chosen.tolist()):
        row = explained.get((index, labels[errors.labels[position]]))
        wrong_rows.append(
            WrongRow(
                row_ids[position],
                [shorten(text) for text in texts[position]],
                true[position],
                answers[position],
                float(errors.confidence[position]),
                [(labels[label], float(of_chosen[position, label])) for label in next_best[position]],
                None if row is None else explained_texts(row, run.task.fields, texts[position]),
            )
        )
    return WrongRows(wrong_rows, errors.total)


def _explained_rows(run: RunRecord, test: Rows) -> dict[tuple[int, str], ExplainedRow]:
    """(index, label) -> the words that moved the label of a test row; empty where the run has none of these rows."""
    record = load_explained_rows(run.folder)
    if record is None or record.texts != test.digest:
        return {}
    return {(row.row, row.label): row for row in record.rows}


def _errors(
    decision: Decision, probabilities: NDArray[np.float64], truth: NDArray[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64]]:
    """Whether each row's prediction is wrong, how confident it is, and its label; of several, the worst one counts."""
    predicted = decision.predict(probabilities)
    if not decision.multilabel:
        wrong: NDArray[np.bool_] = np.not_equal(predicted, truth)
        return wrong, probabilities.max(axis=-1), predicted
    errors = np.where(predicted != truth, np.where(predicted == 1, probabilities, 1 - probabilities), 0.0)
    return np.asarray(errors.any(axis=-1)), errors.max(axis=-1), errors.argmax(axis=-1)


def result_test_scores(run: RunRecord) -> Ensemble | None:
    """The result's raw scores of the test rows, (rows, labels), where the run's folder has them."""
    if isinstance(run.result, ClassifierMetrics):
        return _kept_scores(run.jobs_folder / "classifiers" / run.result.jobs[run.result.kept or 0] / TEST_SCORES)
    if (combined := run.combined_scores_folder) is not None:  # of patterns and other teachers
        return _kept_scores(combined / TEST_SCORES)
    paths = [member.folder / TEST_SCORES for member in run.members]
    if not paths or not all(path.is_file() for path in paths):
        return None
    return Ensemble([open_npy(path) for path in paths], [member.weight for member in run.members])


def trainings_test_scores(run: RunRecord) -> list[Ensemble] | None:
    """The raw scores of the test rows by every training of the result, where the run's folder has all of them."""
    if not isinstance(run.result, ClassifierMetrics):
        scores = [result_test_scores(run)]
    else:
        scores = [_kept_scores(run.jobs_folder / "classifiers" / job / TEST_SCORES) for job in run.result.jobs]
    kept = [each for each in scores if each is not None]
    return kept if len(kept) == len(scores) else None


def _kept_scores(path: Path) -> Ensemble | None:
    return Ensemble([open_npy(path)], [1.0]) if path.is_file() else None
