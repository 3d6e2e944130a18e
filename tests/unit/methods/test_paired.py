"""Paired differences against naive references: all signs written out, SciPy's binomial test, a simulation."""

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

from clozify.methods.paired import HitCounts, f1_interval, paired_difference, resample_f1, sign_test
from clozify.metrics import LabelMetrics, wilson_interval


def hits(rng, rows, trainings=1, accuracy=0.7):
    return HitCounts(rng.binomial(trainings, accuracy, rows), trainings)


def test_with_one_training_each_the_test_is_mcnemars_exact_one():
    rng = np.random.default_rng(0)
    for _ in range(100):
        one, other = hits(rng, rows := int(rng.integers(3, 60))), hits(rng, rows)
        result = paired_difference(one, other)
        better, worse = (int(((a.counts == 1) & (b.counts == 0)).sum()) for a, b in ((one, other), (other, one)))
        assert (result.better, result.worse, result.rows) == (better, worse, rows)
        assert result.difference == pytest.approx((better - worse) / rows)
        assert result.p_value == pytest.approx(binomtest(better, better + worse).pvalue if better + worse else 1.0)


def test_with_several_trainings_p_is_the_fraction_of_signs_with_as_large_a_sum():
    rng = np.random.default_rng(1)
    for _ in range(40):
        one, other = hits(rng, 9, trainings=3), hits(rng, 9, trainings=2)
        steps = 2 * one.counts - 3 * other.counts  # sixths
        sums = [abs(np.dot(steps, signs)) for signs in itertools.product([1, -1], repeat=9)]
        result = paired_difference(one, other)
        assert result.p_value == pytest.approx(np.mean([total >= abs(steps.sum()) for total in sums]))
        assert result.difference == pytest.approx(one.accuracy - other.accuracy)


def test_the_test_is_the_same_for_twice_the_numbers_and_the_other_sign():
    steps = np.array([2, 2, -1, 3, 0, 1])
    assert sign_test(steps) == pytest.approx(sign_test(-2 * steps))
    assert sign_test(np.zeros(4, dtype=np.int64)) == 1.0


def test_the_interval_and_the_test_agree_on_what_is_more_than_chance():
    """One that excludes 0 next to a p of 0.2 would leave the reader with two answers."""
    disagreements, cases = 0, 0
    for rows, better in itertools.product((40, 90, 300), range(30)):
        for worse in range(min(better, rows - better) + 1):
            counts = np.repeat([1, -1, 0], [better, worse, rows - better - worse])
            result = paired_difference(HitCounts((counts == 1) * 1, 1), HitCounts((counts == -1) * 1, 1))
            cases += 1
            disagreements += (result.low > 0) != (result.p_value < 0.05)
    assert disagreements < 0.02 * cases


def test_the_interval_contains_the_true_difference_in_95_of_100_samples():
    rng, covered = np.random.default_rng(2), 0
    for _ in range(400):
        cell = rng.choice(4, size=60, p=[0.6, 0.2, 0.08, 0.12])  # both, this one alone, the other alone, none
        result = paired_difference(HitCounts(np.isin(cell, [0, 1]) * 1, 1), HitCounts(np.isin(cell, [0, 2]) * 1, 1))
        covered += result.low <= 0.12 <= result.high
    assert covered >= 0.93 * 400


def test_results_that_agree_on_all_rows_still_have_an_interval():
    one = HitCounts(np.ones(20, dtype=np.int64), 1)
    result = paired_difference(one, one)
    assert result.p_value == 1.0
    assert result.low < -0.05
    assert result.high > 0.05


@pytest.mark.parametrize("several", [False, True])
def test_resampled_f1_is_scikit_learns_on_the_resampled_rows(several):
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(3)
    shape = (40, 3) if several else 40
    truth, predicted = (rng.integers(2 if several else 3, size=shape) for _ in range(2))
    samples = resample_f1(truth, [predicted, truth], 3, seed=5)
    again = np.random.default_rng(5)
    for number in range(5):
        rows = again.integers(40, size=40)
        labels = None if several else range(3)
        for average, values in (("macro", samples.macro), ("micro", samples.micro)):
            each = [
                f1_score(truth[rows], answers[rows], labels=labels, average=average, zero_division=0)
                for answers in (predicted, truth)
            ]
            assert values[number] == pytest.approx(np.mean(each))


def test_an_f1_without_errors_is_not_certain():
    low, high = f1_interval(1.0, np.ones(100), 1.0, wilson_interval(1.0, 30))
    assert low == pytest.approx(wilson_interval(1.0, 30)[0])
    assert high == 1.0
    wide = np.linspace(0.2, 0.9, 1001)
    assert f1_interval(0.6, wide, 0.6, (0.55, 0.65)) == pytest.approx((0.2175, 0.8825))


def test_a_labels_f1_has_the_interval_of_its_rows():
    truth, predicted = np.repeat([1, 1, 0, 0], [12, 4, 3, 20]), np.repeat([1, 0, 1, 0], [12, 4, 3, 20])
    label = LabelMetrics(precision=12 / 15, recall=12 / 16, f1=2 * 12 / 31, rows=16)
    low, high = label.f1_interval
    either = int(((truth == 1) | (predicted == 1)).sum())
    fractions = wilson_interval(12 / either, either)
    assert (low, high) == pytest.approx(tuple(2 * j / (1 + j) for j in fractions))
    assert low < label.f1 < high
    assert LabelMetrics(precision=0, recall=0, f1=0, rows=0).f1_interval is None
    assert LabelMetrics(precision=0, recall=0, f1=0, rows=9).f1_interval[1] < 0.5
