"""What the next labels bring, on hand-made numbers."""

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from clozify.report.outlook import (
    Accuracy,
    Change,
    cohen_kappa,
    expected_gain,
    gain_seen,
    make_outlook,
    probabilities_at,
)

TEST = Accuracy(accuracy=0.8, low=0.76, high=0.84, source="test rows")


def change(**changes) -> Change:
    return Change(**{"before": 40, "after": 60, "rows": 100, "changed": 0.1, "kappa": 0.9, "gain": 0.02} | changes)


def test_the_expected_gain_is_what_a_power_law_takes_from_the_error():
    gain = expected_gain(0.2, 60, 20)
    assert gain.expected == pytest.approx(0.2 - 0.2 * (60 / 80) ** 0.15)
    assert gain.high - gain.expected == pytest.approx(0.01 + gain.expected)
    assert gain.expected - gain.low == pytest.approx(0.01 + gain.expected)


def test_the_gain_falls_with_the_labels_and_with_the_error():
    """A promise that does not shrink would never let anyone stop."""
    gains = [
        expected_gain(error, labels, 20).expected for error, labels in ((0.3, 40), (0.3, 80), (0.1, 80), (0.0, 80))
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == 0


def test_with_an_earlier_run_the_gain_is_the_mean_of_the_power_law_and_of_what_the_last_labels_brought():
    expected, power = expected_gain(0.2, 60, 20, change()), [n**-0.15 for n in (40, 60, 80)]
    ratio = (power[1] - power[2]) / (power[0] - power[1])
    assert expected.expected == pytest.approx((expected_gain(0.2, 60, 20).expected + 0.02 * ratio) / 2)
    assert expected_gain(0.2, 60, 20, change(gain=None)) == expected_gain(0.2, 60, 20)
    assert math.isfinite(expected_gain(0.2, 60, 20, change(before=0)).expected)  # trained without labelled rows


def test_probabilities_have_the_accuracy_as_their_mean_confidence_and_keep_their_order():
    scores = np.random.default_rng(0).normal(size=(200, 4)) * 5
    for accuracy in (0.4, 0.7, 0.95):
        probabilities = probabilities_at(scores, accuracy)
        assert probabilities.max(axis=1).mean() == pytest.approx(accuracy, abs=1e-3)
        assert probabilities.sum(axis=1) == pytest.approx(np.ones(200))
        assert (probabilities.argmax(axis=1) == scores.argmax(axis=1)).all()


@pytest.mark.parametrize("scores", [np.zeros((3, 2)), np.full((3, 2), 1e9), np.array([[1e6, 0.0]] * 3)])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_scores_that_no_temperature_fits_have_probabilities_all_the_same(scores, accuracy):
    probabilities = probabilities_at(scores, accuracy)
    assert np.isfinite(probabilities).all()
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(3))


def test_the_gain_that_a_run_sees_is_its_probability_of_the_new_labels_less_that_of_the_old_ones():
    scores = np.log([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])  # with a mean confidence of 0.7333
    seen = gain_seen(scores, np.array([1, 1, 0]), 2.2 / 3)
    assert seen == pytest.approx((0.9 - 0.1) / 3, abs=1e-3)  # only the first row's label is another one
    assert gain_seen(scores, scores.argmax(axis=1), 0.8) == 0


def test_kappa_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 3, size=50), rng.integers(0, 5, size=50)
    assert cohen_kappa(one, other) == pytest.approx(cohen_kappa_score(one, other))
    assert cohen_kappa(one, one) == 1
    assert cohen_kappa(np.zeros(4, int), np.zeros(4, int)) == 1


def test_the_sentences_say_what_to_expect():
    outlook = make_outlook(60, 20, TEST)
    assert outlook.stop is False
    assert outlook.sentences == [
        "The next 20 labels will probably bring +0.8 points (-1.0 to +2.7); accuracy so far is 80% (76 to 84), on the "
        "test rows."
    ]


def test_labelling_may_stop_where_little_is_expected_or_predictions_are_stable():
    assert "half a point" in make_outlook(400, 20, TEST).sentences[-1]
    stable = make_outlook(60, 20, TEST, [change(changed=0.005, kappa=0.993, gain=0.02)])
    assert stable.stop
    assert stable.sentences[1:] == [
        "Predictions of unlabelled rows that changed: 0.5% from 40 to 60 labelled rows.",
        "You may stop: the predictions are stable.",
    ]
    assert not make_outlook(60, 20, TEST, [change(kappa=0.995), change()]).stop  # the last change counts


def test_more_labels_at_a_time_must_bring_more_for_it():
    """100 labels that bring one point are no reason to go on where 20 that bring a fifth of it are none."""
    few = make_outlook(400, 20, TEST)
    assert few.stop
    many = make_outlook(400, 100, TEST)
    assert many.stop
    assert many.gain.expected > few.gain.expected
    assert "2.5 points" in many.sentences[-1]


def test_without_an_accuracy_the_reason_is_told():
    outlook = make_outlook(60, 20, None, problem="the run has no test rows")
    assert outlook.stop is None
    assert outlook.sentences == ["What the next 20 labels bring cannot be estimated: the run has no test rows."]
    assert "no labelled rows" in make_outlook(0, 20, TEST).sentences[0]
    assert make_outlook(60, 20, None, [change(gain=None, kappa=0.999)], "no rows").stop
