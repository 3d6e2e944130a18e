"""Thresholds for abstaining against naive loops over hand-made rows."""

import math

import numpy as np
import pytest

from clozify.methods.selective import operating_point, risk_coverage, threshold_for_coverage, threshold_for_risk
from clozify.metrics import wilson_interval

CONFIDENCE = np.array([0.9, 0.5, 0.8, 0.8, 0.6, 0.95, 0.4, 0.7])
CORRECT = np.array([True, False, True, False, True, True, False, True])


def naive_curve(confidence, correct):
    """(threshold, coverage, risk) of every distinct confidence, the highest first."""
    points = []
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        answered = [c for value, c in zip(confidence, correct, strict=True) if value >= threshold]
        points.append((threshold, len(answered) / len(confidence), answered.count(False) / len(answered)))
    return points


def test_the_curve_has_the_risk_of_every_coverage():
    curve = risk_coverage(CONFIDENCE, CORRECT)
    points = np.stack([curve.thresholds, curve.coverage, curve.risk], axis=1)
    assert points == pytest.approx(np.array(naive_curve(CONFIDENCE, CORRECT.tolist())))
    assert points[-1] == pytest.approx([0.4, 1, 3 / 8])
    widths = np.diff([0, *curve.coverage])
    assert curve.area == pytest.approx(sum(w * r for w, r in zip(widths, curve.risk, strict=True)))


def test_an_operating_point_counts_the_answered_rows():
    point = operating_point(CONFIDENCE, CORRECT, 0.8)
    assert (point.rows, point.answered, point.correct, point.coverage) == (8, 4, 3, 0.5)
    assert point.accuracy == 0.75
    assert point.interval == wilson_interval(0.75, 4)
    nothing = operating_point(CONFIDENCE, CORRECT, 0.99)
    assert (nothing.coverage, nothing.accuracy, nothing.interval) == (0, None, None)


@pytest.mark.parametrize("coverage", [0.1, 0.3, 0.5, 0.75, 0.9, 1.0])
def test_a_new_row_is_answered_with_the_coverages_probability(coverage):
    """Of n + 1 exchangeable rows each is the new one once; the thresholds of the others answer enough of them."""
    confidence = np.random.default_rng(1).permutation(np.linspace(0.3, 0.95, 19))
    answered = [
        confidence[new] >= threshold_for_coverage(np.delete(confidence, new), coverage)
        for new in range(len(confidence))
    ]
    assert coverage - 1e-9 <= np.mean(answered) < coverage + 1 / 19


def test_too_few_rows_for_a_coverage_answer_everything():
    assert threshold_for_coverage(np.array([0.9, 0.8]), 0.8) == 0


def naive_bound(errors, answered):
    """The error rate at which so few errors happen in one of five samples, by bisection of the binomial sum."""
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        fewer = sum(math.comb(answered, k) * p**k * (1 - p) ** (answered - k) for k in range(errors + 1))
        low, high = (p, high) if fewer > 0.2 else (low, p)
    return low


@pytest.mark.parametrize("max_risk", [0.1, 0.3, 0.4, 0.5, 0.6, 0.9])
def test_the_threshold_for_a_risk_is_the_lowest_that_holds_with_80_percent_confidence(max_risk):
    allowed = []
    for threshold, coverage, risk in naive_curve(CONFIDENCE, CORRECT.tolist()):
        answered = round(coverage * 8)
        if naive_bound(round(risk * answered), answered) <= max_risk:
            allowed.append(threshold)
    expected = None if not allowed else 0.0 if min(allowed) == CONFIDENCE.min() else min(allowed)
    assert threshold_for_risk(CONFIDENCE, CORRECT, max_risk) == expected


def test_only_errors_have_no_bound_below_one():
    assert risk_coverage(np.array([0.9, 0.8]), np.array([False, False])).upper_risk.tolist() == [1, 1]


def test_a_few_right_answers_do_not_promise_a_low_risk():
    """32 answers without an error are the fewest for 5%: 0.95^32 < 0.2."""
    confidence = np.linspace(0.5, 0.9, 32)
    assert threshold_for_risk(confidence, np.ones(32, dtype=bool), 0.05) == 0
    assert threshold_for_risk(confidence[1:], np.ones(31, dtype=bool), 0.05) is None


def test_the_risk_of_new_rows_is_rarely_above_the_limit():
    """Confidences that are probabilities of being right; the plain fraction of errors would choose too low."""
    rng = np.random.default_rng(0)
    risks, plain = [], []
    for _ in range(400):
        confidence, new = rng.uniform(0.5, 1, 50), rng.uniform(0.5, 1, 2000)
        correct, new_correct = rng.uniform(size=50) < confidence, rng.uniform(size=2000) < new
        threshold = threshold_for_risk(confidence, correct, 0.2)
        risks.append(0.0 if threshold is None else 1 - new_correct[new >= threshold].mean())
        curve = risk_coverage(confidence, correct)
        within = np.flatnonzero(curve.risk <= 0.2)
        plain.append(1 - new_correct[new >= curve.thresholds[within[-1]]].mean() if len(within) else 0.0)
    assert (np.array(risks) > 0.2).mean() < 0.25 < (np.array(plain) > 0.2).mean()
    assert np.mean(risks) < 0.2
