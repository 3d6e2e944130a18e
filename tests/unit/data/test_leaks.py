"""Columns that tell the label."""

import numpy as np

from clozify.data.leaks import find_column_leak, find_named_labels, is_sorted_by_label

LABELS = np.repeat([0, 1, 2], 20)
SHUFFLED = np.random.default_rng(0).permutation(LABELS)


def test_a_column_that_renames_the_label_leaks():
    leak = find_column_leak("section", [f"s{label}" for label in SHUFFLED], SHUFFLED)
    assert (leak.kind, leak.accuracy, leak.rows) == ("values", 1.0, 60)
    assert np.isclose(leak.majority, 1 / 3)


def test_a_column_that_is_nearly_the_label_leaks_and_one_that_is_often_wrong_does_not():
    values = [f"s{label}" for label in SHUFFLED]
    values[:2] = ["s9", "s9"]
    assert find_column_leak("section", values, SHUFFLED) is not None
    values[:10] = ["s0"] * 10
    assert find_column_leak("section", values, SHUFFLED) is None


def test_an_accuracy_is_cross_validated():
    """Each row's own value says nothing about the others."""
    assert find_column_leak("text", [f"text {row}" for row in np.random.default_rng(1).permutation(60)], LABELS) is None


def test_ids_that_are_sorted_by_label_leak_and_shuffled_ones_do_not():
    ids = [f"row-{number}" for number in range(60)]
    assert find_column_leak("id", ids, LABELS).kind == "numbers"
    assert find_column_leak("id", ids, SHUFFLED) is None


def test_large_ids_are_told_apart():
    assert find_column_leak("id", [str(10**14 + number) for number in range(60)], LABELS).kind == "numbers"


def test_few_rows_and_single_values_prove_nothing():
    assert find_column_leak("section", ["a", "b", "a", "b"], np.array([0, 1, 0, 1])) is None
    assert find_column_leak("section", ["a"] * 60, LABELS) is None
    assert find_column_leak("section", ["a", "b"] * 30, np.zeros(60, dtype=int)) is None


def test_a_field_that_names_its_label_leaks():
    names = ["sports", "science", "art"]
    texts = [f"Section {names[label].title()}: some text" for label in SHUFFLED]
    leak = find_named_labels("text", texts, SHUFFLED, names)
    assert (leak.kind, leak.accuracy, leak.rows) == ("label names", 1.0, 60)


def test_names_that_occur_now_and_then_or_in_other_rows_do_not_leak():
    names = ["sports", "science", "art"]
    now_and_then = [names[label] if row % 4 == 0 else "text" for row, label in enumerate(SHUFFLED)]
    assert find_named_labels("text", now_and_then, SHUFFLED, names) is None
    in_others = [names[(label + row % 2) % 3] for row, label in enumerate(SHUFFLED)]
    assert find_named_labels("text", in_others, SHUFFLED, names) is None
    within_words = [f"{names[label]}ical" for label in SHUFFLED]
    assert find_named_labels("text", within_words, SHUFFLED, names) is None


def test_rows_are_sorted_by_label_where_each_label_is_one_block():
    assert is_sorted_by_label(np.array([1] * 6 + [0] * 6))
    assert not is_sorted_by_label(np.array([1] * 6 + [0] * 6 + [1]))
    assert not is_sorted_by_label(np.zeros(12, dtype=int))
