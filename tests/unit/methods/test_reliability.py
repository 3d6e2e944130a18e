import numpy as np
import pytest
from scipy.special import softmax

from clozify.methods.reliability import (
    AccuracyEstimate,
    HeldOutScores,
    estimate_accuracy,
    label_weights,
    match_confidence,
    most_likely_temperature,
    target_confidence,
)
from clozify.metrics import wilson_interval


@pytest.fixture
def held_out() -> HeldOutScores:
    rng = np.random.default_rng(0)
    truth = np.array([0] * 8 + [1] * 8 + [2] * 4)
    scores = rng.normal(size=(20, 3)) + 2 * np.eye(3)[truth]
    return HeldOutScores(scores, truth, 4)


def test_without_shares_the_estimate_is_the_fraction_of_correct_rows_with_wilsons_interval(held_out):
    correct = sum(int(np.argmax(row) == label) for row, label in zip(held_out.scores, held_out.truth, strict=True))
    estimate = estimate_accuracy(held_out)
    accuracy = 1 - (1 - correct / 20) * 0.75**0.2  # four folds: the models saw three quarters of the rows
    assert estimate.accuracy == pytest.approx(accuracy)
    assert (estimate.low, estimate.high) == pytest.approx(wilson_interval(accuracy, 20))
    assert estimate.rows == pytest.approx(20)


def test_with_shares_every_label_counts_as_often_as_it_occurs_among_the_unlabelled_rows(held_out):
    shares = np.array([0.5, 0.2, 0.3])
    naive = 0.0
    for label, share in enumerate(shares):
        rows = [i for i in range(20) if held_out.truth[i] == label]
        naive += share * sum(held_out.scores[i].argmax() == label for i in rows) / len(rows)
    estimate = estimate_accuracy(held_out, shares)
    assert estimate.accuracy == pytest.approx(1 - (1 - naive) * 0.75**0.2)
    weights = [shares[label] / (np.sum(held_out.truth == label) / 20) for label in held_out.truth]
    assert label_weights(held_out.truth, shares) == pytest.approx(np.array(weights))
    assert estimate.rows == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    assert estimate.rows < 20


def test_a_label_without_labelled_rows_changes_nothing():
    assert label_weights(np.array([0, 0, 1]), np.array([0.5, 0.25, 0.25])) == pytest.approx([0.75, 0.75, 0.75])


def test_the_target_is_between_the_estimate_and_the_classifiers_confidence():
    estimate = AccuracyEstimate(0.6, 0.4, 0.8, rows=50.0)
    assert target_confidence(estimate, 0.9) == pytest.approx((50 * 0.6 + 100 * 0.9) / 150)
    assert target_confidence(AccuracyEstimate(0.6, 0.5, 0.7, rows=1e6), 0.9) == pytest.approx(0.6, abs=1e-3)


def test_at_the_matching_temperature_the_mean_confidence_is_the_one_asked_for():
    scores = np.random.default_rng(1).normal(size=(200, 5)) * 3
    temperature = match_confidence(scores, 0.55)
    assert softmax(scores / temperature, axis=1).max(axis=1).mean() == pytest.approx(0.55, abs=1e-3)


def test_a_confidence_below_guessing_gives_a_high_temperature_not_an_error():
    scores = np.random.default_rng(1).normal(size=(20, 4))
    assert match_confidence(scores, 0.01) > 10


def test_the_likeliest_temperature_is_that_of_a_search_over_a_grid(held_out):
    def posterior(temperature: float) -> float:
        total = -((np.log(temperature) - np.log(1.8)) ** 2) / (2 * 0.3**2)
        for row, label in zip(held_out.scores, held_out.truth, strict=True):
            total += np.log(np.exp(row[label] / temperature) / np.exp(row / temperature).sum())
        return total

    grid = np.exp(np.linspace(-2, 2, 4001))
    best = max(grid, key=posterior)
    assert most_likely_temperature(held_out, 1.8, 0.3) == pytest.approx(best, rel=2e-3)


def test_with_a_narrow_prior_few_rows_change_little_and_many_decide():
    rng = np.random.default_rng(2)
    truth = rng.integers(3, size=4000)
    scores = 6 * (np.eye(3)[truth] + rng.normal(size=(4000, 3)))  # far too certain
    few, many = HeldOutScores(scores[:10], truth[:10], 2), HeldOutScores(scores, truth, 2)
    assert most_likely_temperature(few, 1.8, 0.05) == pytest.approx(1.8, rel=0.15)
    assert most_likely_temperature(many, 1.8, 0.05) > 3


def test_a_result_that_loses_accuracy_has_a_lower_estimate_of_the_same_rows():
    estimate = AccuracyEstimate(0.8, 0.7, 0.9, 50)
    lower = estimate.lowered(0.05)
    assert (lower.accuracy, lower.low, lower.high, lower.rows) == pytest.approx((0.75, 0.65, 0.85, 50))
    assert estimate.lowered(0.75).low == 0
