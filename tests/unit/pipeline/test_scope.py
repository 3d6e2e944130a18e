"""Out-of-scope scores of held-out rows against a naive loop."""

from types import SimpleNamespace

import numpy as np
import pytest

from clozify.pipeline import scope
from clozify.pipeline.scope import held_out_scope

TRAINING, HELD_OUT = np.array([0, 1, 3, 4, 6, 7, 9, 10]), np.array([2, 5, 8, 11])


@pytest.fixture
def states(monkeypatch):
    """The states of twelve labelled rows, which a classifier is made to return."""
    states = np.random.default_rng(0).normal(size=(12, 5))
    monkeypatch.setattr(scope, "classifier_states", lambda _, rows: states[rows])
    return states


def score_held_out():
    classifier = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(hidden_size=5)))
    plan = SimpleNamespace(labeled=SimpleNamespace(select=lambda rows: rows), recipe=SimpleNamespace(seed=3))
    fold = SimpleNamespace(training=lambda _: TRAINING, held_out=lambda _: HELD_OUT)
    return held_out_scope(classifier, plan, fold)


def naive_scores(states, reference):
    mean, scores = states[reference].mean(axis=0), []
    for row in HELD_OUT:
        cosines = []
        for other in reference:
            one, two = states[row] - mean, states[other] - mean
            cosines.append(one @ two / np.linalg.norm(one) / np.linalg.norm(two))
        scores.append(1 - max(cosines))
    return pytest.approx(scores, abs=5e-3)  # vectors are kept in 8 bits


def test_held_out_rows_are_compared_with_the_rows_that_their_classifier_was_trained_on(states):
    assert score_held_out() == naive_scores(states, TRAINING)


def test_of_many_training_rows_a_random_sample_is_compared(states, monkeypatch):
    """Files are often sorted by label: the first rows would be of the first labels alone."""
    monkeypatch.setattr(scope, "max_reference_rows", lambda hidden: 4)
    drawn = np.random.default_rng(3).permutation(TRAINING)[:4]
    assert set(drawn) != set(TRAINING[:4])
    assert score_held_out() == naive_scores(states, drawn)
