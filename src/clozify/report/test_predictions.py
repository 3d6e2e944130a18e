"""The predictions of a run's result for its test rows, one set for each training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows, chunk_rows
from clozify.errors import DataError
from clozify.methods.ensemble import Ensemble
from clozify.methods.paired import F1Samples, HitCounts, f1_interval, resample_f1
from clozify.metrics import wilson_interval
from clozify.report.run import RunRecord
from clozify.report.wrong_rows import trainings_test_scores

SAME_ACCURACY = 1e-6  # predictions that are computed again have the accuracy that was recorded


@dataclass(frozen=True)
class TestPredictions:
    """The labels of the test rows, and those that each training predicts: (rows,) or (rows, labels) of 0 and 1."""

    __test__ = False  # no test, in spite of its name

    truth: NDArray[Any]
    predicted: list[NDArray[Any]]
    labels: int

    @property
    def hits(self) -> HitCounts:
        """How many trainings label each row correctly; of several labels a row, all of them."""
        right = [predicted == self.truth for predicted in self.predicted]
        if self.truth.ndim == 2:
            right = [each.all(axis=1) for each in right]
        return HitCounts(np.sum(right, axis=0, dtype=np.int64), len(right))

    @cached_property
    def f1_samples(self) -> F1Samples:
        """F1 on resamples of the rows, the same ones for every run on these rows."""
        return resample_f1(self.truth, self.predicted, self.labels)

    def macro_f1_interval(self, macro_f1: float) -> tuple[float, float]:
        """The 95% interval of the macro-F1."""
        return self._interval(macro_f1, self.f1_samples.macro)

    def micro_f1_interval(self, micro_f1: float) -> tuple[float, float]:
        """The 95% interval of the micro-F1."""
        return self._interval(micro_f1, self.f1_samples.micro)

    def _interval(self, f1: float, samples: NDArray[np.float64]) -> tuple[float, float]:
        accuracy = self.hits.accuracy
        low, high = f1_interval(f1, samples, accuracy, wilson_interval(accuracy, len(self.truth)))
        return max(0.0, low), min(1.0, high)


def load_test_predictions(run: RunRecord, test: Rows) -> TestPredictions:
    """The predictions of a run's result; a `DataError` says why there are none."""
    scores = trainings_test_scores(run)
    if scores is None or any(len(each) != len(test) for each in scores):
        raise DataError(f"'{run.folder}' has not kept the scores of its test rows; train again.")
    predictions = TestPredictions(test.targets, [_predict(run, each) for each in scores], len(run.task.labels))
    recorded = None if run.result is None else run.result.accuracy
    if recorded is None or abs(predictions.hits.accuracy - recorded) > SAME_ACCURACY:
        raise DataError(f"The labels of '{test.source}' are not those that '{run.folder}' was measured with.")
    return predictions


def _predict(run: RunRecord, scores: Ensemble) -> NDArray[Any]:
    """The labels that the run's decision makes of these scores."""
    chunks = scores.chunks(chunk_rows(len(run.task.labels)))
    return np.concatenate([run.decision.predict(run.decision.probabilities(chunk)) for _, chunk in chunks])
