"""Intervals, paired differences, ranks and frontiers against naive references."""

import math

import numpy as np
import pytest

from clozify.bench.statistics import Estimate, estimate, frontier, paired_difference, ranks

T_975 = {1: 12.7062, 2: 4.30265, 4: 2.77645}  # quantiles of Student's t, from a table


@pytest.mark.parametrize("values", [[0.5, 0.7], [0.71, 0.75, 0.79], [0.1, 0.5, 0.2, 0.4, 0.3]])
def test_an_interval_is_student_s(values):
    count = len(values)
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    margin = T_975[count - 1] * deviation / math.sqrt(count)
    result = estimate(values)
    assert result.mean == pytest.approx(mean)
    assert (result.low, result.high) == pytest.approx((mean - margin, mean + margin), rel=1e-4)
    assert result.draws == count


def test_a_single_draw_has_no_interval():
    assert estimate([0.6]) == Estimate(0.6, None, None, 1)


def test_intervals_of_fractions_stay_within_0_and_1():
    clipped = estimate([0.5, 1.0]).clipped()
    assert (clipped.low, clipped.high) == (0.0, 1.0)


def test_differences_are_paired_by_draw():
    result = paired_difference({0: 0.5, 1: 0.7, 3: 0.9}, {0: 0.4, 1: 0.5, 2: 0.1})
    assert result is not None
    assert result.mean == pytest.approx((0.1 + 0.2) / 2)
    assert result.draws == 2
    assert paired_difference({0: 0.5}, {1: 0.5}) is None


def test_ranks_are_means_over_blocks_and_ties_are_shared():
    table = np.array([[0.9, 0.8, 0.7], [0.5, 0.6, 0.6]])
    first, second, third = ranks(table)
    assert (first.mean, first.best, first.worst, first.blocks) == (2.0, 1.0, 3.0, 2)
    assert (second.mean, second.best, second.worst) == (1.75, 1.5, 2.0)
    assert third.mean == 2.25


def test_the_frontier_holds_what_no_other_point_beats():
    costs, gains = [1.0, 2.0, 3.0, 3.0, 5.0], [0.5, 0.4, 0.7, 0.7, 0.6]
    naive = [
        all(not (c <= a and g >= b and (c, g) != (a, b)) for c, g in zip(costs, gains, strict=True))
        for a, b in zip(costs, gains, strict=True)
    ]
    assert frontier(costs, gains) == naive == [True, False, True, True, False]


def test_the_interval_of_a_difference_stays_within_possible_values():
    difference = paired_difference({0: 0.1, 1: 0.9}, {0: 0.9, 1: 0.8})
    assert (difference.low, difference.high) == (-1.0, 1.0)
