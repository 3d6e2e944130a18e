from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from clozify.methods.frozen import Centre, fit_label_vectors
from clozify.pipeline.frozen import _held_out_scores


@dataclass(frozen=True)
class Half:
    """Every second row is held out."""

    index: int

    def held_out(self, plan):
        return np.arange(self.index, len(plan.labeled.labels), 2)

    def training(self, plan):
        return np.arange(1 - self.index, len(plan.labeled.labels), 2)


def test_each_rows_scores_come_from_vectors_that_were_fitted_without_its_fold():
    rng = np.random.default_rng(0)
    states, words = rng.normal(size=(12, 6)), rng.normal(size=(3, 4))
    labels = np.arange(12) // 4
    centre = Centre.of([states], 4)
    plan = SimpleNamespace(labeled=SimpleNamespace(labels=labels))
    scores = _held_out_scores(plan, [Half(0), Half(1)], states, words, centre, 0.1)
    for row in range(12):
        others = np.array([other for other in range(12) if other % 2 != row % 2])
        fitted, _ = fit_label_vectors(states[others], labels[others], words, centre, 0.1)
        assert scores[row] == pytest.approx(fitted.scores(states[[row]])[0], abs=1e-4)
