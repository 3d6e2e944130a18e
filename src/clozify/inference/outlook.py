"""Collects what `report/outlook.py` needs from a run and earlier ones: its accuracy, and how predictions changed.

Without test rows, the accuracy is the mean calibrated confidence of the run's result on unlabelled rows: labelled rows
that were suggested are harder than others, so that the accuracy on them is too low. The temperature comes from
held-out labelled rows (`reliability.json`), and its interval is that of an accuracy on so many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.decision import Decision
from clozify.data.rows import Rows
from clozify.errors import ClozifyError, RunError
from clozify.inference.finished_run import FinishedRun
from clozify.methods.ensemble import combine_scores
from clozify.metrics import wilson_interval
from clozify.report.format import percent
from clozify.report.outlook import Accuracy, Change, Outlook, cohen_kappa, gain_seen, make_outlook
from clozify.report.run import RunRecord
from clozify.report.run_data import reread_rows
from clozify.report.scores import result_score
from clozify.report.unlabeled import unlabeled_ids
from clozify.runs.records import UNLABELED_SCORES
from clozify.runs.reliability import load_reliability
from clozify.runs.results import find_results
from clozify.utils.checked_files import open_npy

MAX_ROWS = 20_000  # unlabelled rows that two runs are compared on, evenly spaced
CLASSIFIER_ROWS = 300  # unlabelled rows that a classifier scores for its mean confidence, evenly spaced


@dataclass(frozen=True)
class UnlabeledScores:
    """Unlabelled rows with each member's raw scores of them, (rows, labels)."""

    rows: Rows
    scores: list[NDArray[np.float32]]
    weights: list[float]
    decision: Decision
    by_result: bool = False  # scored by the run's result itself, as the only member

    def combined(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The ensemble's scores of some rows: (indices, labels)."""
        return combine_scores([np.asarray(scores[indices]) for scores in self.scores], self.weights)


def run_outlook(
    run: RunRecord, scores: UnlabeledScores, count: int, previous: Sequence[Path], warnings: list[str]
) -> Outlook:
    """What `count` more labels will probably bring, and whether to stop; `previous` are folders of earlier runs."""
    labels = run.inputs.data["labeled"].rows
    runs = [*_load_previous(run, previous, warnings), (labels, scores)]
    accuracy, problem = _accuracy(run, scores, warnings)
    changes = []
    for (before, earlier), (after, later) in pairwise(runs):
        change = _compare(before, earlier, after, later, accuracy if later is scores else None)
        if change is None:
            warnings.append(f"The runs with {before:,} and {after:,} labelled rows share no unlabelled row.")
        else:
            changes.append(change)
    return make_outlook(labels, count, accuracy, changes, problem)


def _accuracy(run: RunRecord, scores: UnlabeledScores, warnings: list[str]) -> tuple[Accuracy | None, str | None]:
    """The run's accuracy or, where there is none, the reason."""
    if run.task.multilabel:
        return None, "with several labels a row there is no estimate"
    score = result_score(run)
    if score is not None and score.interval is not None:
        low, high = score.interval
        return Accuracy(accuracy=score.accuracy, low=low, high=high, source="test rows"), None
    reliability = load_reliability(run.folder)
    if reliability is None:
        return None, (
            "the run has neither test rows nor an estimate of its accuracy; train again with --test, or with enough "
            "labelled rows for an estimate"
        )
    confidence = _mean_confidence(run, scores, reliability.temperature)
    low, high = wilson_interval(confidence, reliability.rows)
    if reliability.accuracy < low:
        warnings.append(
            f"By labelled rows, held out, the accuracy is {percent(reliability.accuracy, 0)}%, by the confidence on "
            f"unlabelled rows {percent(confidence, 0)}%: suggested rows are harder than others."
        )
    return Accuracy(accuracy=confidence, low=low, high=high, source="estimate"), None


def _mean_confidence(run: RunRecord, scores: UnlabeledScores, temperature: float) -> float:
    """The mean probability of the predicted label over unlabelled rows, by the run's result."""
    combined = None if run.combined_scores_folder is None else run.combined_scores_folder / UNLABELED_SCORES
    if run.has_classifier and not scores.by_result:
        rows = scores.rows.select(_spaced(len(scores.rows), CLASSIFIER_ROWS))
        return float(FinishedRun(run.folder).probabilities(rows).max(axis=-1).mean())
    indices = _spaced(len(scores.rows), MAX_ROWS)
    if scores.by_result:  # its scores are calibrated
        temperature, raw = 1.0, scores.combined(indices)
    elif combined is not None and combined.is_file():  # of patterns and other teachers
        raw = np.asarray(open_npy(combined)[indices], dtype=np.float64)
    else:
        raw = scores.combined(indices)
    return float(softmax(raw / temperature, axis=-1).max(axis=-1).mean())


def _load_previous(run: RunRecord, folders: Sequence[Path], warnings: list[str]) -> list[tuple[int, UnlabeledScores]]:
    """Earlier runs' labelled rows and scores of the unlabelled rows, the fewest labelled rows first."""
    labels, loaded = run.inputs.data["labeled"].rows, []
    for folder in folders:
        is_run = (folder / "run.json").is_file()
        earlier = RunRecord.load(find_results(folder, run.method) if is_run else folder)
        if (earlier.task.labels, earlier.task.fields) != (run.task.labels, run.task.fields):
            raise RunError(f"'{folder}' is a run of another task than '{run.folder}': its labels or fields differ.")
        if earlier.inputs.data["labeled"].rows >= labels:
            raise RunError(
                f"'{folder}' has {earlier.inputs.data['labeled'].rows:,} labelled rows, '{run.folder}' {labels:,}: "
                "--previous names runs with fewer."
            )
        try:
            loaded.append((earlier.inputs.data["labeled"].rows, _stored_scores(earlier)))
        except ClozifyError as error:
            warnings.append(f"'{folder}' is left out of the comparison: {error}")
    return sorted(loaded, key=lambda item: item[0])


def _stored_scores(run: RunRecord) -> UnlabeledScores:
    if not run.scoring_members:
        raise RunError("it kept no scores of unlabelled rows.")
    rows = reread_rows(run.inputs, "unlabeled", unlabeled_ids(run))
    weights = [member.weight for member in run.scoring_members]
    return UnlabeledScores(rows, run.unlabeled_scores, weights, run.ensemble_decision)


def _compare(
    before: int, earlier: UnlabeledScores, after: int, later: UnlabeledScores, accuracy: Accuracy | None
) -> Change | None:
    """What changed on the rows that both runs have scored; `accuracy` is the later run's, None where it has none."""
    _, in_earlier, in_later = np.intersect1d(
        earlier.rows.fingerprints(), later.rows.fingerprints(), return_indices=True
    )
    chosen = _spaced(len(in_later), MAX_ROWS)
    if not len(chosen):
        return None
    scores = later.combined(in_later[chosen])
    old, new = (
        each.decision.predict(each.decision.probabilities(raw))
        for each, raw in ((earlier, earlier.combined(in_earlier[chosen])), (later, scores))
    )
    differ: NDArray[Any] = (old != new).any(axis=-1) if old.ndim == 2 else old != new
    return Change(
        before=before,
        after=after,
        rows=len(chosen),
        changed=float(differ.mean()),
        kappa=None if old.ndim == 2 else cohen_kappa(old, new),
        gain=None if accuracy is None else gain_seen(scores, old, accuracy.accuracy),
    )


def _spaced(rows: int, most: int) -> NDArray[np.int64]:
    """At most `most` of the indices of rows, evenly spaced."""
    return np.arange(0, rows, max(1, -(-rows // most)))
