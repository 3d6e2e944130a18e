"""What `clozify check` says about patterns that answer labelled rows no better than guessing."""

import numpy as np

from clozify.inference.check import LabeledAnswers

TRUTH = np.array([0, 1] * 20, dtype=np.int16)


def test_a_pattern_near_chance_is_named_with_what_it_means():
    constant = np.ones(40, dtype=np.int64)
    (warning,) = LabeledAnswers(TRUTH, {"p1": TRUTH.astype(np.int64), "p2": constant}).warnings()
    assert "p2 is not clearly better" in warning
    assert "find-words" in warning


def test_patterns_that_all_guess_are_told_as_one():
    guess = np.array([0, 0, 1, 1] * 10)
    (warning,) = LabeledAnswers(TRUTH, {"p1": guess, "p2": guess}).warnings()
    assert "no pattern is clearly better" in warning


def test_good_patterns_and_few_rows_are_not_warned_about():
    assert LabeledAnswers(TRUTH, {"p1": TRUTH.astype(np.int64)}).warnings() == []
    assert LabeledAnswers(TRUTH[:8], {"p1": 1 - TRUTH[:8].astype(np.int64)}).warnings() == []
