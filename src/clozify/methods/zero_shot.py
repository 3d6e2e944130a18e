"""The unsupervised baseline: pairs without any training (lines 1 and 2 of the paper's table 1).

In: a model, a task and rows. Out: every pair's raw scores, the ensemble's probabilities (raw scores averaged with
equal weights, then softmax), and with labels the accuracy of each. Calibration divides a label's probability by
its mean over the data, which takes away the model's liking for some words.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import NO_LABEL, Rows
from clozify.methods.score import MAX_LENGTH, ScoringStats, score_rows
from clozify.metrics import basic_metrics
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import compile_task
from clozify.utils.progress import progress


@dataclass(frozen=True)
class ZeroShotScores:
    """What the pairs say about the rows before any training."""

    rows: Rows
    scores: NDArray[np.float32]  # (pairs, rows, labels), raw; on disk, not in memory
    prior: NDArray[np.float64] | None  # (pairs, labels): the mean probability to divide by, if calibrated
    remarks: list[str]

    def pair_scores(self, start: int, stop: int) -> NDArray[np.float64]:
        """Each pair's scores, calibrated if asked for: (pairs, rows, labels)."""
        scores = np.asarray(self.scores[:, start:stop], dtype=np.float64)
        if self.prior is None:
            return scores
        calibrated: NDArray[np.float64] = np.log(softmax(scores, axis=-1)) - np.log(self.prior[:, None])
        return calibrated

    def probabilities(self, start: int, stop: int) -> NDArray[np.float64]:
        """The ensemble's distribution over the labels: (rows, labels)."""
        probabilities: NDArray[np.float64] = softmax(self.pair_scores(start, stop).mean(axis=0), axis=-1)
        return probabilities

    def predictions(self) -> NDArray[np.int16]:
        """The predicted labels of the pairs and, last, of the ensemble: (pairs + 1, rows)."""
        found = np.empty((len(self.scores) + 1, len(self.rows)), dtype=np.int16)
        for start, stop in self.rows.chunks():
            scores = self.pair_scores(start, stop)
            found[:-1, start:stop] = scores.argmax(axis=-1)
            found[-1, start:stop] = scores.mean(axis=0).argmax(axis=-1)
        return found

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Accuracy and macro-F1: `mean` and `best` over the pairs, the `ensemble`, and each of the `patterns`."""
        labeled = self.rows.labels != NO_LABEL
        if not labeled.any():
            return {}
        truth = self.rows.labels[labeled]
        each = [
            basic_metrics(truth, found[labeled], self.scores.shape[-1]).model_dump() for found in self.predictions()
        ]
        report = {}
        for name in each[0]:
            *pairs, ensemble = [found[name] for found in each]
            report[name] = {
                "mean": float(np.mean(pairs)),
                "best": max(pairs),
                "ensemble": ensemble,
                "patterns": pairs,
            }
        return report


def score_zero_shot(
    model: ClozeModel, rows: Rows, calibrate: bool = False, max_length: int = MAX_LENGTH
) -> ZeroShotScores:
    """Score every row with every pair of the rows' task."""
    task, seen = rows.task, ScoringStats()
    questions = compile_task(model, task, rows)
    shape = (len(task.pairs), len(rows), len(task.labels))
    with tempfile.TemporaryFile() as file:
        scores = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
    total = np.zeros((shape[0], shape[2]))
    with progress("scoring", len(rows) * len(questions.patterns), "rows") as advance:
        for start, part in score_rows(model, questions, rows, max_length, seen, advance):
            scores[:, start : start + part.shape[1]] = part
            total += softmax(part.astype(np.float64), axis=-1).sum(axis=1)
    prior = total / len(rows) if calibrate else None
    remarks = questions.warnings + rows.warnings + seen.warnings(min(max_length, model.max_length))
    return ZeroShotScores(rows, scores, prior, remarks)
