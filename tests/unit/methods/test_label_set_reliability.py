"""Estimates with several labels a row against naive loops, and their intervals on made-up rows."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import accuracy_score, f1_score

from clozify.data.decision import Decision, label_set_confidence
from clozify.methods.conformal import prediction_sets, set_threshold
from clozify.methods.label_set_reliability import (
    HeldOutLabelSets,
    bootstrap_f1,
    decision_counts,
    estimate_label_sets,
    f1_of,
    thresholds_without_fold,
)
from clozify.methods.multilabel import choose_thresholds


def made_up_rows(rows, labels=4, seed=0, noise=1.5):
    """Targets, and scores that are higher where a label is true."""
    rng = np.random.default_rng(seed)
    targets = (rng.random((rows, labels)) < 0.3).astype(np.int64)
    return rng.normal(2.0 * targets - 1, noise, size=targets.shape), targets


def held_out_rows(rows, seed=0, folds=3, threshold=0.0):
    scores, targets = made_up_rows(rows, seed=seed)
    return HeldOutLabelSets(scores, targets, np.full(targets.shape, threshold), folds)


def test_the_estimate_is_scikit_learns_metric_with_fewer_errors_for_the_rows_that_the_models_did_not_see():
    held_out = held_out_rows(80)
    estimate, predicted = estimate_label_sets(held_out), (held_out.scores >= 0).astype(int)
    learned = (2 / 3) ** 0.1
    micro_f1 = f1_score(held_out.targets, predicted, average="micro")
    assert estimate.micro_f1 == pytest.approx(1 - (1 - micro_f1) * learned)
    assert estimate.exact_match == pytest.approx(1 - (1 - accuracy_score(held_out.targets, predicted)) * learned)
    assert estimate.micro_f1_interval[0] < estimate.micro_f1 < estimate.micro_f1_interval[1]
    assert estimate.exact_match_interval[0] < estimate.exact_match < estimate.exact_match_interval[1]
    assert estimate == estimate_label_sets(held_out)


def test_the_bootstrap_draws_rows_like_a_naive_loop():
    held_out = held_out_rows(40)
    counts = decision_counts(held_out.targets, held_out.predicted)
    labels = held_out.targets.sum() / 40
    rows = [*counts.tolist(), *[[labels, 0, 0]] * 2, *[[0, labels, labels]] * 2]
    rng, naive = np.random.default_rng(5), []
    for _ in range(2_000):
        tp, fp, fn = np.sum([rows[rng.integers(len(rows))] for _ in rows], axis=0)
        naive.append(2 * tp / (2 * tp + fp + fn))
    found = np.percentile(bootstrap_f1(counts, seed=0), [2.5, 50, 97.5])
    assert found == pytest.approx(np.percentile(naive, [2.5, 50, 97.5]), abs=0.02)


def test_the_interval_of_micro_f1_is_a_tenth_longer_than_the_bootstraps_and_within_0_and_1():
    held_out = held_out_rows(40)
    estimate, counts = estimate_label_sets(held_out), decision_counts(held_out.targets, held_out.predicted)
    samples = 1 - (1 - bootstrap_f1(counts, seed=0)) * (2 / 3) ** 0.1
    for end, percentile in zip(estimate.micro_f1_interval, (2.5, 97.5), strict=True):
        assert end - estimate.micro_f1 == pytest.approx(1.1 * (np.percentile(samples, percentile) - estimate.micro_f1))
    targets = np.eye(4, dtype=np.int64)[np.arange(30) % 4]
    scores = 8.0 * targets - 4
    scores[0, 1] = 4.0  # one wrong label: more than 2.5% of the samples have no error
    few_errors = estimate_label_sets(HeldOutLabelSets(scores, targets, np.zeros(targets.shape), 3))
    assert few_errors.micro_f1 < 1
    assert few_errors.micro_f1_interval[1] == 1


def test_the_interval_of_rows_that_are_all_right_is_not_empty():
    targets = np.eye(4, dtype=np.int64)[np.arange(12) % 4]
    estimate = estimate_label_sets(HeldOutLabelSets(8.0 * targets - 4, targets, np.zeros(targets.shape), 3))
    assert estimate.micro_f1 == 1
    low, high = estimate.micro_f1_interval
    assert low < 0.9
    assert high == 1


def test_most_intervals_contain_the_true_micro_f1():
    """Nominally 95%; of 200 draws at least 88% for any seed but one in ten thousand."""
    everything = held_out_rows(200_000, seed=1)
    error = 1 - float(f1_of(decision_counts(everything.targets, everything.predicted).sum(axis=0)))
    truth = 1 - error * (2 / 3) ** 0.1
    intervals = [estimate_label_sets(held_out_rows(40, seed=seed)).micro_f1_interval for seed in range(2, 202)]
    assert np.mean([low <= truth <= high for low, high in intervals]) >= 0.88


def test_no_row_has_part_in_choosing_its_thresholds():
    scores, targets = made_up_rows(30)
    assigned = np.arange(30) % 3
    thresholds = thresholds_without_fold(scores, targets, assigned, "micro-f1", 10.0)
    for fold in range(3):
        others = assigned != fold
        expected = choose_thresholds(scores[others], targets[others], "micro-f1", 10.0)
        assert (thresholds[assigned == fold] == expected).all()
    changed = targets.copy()
    changed[0] = 1 - changed[0]
    again = thresholds_without_fold(scores, changed, assigned, "micro-f1", 10.0)
    assert (again[assigned == 0] == thresholds[assigned == 0]).all()


def test_no_label_is_predicted_where_no_other_row_has_one():
    targets = np.zeros((4, 2), dtype=np.int64)
    targets[0] = 1
    thresholds = thresholds_without_fold(np.ones((4, 2)), targets, np.array([0, 1, 1, 1]), "micro-f1", 10.0)
    assert np.isinf(thresholds[0]).all()
    assert np.isfinite(thresholds[1:]).all()


def test_a_temperature_changes_no_decision():
    held_out = held_out_rows(20, threshold=0.4)
    colder = held_out.at_temperature(2.0)
    assert (colder.predicted == held_out.predicted).all()
    assert colder.true_probability == pytest.approx(
        [min((expit(s / 2) for s, t in zip(*row, strict=True) if t), default=1.0) for row in _rows(held_out)]
    )


def _rows(held_out):
    return zip(held_out.scores, held_out.targets, strict=True)


def test_the_confidence_is_the_probability_of_exactly_the_predicted_labels():
    probabilities = np.array([[0.9, 0.2, 0.6], [0.1, 0.1, 0.4]])
    decision = Decision(["a", "b", "c"], (0.5, 0.1, 0.5))
    expected = [0.9 * 0.2 * 0.6, 0.9 * 0.1 * 0.6]
    assert decision.confidence(probabilities) == pytest.approx(expected)
    assert label_set_confidence(probabilities, decision.predict(probabilities)) == pytest.approx(expected)
    assert Decision(["a", "b", "c"]).confidence(probabilities) == pytest.approx([0.9, 0.4])


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_sets_contain_all_true_labels_as_often_as_asked_for(level):
    """Split conformal prediction: the mean over draws of held-out and new rows is at least the level."""
    covered = []
    for seed in range(300):
        held_out, new = held_out_rows(50, seed=2 * seed), held_out_rows(50, seed=2 * seed + 1)
        threshold = set_threshold(held_out.true_probability, level)
        naive = sorted(min((expit(s) for s, t in zip(*row, strict=True) if t), default=1.0) for row in _rows(held_out))
        assert threshold == pytest.approx(naive[int((1 - level) * 51 + 1e-9) - 1])
        probabilities = expit(new.scores)
        sets = prediction_sets(probabilities, threshold, probabilities >= 2)  # none is predicted
        covered.append(np.mean([(row_set | (t == 0)).all() for row_set, t in zip(sets, new.targets, strict=True)]))
    assert level - 0.015 <= np.mean(covered) <= level + 0.035


def test_a_set_has_the_predicted_labels_and_may_be_empty():
    probabilities = np.array([[0.3, 0.6, 0.1], [0.1, 0.2, 0.05]])
    predicted = np.array([[1, 1, 0], [0, 0, 0]])
    assert prediction_sets(probabilities, 0.5, predicted).tolist() == [[True, True, False], [False] * 3]
