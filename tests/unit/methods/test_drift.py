"""Tests of drift against SciPy's and against naive references."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from clozify.methods.drift import (
    Difference,
    chi_squared_p_value,
    compare_exceeding,
    compare_label_sets,
    compare_numbers,
    compare_shares,
    compare_words,
    count_rows_with_words,
    fisher_exact,
    holm,
    row_words,
    unseen_fractions,
)
from clozify.methods.scope import Scope


def test_holm_is_the_step_down_procedure():
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = rng.random(6) ** 3
        rejected, level = set(), 0.05
        for step, index in enumerate(np.argsort(p)):  # stop at the first that is not significant
            if p[index] >= level / (6 - step):
                break
            rejected.add(int(index))
        assert {i for i, value in enumerate(holm(p)) if value < level} == rejected
    assert holm([]).tolist() == []


def test_large_counts_are_compared_by_pearsons_chi_squared():
    reference, new = np.array([500, 300, 0, 200]), np.array([100, 90, 0, 30])
    result = compare_shares(reference, new)
    table = np.array([[500, 300, 200], [100, 90, 30]])
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert chi_squared_p_value(table) == pytest.approx(expected)
    assert result.p_value == pytest.approx(2 * min(expected, compare_label_sets(*table, (1000, 220)).p_value))
    assert result.effect == pytest.approx(np.abs(table[0] / 1000 - table[1] / 220).sum() / 2)


def test_small_counts_are_compared_with_all_splits():
    """With two labels and eight rows every split can be listed."""
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 0])
    is_new = np.array([False] * 3 + [True] * 4 + [False])

    def chi_squared(new):
        table = np.array([np.bincount(labels[~new], minlength=2), np.bincount(labels[new], minlength=2)])
        expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
        return ((table - expected) ** 2 / expected).sum()

    splits = []
    for chosen in combinations(range(8), 4):
        new = np.zeros(8, dtype=bool)
        new[list(chosen)] = True
        splits.append(chi_squared(new))
    exact = np.mean(np.array(splits) >= chi_squared(is_new) - 1e-9)
    counts = np.array([np.bincount(labels[~is_new], minlength=2), np.bincount(labels[is_new], minlength=2)])
    assert chi_squared_p_value(counts) == pytest.approx(exact, abs=0.01)
    assert compare_shares(np.array([5, 0]), np.array([7, 0])).p_value == 1.0
    assert compare_shares(np.array([5, 0]), np.array([7, 0])).effect == 0.0


def test_fishers_p_value_is_twice_the_smaller_tail():
    reference, new, rows = np.array([3, 40, 0, 7]), np.array([9, 10, 5, 1]), (100, 30)
    for p_value, before, after in zip(fisher_exact(reference, new, rows), reference, new, strict=True):
        table = [[after, rows[1] - after], [before, rows[0] - before]]
        tails = [stats.fisher_exact(table, alternative=side).pvalue for side in ("less", "greater")]
        assert p_value == pytest.approx(min(1.0, 2 * min(tails)))


def test_of_several_labels_a_row_the_one_that_differs_most_counts():
    reference, new, rows = np.array([50, 10, 0]), np.array([48, 40, 0]), (100, 100)
    result = compare_label_sets(reference, new, rows)
    assert result.p_value == pytest.approx(2 * fisher_exact(reference[1:2], new[1:2], rows)[0])
    assert result.effect == pytest.approx(0.3)
    assert compare_label_sets(np.zeros(3), np.zeros(3), rows).p_value == 1.0


def test_numbers_are_compared_by_the_largest_difference_of_distribution_functions():
    rng = np.random.default_rng(0)
    reference, new = rng.random(200), rng.random(70) * 0.8
    points = np.concatenate([reference, new])
    largest = max(abs((reference <= point).mean() - (new <= point).mean()) for point in points)
    result = compare_numbers(reference, new)
    assert result.effect == pytest.approx(largest)
    assert result.p_value == pytest.approx(stats.ks_2samp(reference, new).pvalue, rel=0.2)
    assert compare_numbers(reference, reference + 0.5, larger=True).p_value < 1e-6
    assert compare_numbers(reference, reference - 0.5, larger=True) == Difference(1.0, 0.0)


def test_words_are_counted_once_a_row_in_lower_case():
    rows = [row_words(["A game, a Game!", "2 players"]), row_words(["game"]), row_words(["好玩"]), row_words([""])]
    assert rows == [{"a", "game", "2", "players"}, {"game"}, {"好", "玩"}, set()]
    assert count_rows_with_words(rows)["game"] == 2


def test_unseen_words_of_reference_rows_are_those_of_no_other_row():
    reference = [{"a", "b"}, {"a", "c"}, {"a"}]
    counts = count_rows_with_words(reference)
    assert unseen_fractions(reference, counts, own=True).tolist() == [0.5, 0.5, 0.0]
    assert unseen_fractions([{"a", "d"}, {"d"}, set()], counts).tolist() == [0.5, 1.0, 0.0]


def test_words_that_became_frequent_or_rare_are_named_with_corrected_p_values():
    reference = {"the": 900, "old": 200, "rare": 2, "same": 100}
    new = {"the": 182, "novel": 30, "old": 5, "rare": 1, "same": 20}
    result, words = compare_words(reference, new, (1000, 200), level=0.01)
    assert [word.word for word in words] == ["novel", "old"]
    tested = 4  # all but 'rare'
    p_value = fisher_exact(np.array([0]), np.array([30]), (1000, 200))[0]
    assert words[0].p_value == pytest.approx(tested * p_value)
    assert (words[0].reference, words[0].new) == (0.0, 0.15)
    assert result.p_value == words[0].p_value
    assert result.effect == pytest.approx(0.175)  # of 'old', from 20% to 2.5%
    same, none = compare_words(reference, reference, (1000, 1000), level=0.01)
    assert (same.p_value, none) == (1.0, [])
    assert compare_words({}, {"a": 1}, (5, 5), 0.01)[1] == []


@pytest.mark.parametrize("labels", [3, 12])
def test_the_same_distribution_is_rarely_called_different(labels):
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(labels))
    p_values = [compare_shares(rng.multinomial(500, shares), rng.multinomial(100, shares)).p_value for _ in range(20)]
    assert np.mean(np.array(p_values) < 0.01) <= 0.05
    assert compare_shares(np.array([200, 200, 100]), np.array([20, 20, 60])).p_value < 1e-6


def naive_exceeding(reference, new, fraction):
    """All ways in which the ranks of the new numbers among all may fall are equally likely."""
    rows, count = len(reference), len(new)
    rank = int(np.ceil((1 - fraction) * (rows + 1) - 1e-9))
    threshold = sorted(reference)[rank - 1]
    observed = sum(value > threshold for value in new)
    as_large = 0
    ways = list(combinations(range(rows + count), count))  # the ranks of the new numbers
    for ranks in ways:
        others = [rank_of for rank_of in range(rows + count) if rank_of not in ranks]
        as_large += sum(rank_of > others[rank - 1] for rank_of in ranks) >= observed
    return as_large / len(ways)


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_the_number_beyond_a_threshold_is_compared_exactly(fraction):
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.5, 2.0):
        reference, new = rng.normal(size=8), rng.normal(shift, size=5)
        found = compare_exceeding(reference, new, fraction)
        assert found.difference.p_value == pytest.approx(naive_exceeding(reference, new, fraction))
        assert found.difference.effect == max(0.0, found.new - found.reference)
    assert compare_exceeding(np.arange(3.0), new, 0.2) is None  # takes 4


CENTRES = 2 * np.eye(6)[:3]  # in half of the dimensions


def made_up_states(rng, rows, centres=CENTRES):
    """States around a few centres in few dimensions, where neighbouring rows depend on each other most."""
    return centres[rng.integers(0, len(centres), rows)] + 0.3 * rng.normal(size=(rows, 6))


def scope_differences(rng, centres=CENTRES):
    """The p-values of the scores' distribution and of the fraction out of scope, of 150 reference and 300 new rows."""
    scope = Scope.fit_to_half(made_up_states(rng, 150), 1_000, seed=int(rng.integers(1 << 30)))
    new = scope.scores(made_up_states(rng, 300, centres))
    exceeding = compare_exceeding(scope.in_scope, new, 0.05)
    return compare_numbers(scope.in_scope, new, larger=True).p_value, exceeding.difference.p_value


def test_rows_like_the_reference_are_called_out_of_scope_as_often_as_the_level_says():
    """Of 400 draws, 5% have a standard deviation of 1.1 points."""
    rng = np.random.default_rng(0)
    p_values = np.array([scope_differences(rng) for _ in range(400)])
    assert ((p_values < 0.05).mean(axis=0) < 0.09).all()
    assert ((p_values < 0.01).mean(axis=0) < 0.03).all()
    together = np.array([holm(both).min() for both in p_values])
    assert (together < 0.05).mean() < 0.09


def test_rows_of_other_centres_are_drift():
    rng = np.random.default_rng(0)
    p_values = np.array([scope_differences(rng, 2 * np.eye(6)[3:]) for _ in range(20)])
    assert (p_values < 0.001).all()
