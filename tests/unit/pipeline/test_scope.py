"""Out-of-scope scores of held-out rows against a naive loop."""

from types import SimpleNamespace

import numpy as np
import pytest

from clozify.pipeline import scope
from clozify.pipeline.scope import held_out_scope


def test_held_out_rows_are_compared_with_the_rows_that_their_classifier_was_trained_on(monkeypatch):
    states = np.random.default_rng(0).normal(size=(12, 5))
    monkeypatch.setattr(scope, "classifier_states", lambda _, rows: states[rows])
    plan = SimpleNamespace(labeled=SimpleNamespace(select=lambda rows: rows))
    training, held_out = np.array([0, 1, 3, 4, 6, 7, 9, 10]), np.array([2, 5, 8, 11])
    fold = SimpleNamespace(training=lambda _: training, held_out=lambda _: held_out)
    mean = states[training].mean(axis=0)
    expected = []
    for row in held_out:
        cosines = []
        for other in training:
            one, two = states[row] - mean, states[other] - mean
            cosines.append(one @ two / np.linalg.norm(one) / np.linalg.norm(two))
        expected.append(1 - max(cosines))
    assert held_out_scope(None, plan, fold) == pytest.approx(expected, abs=5e-3)  # vectors are kept in 8 bits
