import numpy as np
import pytest

from clozify.config.recipe import Words
from clozify.methods.verbalizer_search import search_verbalizer
from clozify.methods.verbalizer_validation import measure_separation


def test_words_that_other_rows_confirm_are_not_weak_and_chance_finds_are():
    """The best of 300 words always fits the rows that chose it; only other rows tell whether it means anything."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6, dtype=np.int16), 6)
    scores = rng.normal(size=(2, 36, 300)).astype(np.float32)
    for label in range(3):  # the labels 3 to 5 have no word of their own
        scores[:, labels == label, 10 * label] += 6
    settings = Words(k=20, i_max=2, m=2)
    result = search_verbalizer(scores, labels, np.full((6, 300), 1 / 300), settings, 0)
    separation = measure_separation(scores, labels, result, settings, {})
    assert [separation[label].is_weak for label in range(3)] == [False] * 3
    assert all(separation[label].auc == pytest.approx(1.0) for label in range(3))
    assert sum(separation[label].is_weak for label in range(3, 6)) >= 2


def test_a_label_with_one_row_is_not_tested():
    labels = np.array([0, 0, 1, 1, 2], dtype=np.int16)
    scores = np.random.default_rng(1).normal(size=(1, 5, 20)).astype(np.float32)
    result = search_verbalizer(scores, labels, np.full((4, 20), 1 / 20), Words(k=5, i_max=1), 0)
    assert set(measure_separation(scores, labels, result, Words(), {3: [1]})) == {0, 1}
