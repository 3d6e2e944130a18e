"""Scores of a finished run on each of its test sets: MNLI's two development sets, x-stance's languages.

A run measures all test sets together; this module reads the scores that its members and classifiers kept of the test
rows, and measures each test set by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.ensemble import combine_scores
from clozify.metrics import basic_metrics
from clozify.runs.metrics import MemberMetrics, Metrics
from clozify.runs.records import EnsembleRecord
from clozify.utils.checked_files import open_npy

MeanStd = tuple[float, float | None]  # as fractions; the standard deviation over the repetitions, if there are several
Measures = dict[str, MeanStd]  # 'classifier', 'members', 'min', 'max', 'ensemble'


def mean_and_std(values: Sequence[float]) -> MeanStd:
    """Mean and sample standard deviation; None for the latter of a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


class RunScores:
    """The scores of a run's jobs on each test set; predictions are read once."""

    def __init__(self, folder: Path, results: Path, test: Rows, slices: Mapping[str, slice]) -> None:
        self.folder, self.results, self.labels, self.slices = folder, results, test.labels, slices
        self.label_count = len(test.task.labels)
        self.metric = test.task.metric.replace("-", "_")
        self._predictions: dict[Path, NDArray[np.intp]] = {}

    def measures(self, metrics: Metrics) -> dict[str, Measures]:
        """By test set: the classifier's repetitions, the members, the worst and the best pair, and the ensemble."""
        classifier = metrics.classifier or metrics.supervised or metrics.uda or metrics.mixtext
        result: dict[str, Measures] = {}
        for test_set in self.slices:
            measures: Measures = {}
            if classifier:
                jobs = [self.folder / "classifiers" / job for job in classifier.jobs]
                measures["classifier"] = mean_and_std([self._score(job, test_set) for job in jobs])
            if metrics.members:
                measures |= self._member_measures(metrics.members.each, test_set)
            result[test_set] = measures
        return result

    def generations(self, metrics: Metrics) -> dict[str, dict[str, float]]:
        """By test set and generation: the mean of the members."""
        return {
            test_set: {
                str(generation.generation): float(
                    np.mean([self._score(self.folder / member.job, test_set) for member in generation.each])
                )
                for generation in metrics.generations or []
                if generation.each
            }
            for test_set in self.slices
        }

    def _score(self, job: Path, test_set: str) -> float:
        if job not in self._predictions:
            self._predictions[job] = open_npy(job / "test.npy").argmax(axis=-1)
        return self._metric(self._predictions[job], test_set)

    def _metric(self, predictions: NDArray[np.intp], test_set: str) -> float:
        rows = self.slices[test_set]
        return float(getattr(basic_metrics(self.labels[rows], predictions[rows], self.label_count), self.metric))

    def _member_measures(self, members: Sequence[MemberMetrics], test_set: str) -> Measures:
        scores = [self._score(self.folder / member.job, test_set) for member in members]
        pair_scores = [
            float(np.mean([score for score, member in zip(scores, members, strict=True) if member.pair == pair]))
            for pair in {member.pair for member in members}
        ]
        weights = EnsembleRecord.load(self.results).weights
        test_scores = [open_npy(self.folder / member.job / "test.npy") for member in members]
        predictions = combine_scores(test_scores, [entry.weight for entry in weights]).argmax(axis=-1)
        return {
            "members": mean_and_std(scores),
            "min": (min(pair_scores), None),
            "max": (max(pair_scores), None),
            "ensemble": (self._metric(predictions, test_set), None),
        }
