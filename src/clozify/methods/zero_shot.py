"""The unsupervised baseline: pairs without any training (lines 1 and 2 of the paper's table 1).

The ensemble's probabilities are the softmax of the mean of the pairs' raw scores, or of calibrated ones. Where rows may
have several labels, calibration subtracts a label's mean score over the data instead. There is no threshold without
labelled rows: a number of labels a row is assumed, a label's probability is the sigmoid of its score plus the logit of
that number over |L|, and so many of the highest scores of all rows are predicted that rows have it on average.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, softmax

from clozify.data.decision import Decision
from clozify.data.rows import Rows, chunk_rows
from clozify.methods.calibration import calibrate, mean_probabilities
from clozify.methods.combination import TeacherWeight, combine_votes, fit_weights
from clozify.methods.fitted_rows import fitted_rows
from clozify.methods.multilabel import predict_highest
from clozify.methods.score import MAX_LENGTH, ScoringStats, score_rows
from clozify.methods.votes import OnLabeled, Votes, coverage
from clozify.metrics import basic_metrics
from clozify.models.language_model import LanguageModel
from clozify.models.task_prompts import compile_task
from clozify.utils.progress import progress


@dataclass(frozen=True)
class ZeroShotScores:
    """The scores of all pairs before any training."""

    rows: Rows
    scores: NDArray[np.float32]  # (pairs, rows, labels), raw; a memory-mapped file
    # (pairs, labels), if calibrated: the mean probability to divide by or, with several labels a row, the mean score
    prior: NDArray[np.float64] | None
    warnings: list[str]
    labels_a_row: float = 1.0  # assumed on average, for tasks with several
    other_scores: Sequence[NDArray[np.float32]] = ()  # of teachers besides the pairs, (rows, labels) each

    def with_teachers(self, other_scores: Sequence[NDArray[np.float32]]) -> ZeroShotScores:
        """The same scores, with the votes of other teachers in the ensemble."""
        return replace(self, other_scores=other_scores)

    @cached_property
    def weights(self) -> list[TeacherWeight]:
        """The weights of the pairs, which are one teacher, and of the other teachers, from how all of them agree."""
        rows = fitted_rows(len(self.rows), self.other_scores)
        pairs = np.stack([self.pair_scores(row, row + 1)[:, 0] for row in rows.tolist()], axis=1)
        nothing = OnLabeled()
        patterns = Votes(pairs.mean(axis=0), (nothing,) * len(pairs), tuple(pairs))
        others = [Votes(scores[rows], (nothing,), coverage=coverage(scores)) for scores in self.other_scores]
        return fit_weights([patterns, *others])

    def ensemble_scores(self, start: int, stop: int) -> NDArray[np.float64]:
        """The mean of the pairs' scores of a range of rows, combined with other teachers' votes: (rows, labels)."""
        scores = self.pair_scores(start, stop).mean(axis=0)
        if not self.other_scores:
            return np.asarray(scores)
        return combine_votes([scores, *(others[start:stop] for others in self.other_scores)], self.weights)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Start and stop of consecutive chunks of rows."""
        return self.rows.chunks(chunk_rows(self.scores.shape[0] * self.scores.shape[2]))

    def pair_scores(self, start: int, stop: int) -> NDArray[np.float64]:
        """The pairs' scores of a range of rows, with a prior calibrated: (pairs, rows, labels)."""
        scores = np.asarray(self.scores[:, start:stop], dtype=np.float64)
        if self.rows.task.multilabel:
            centre = scores.mean(axis=-1, keepdims=True) if self.prior is None else self.prior[:, None]
            return np.asarray(scores - centre)
        return scores if self.prior is None else calibrate(scores, self.prior)

    def probabilities(self, start: int, stop: int) -> NDArray[np.float64]:
        """The ensemble's probabilities of a range of rows: (rows, labels)."""
        scores = self.ensemble_scores(start, stop)
        probabilities: NDArray[np.float64] = (
            expit(scores + self._prior_logit) if self.rows.task.multilabel else softmax(scores, axis=-1)
        )
        return probabilities

    @property
    def _prior_logit(self) -> float:
        """The logit of a label's assumed frequency."""
        return float(logit(np.clip(self.labels_a_row / self.scores.shape[-1], 1e-6, 1 - 1e-6)))

    @cached_property
    def decision(self) -> Decision:
        """How the ensemble's probabilities become labels."""
        task = self.rows.task
        if not task.multilabel:
            return Decision(task.labels)
        scores = np.concatenate([self.pair_scores(start, stop).mean(axis=0) for start, stop in self.chunks()])
        lowest = scores[predict_highest(scores, self.labels_a_row) == 1].min()
        threshold = float(np.nextafter(expit(lowest + self._prior_logit), 0))
        return Decision(task.labels, (threshold,) * len(task.labels), task.separator)

    def predictions(self) -> NDArray[Any]:
        """The predicted labels of the pairs and, last, of the ensemble: (pairs + 1, rows).

        With several labels a row, they are 0 and 1, (pairs + 1, rows, labels).
        """
        if self.rows.task.multilabel:
            scores = np.concatenate([self.pair_scores(start, stop) for start, stop in self.chunks()], axis=1)
            return predict_highest(np.concatenate([scores, scores.mean(axis=0, keepdims=True)]), self.labels_a_row)
        predicted = np.empty((len(self.scores) + 1, len(self.rows)), dtype=np.int16)
        for start, stop in self.chunks():
            scores = self.pair_scores(start, stop)
            predicted[:-1, start:stop] = scores.argmax(axis=-1)
            predicted[-1, start:stop] = self.ensemble_scores(start, stop).argmax(axis=-1)
        return predicted

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Accuracy, macro-F1 and, of several labels, micro-F1: `mean`, `best`, the `ensemble`, all `patterns`."""
        labeled = self.rows.is_labeled
        if not labeled.any():
            return {}
        truth = self.rows.targets[labeled]
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
    model: LanguageModel, rows: Rows, calibrated: bool = False, max_length: int = MAX_LENGTH, labels_a_row: float = 1.0
) -> ZeroShotScores:
    """Score every row with every pair of the rows' task; `labels_a_row` is assumed for tasks with several."""
    task, stats = rows.task, ScoringStats()
    prompts = compile_task(model, task, rows)
    shape = (len(task.pairs), len(rows), len(task.labels))
    with tempfile.TemporaryFile() as file:
        scores = np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
    with progress("scoring", len(rows) * len(prompts.patterns), "rows") as advance:
        for start, chunk in score_rows(model, prompts, rows, max_length, stats, advance):
            scores[:, start : start + chunk.shape[1]] = chunk
    prior = None
    if calibrated:
        prior = scores.mean(axis=1, dtype=np.float64) if task.multilabel else mean_probabilities(scores)
    warnings = prompts.warnings + rows.warnings + stats.warnings(min(max_length, model.max_length))
    return ZeroShotScores(rows, scores, prior, warnings, labels_a_row)
