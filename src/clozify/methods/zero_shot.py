"""The unsupervised baseline: pairs without any training (lines 1 and 2 of the paper's table 1).

The ensemble's probabilities are the softmax of the mean of the pairs' raw scores, or of calibrated ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import NO_LABEL, Rows, chunk_rows
from clozify.methods.calibration import calibrate, mean_probabilities
from clozify.methods.score import MAX_LENGTH, ScoringStats, score_rows
from clozify.metrics import basic_metrics
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import compile_task
from clozify.utils.progress import progress


@dataclass(frozen=True)
class ZeroShotScores:
    """The scores of all pairs before any training."""

    rows: Rows
    scores: NDArray[np.float32]  # (pairs, rows, labels), raw; a memory-mapped file
    prior: NDArray[np.float64] | None  # (pairs, labels): the mean probability to divide by, if calibrated
    warnings: list[str]

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Start and stop of consecutive chunks of rows."""
        return self.rows.chunks(chunk_rows(self.scores.shape[0] * self.scores.shape[2]))

    def pair_scores(self, start: int, stop: int) -> NDArray[np.float64]:
        """The pairs' scores of a range of rows, with a prior calibrated: (pairs, rows, labels)."""
        scores = np.asarray(self.scores[:, start:stop], dtype=np.float64)
        if self.prior is None:
            return scores
        return calibrate(scores, self.prior)

    def probabilities(self, start: int, stop: int) -> NDArray[np.float64]:
        """The ensemble's probabilities of a range of rows: (rows, labels)."""
        probabilities: NDArray[np.float64] = softmax(self.pair_scores(start, stop).mean(axis=0), axis=-1)
        return probabilities

    def predictions(self) -> NDArray[np.int16]:
        """The predicted labels of the pairs and, last, of the ensemble: (pairs + 1, rows)."""
        predicted = np.empty((len(self.scores) + 1, len(self.rows)), dtype=np.int16)
        for start, stop in self.chunks():
            scores = self.pair_scores(start, stop)
            predicted[:-1, start:stop] = scores.argmax(axis=-1)
            predicted[-1, start:stop] = scores.mean(axis=0).argmax(axis=-1)
        return predicted

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Accuracy and macro-F1: `mean` and `best` over the pairs, the `ensemble`, and each of the `patterns`."""
        labeled = self.rows.labels != NO_LABEL
        if not labeled.any():
            return {}
        truth = self.rows.labels[labeled]
        metrics = [
            basic_metrics(truth, predicted[labeled], self.scores.shape[-1]).model_dump()
            for predicted in self.predictions()
        ]
        summary = {}
        for name in metrics[0]:
            *pairs, ensemble = [values[name] for values in metrics]
            summary[name] = {
                "mean": float(np.mean(pairs)),
                "best": max(pairs),
                "ensemble": ensemble,
                "patterns": pairs,
            }
        return summary


def score_zero_shot(
    model: ClozeModel, rows: Rows, calibrated: bool = False, max_length: int = MAX_LENGTH
) -> ZeroShotScores:
    """Score every row with every pair of the rows' task."""
    task, stats = rows.task, ScoringStats()
    prompts = compile_task(model, task, rows)
    shape = (len(task.pairs), len(rows), len(task.labels))
    with tempfile.TemporaryFile() as file:
        scores = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
    with progress("scoring", len(rows) * len(prompts.patterns), "rows") as advance:
        for start, chunk in score_rows(model, prompts, rows, max_length, stats, advance):
            scores[:, start : start + chunk.shape[1]] = chunk
    prior = mean_probabilities(scores) if calibrated else None
    warnings = prompts.warnings + rows.warnings + stats.warnings(min(max_length, model.max_length))
    return ZeroShotScores(rows, scores, prior, warnings)
