"""Conformal sets against a naive reference, and their coverage by simulation."""

import numpy as np
import pytest

from clozify.methods.conformal import (
    LEVELS,
    classifier_threshold,
    expected_thresholds,
    fewest_rows,
    prediction_sets,
    set_threshold,
)


def naive_threshold(values, level):
    """The smallest value that at least ceil(level (n + 1)) of the values reach; 0 where not even all of them do."""
    count, needed = len(values), np.ceil(level * (len(values) + 1) - 1e-9)
    reached = [value for value in values if sum(other >= value for other in values) >= needed]
    return 0.0 if needed > count else max(reached)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("count", [3, 10, 19, 50])
def test_the_threshold_is_the_finite_sample_quantile(level, count):
    values = np.random.default_rng(count).uniform(size=count)
    assert set_threshold(values, level) == naive_threshold(values.tolist(), level)


@pytest.mark.parametrize(("level", "rows"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.8, 4)])
def test_with_fewer_rows_every_label_is_in_the_set(level, rows):
    assert fewest_rows(level) == rows
    values = np.linspace(0.2, 0.9, rows)
    assert set_threshold(values, level) == 0.2
    assert set_threshold(values[1:], level) == 0


def test_a_set_has_the_labels_at_or_above_the_threshold_and_is_never_empty():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.5, 0.3, 0.2]])
    sets = prediction_sets(probabilities, 0.3)
    assert sets.tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert prediction_sets(probabilities, 0.9).tolist() == [[True, False, False]] * 3
    assert prediction_sets(probabilities, 0.0).all()


def test_sets_contain_the_true_label_as_often_as_asked():
    """Labels drawn from the probabilities themselves: mean coverage over draws of 50 held-out rows."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(300):
        probabilities = rng.dirichlet([0.6] * 6, size=550)
        labels = (probabilities.cumsum(axis=1) < rng.uniform(size=(550, 1))).sum(axis=1).clip(max=5)
        true = probabilities[np.arange(550), labels]
        sets = prediction_sets(probabilities[50:], set_threshold(true[:50], 0.9))
        hits.append(sets[np.arange(500), labels[50:]].mean())
    assert 0.895 < np.mean(hits) < 0.92


def test_expected_thresholds_reach_their_levels_by_the_probabilities_themselves():
    probabilities = np.random.default_rng(0).dirichlet([0.5] * 5, size=400)
    thresholds = expected_thresholds(probabilities)
    assert (np.diff(thresholds) <= 0).all()
    for level, threshold in zip(LEVELS, thresholds, strict=True):
        kept = np.where(probabilities >= threshold, probabilities, 0).sum(axis=1).mean()
        assert level - 1e-6 <= kept < level + 1 / 400 + 1e-6


def test_a_classifiers_threshold_is_between_the_held_out_rows_and_its_own():
    """The formula written out: rank 5.1 x (3/2)^0.2 = 5.53 of 50 values, and 50 rows for the classifier's own."""
    values, expected = np.linspace(0.02, 1.0, 50), np.full(len(LEVELS), 0.3)
    rank = 0.1 * 51 * 1.5**0.2
    held_out = 0.02 * rank  # the values are 0.02, 0.04, ...
    assert classifier_threshold(values, 0.9, 3, expected) == pytest.approx(np.sqrt(held_out * 0.3))
    few = values[4::5]  # ten values count less than the classifier's own
    assert 0.2 < classifier_threshold(few, 0.9, 3, expected) < 0.3


def test_a_calibrated_classifiers_sets_contain_the_true_label_as_often_as_asked():
    """Held-out rows of weaker models: their probabilities are mixed with noise, as folds' models are less sure."""
    rng, hits = np.random.default_rng(1), []
    for _ in range(200):
        probabilities = rng.dirichlet([0.4] * 5, size=650)
        labels = (probabilities.cumsum(axis=1) < rng.uniform(size=(650, 1))).sum(axis=1).clip(max=4)
        rows = np.arange(650)
        weaker = 0.95 * probabilities[rows, labels] + 0.01
        expected = expected_thresholds(probabilities[50:150])
        sets = prediction_sets(probabilities[150:], classifier_threshold(weaker[:50], 0.9, 3, expected))
        hits.append(sets[np.arange(500), labels[150:]].mean())
    assert 0.88 < np.mean(hits) < 0.92
