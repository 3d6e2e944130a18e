"""Out-of-scope scores against a naive loop, and their threshold."""

import numpy as np
import pytest

from clozify.methods import scope as scope_module
from clozify.methods.scope import Scope

RNG = np.random.default_rng(0)
REFERENCE = np.concatenate([RNG.normal([3, 0, 1, 0], 0.4, (12, 4)), RNG.normal([-3, 1, 0, 0], 0.4, (18, 4))])
IS_LABELED = np.arange(30) < 10


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def naive_score(state, reference, mean, k):
    similarities = sorted(cosine(state - mean, other - mean) for other in reference)
    return 1 - sum(similarities[-k:]) / k


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("chunk", [7, 4096])
def test_a_score_is_one_less_the_mean_cosine_of_the_nearest_rows(k, chunk, monkeypatch):
    monkeypatch.setattr(scope_module, "NEIGHBOURS", k)
    monkeypatch.setattr(scope_module, "CHUNK_ROWS", chunk)
    scope, mean = Scope.fit(REFERENCE, IS_LABELED), REFERENCE.mean(axis=0)
    states = np.concatenate([REFERENCE[:15] + 0.1, [[0.0, 0.0, 0.0, 9.0]]])
    expected = [naive_score(state, REFERENCE, mean, k) for state in states]
    assert scope.scores(states) == pytest.approx(expected, abs=5e-3)  # vectors are kept in 8 bits
    assert scope.scores(states)[-1] > scope.scores(states)[:-1].max()
    own = [
        naive_score(REFERENCE[row], np.delete(REFERENCE, row, axis=0), mean, k) for row in np.flatnonzero(~IS_LABELED)
    ]
    assert scope.in_scope == pytest.approx(sorted(own), abs=5e-3)


def test_a_threshold_rejects_its_fraction_of_rows_of_the_task():
    scope = Scope(np.zeros(2, np.float32), np.eye(2, dtype=np.int8), np.arange(1, 20, dtype=np.float32))
    assert scope.threshold(0.05) == 19  # one new row of twenty ranks above all nineteen
    assert scope.threshold(0.5) == 10
    assert scope.threshold(0.04) is None


def leave_one_out(rows):
    mean = REFERENCE.mean(axis=0)
    return sorted(naive_score(REFERENCE[row], np.delete(REFERENCE, row, axis=0), mean, 1) for row in rows)


def test_without_unlabelled_rows_each_labelled_rows_distance_from_the_others_counts():
    scope = Scope.fit(REFERENCE, np.ones(30, dtype=bool))
    expected = leave_one_out(range(30))
    assert len(scope.in_scope) == 0
    assert scope.reference_scores(0.05) == pytest.approx(expected, abs=5e-3)
    assert scope.threshold(0.05) == scope.reference_scores(0.05)[29]  # the 30th of 30: ceil(0.95 * 31)
    assert scope.threshold(0.5) == scope.reference_scores(0.5)[15]
    assert scope.threshold(0.03) is None  # takes 33 rows
    assert len(scope.scores(REFERENCE[:2])) == 2


def test_too_few_unlabelled_rows_are_joined_by_the_labelled_ones():
    scope = Scope.fit(REFERENCE, np.arange(30) >= 8)  # the first eight are unlabelled
    assert len(scope.reference_scores(0.2)) == 8
    assert scope.reference_scores(0.05) == pytest.approx(leave_one_out(range(30)), abs=5e-3)
    assert scope.threshold(0.05) is not None


@pytest.mark.parametrize("is_labeled", [True, False])
def test_a_single_row_has_no_distance_from_others(is_labeled):
    scope = Scope.fit(REFERENCE[:1], np.full(1, is_labeled))
    assert scope.threshold(0.5) is None
    assert len(scope.reference_scores(0.5)) == 0


def test_half_of_the_rows_may_be_the_reference_of_the_others():
    scope = Scope.fit_to_half(REFERENCE, 100, seed=3)
    order = np.random.default_rng(3).permutation(30)
    anchors, others = REFERENCE[order[:15]], REFERENCE[order[15:]]
    expected = sorted(naive_score(state, anchors, anchors.mean(axis=0), 1) for state in others)
    assert scope.in_scope == pytest.approx(expected, abs=5e-3)
    assert len(Scope.fit_to_half(REFERENCE, 4).vectors) == 4
    assert len(Scope.fit_to_half(REFERENCE, 4).in_scope) == 26
