"""iPET's rules against numbers worked out by hand, and over random and degenerate given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozify.config.recipe import IPet
from clozify.methods import ipet as module
from clozify.methods.ensemble import Ensemble
from clozify.methods.ipet import (
    TopRows,
    choose_teachers,
    count_generations,
    counts_to_draw,
    draw_keys,
    first_counts,
    is_better,
    select_rows,
    select_training_rows,
)

PAPER = IPet()


@pytest.mark.parametrize(
    ("rows", "k"),
    [(10, 3), (50, 2), (100, 2), (1000, 0), (5000, 0), (8, 3), (40, 2), (200, 1), (999, 1), (1, 5), (0, 4)],
)
def test_generations_go_on_until_a_set_has_a_thousand_rows(rows, k):
    """A logarithm in floating point gives 4 instead of 3 where |T| d^3 is exactly 1000."""
    assert count_generations(rows, PAPER) == k


def test_generations_that_are_given_are_taken():
    assert count_generations(10, IPet(generations=1)) == 1


def test_a_set_quintuples_and_keeps_the_ratio_of_the_labels():
    """By hand: T has 2 and 6 rows; c_1 is 10 and 30, c_2 is 50 and 150; T itself is part of each."""
    of_t = np.array([2, 6])
    assert counts_to_draw(of_t, 1, 10_000, PAPER)[0].tolist() == [8, 24]
    assert counts_to_draw(of_t, 2, 10_000, PAPER)[0].tolist() == [48, 144]


def test_a_label_that_t_lacks_counts_as_one_row():
    assert counts_to_draw(np.array([2, 0, 6]), 1, 10_000, PAPER)[0].tolist() == [8, 4, 24]


def test_without_labelled_rows_ten_are_drawn_and_a_remainder_goes_to_the_first_labels():
    none = np.zeros(4, dtype=np.int64)
    assert first_counts(4, PAPER).tolist() == [3, 3, 2, 2]
    assert first_counts(14, PAPER).tolist() == [1] * 14  # each label gets one, else it would never be learned
    assert counts_to_draw(none, 1, 10_000, PAPER)[0].tolist() == [3, 3, 2, 2]
    assert counts_to_draw(none, 3, 10_000, PAPER)[0].tolist() == [75, 75, 50, 50]


def test_small_unlabelled_data_caps_the_sets_in_the_ratio_of_the_labels():
    wanted, capped = counts_to_draw(np.array([2, 6]), 2, 20, PAPER)  # 48 and 144 wanted
    assert capped
    assert wanted.tolist() == [5, 15]
    assert counts_to_draw(np.array([1, 1, 1]), 1, 5, PAPER)[0].tolist() == [2, 2, 1]


@pytest.mark.parametrize(("models", "count"), [(18, 4), (12, 3), (3, 1), (2, 1), (6, 1), (5, 1), (4, 1)])
def test_a_quarter_of_the_others_teach_and_never_none(models, count):
    """By hand: 0.25 * 17 = 4.25, 0.25 * 11 = 2.75, 0.25 * 2 = 0.5; the authors' code rounds the last to 0."""
    for own in range(models):
        teachers = choose_teachers(models, own, 0.25, np.random.default_rng(own))
        assert len(set(teachers.tolist())) == count
        assert own not in teachers


def test_a_model_that_is_alone_teaches_itself():
    assert choose_teachers(1, 0, 0.25, np.random.default_rng(0)).tolist() == [0]


def test_every_other_model_may_teach():
    seen = {int(t) for n in range(200) for t in choose_teachers(6, 2, 0.25, np.random.default_rng(n))}
    assert seen == {0, 1, 3, 4, 5}


@pytest.mark.parametrize("how", ["probability", "score"])
def test_rows_are_drawn_in_proportion_to_the_teachers_score(how):
    """By hand for one row of three: softmax at T = 1, or the raw score less the lowest."""
    scores = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    weights = np.exp(scores[:, 0]) / (np.exp(scores[:, 0]) + 1) if how == "probability" else scores[:, 0] - 0.5
    rng = np.random.default_rng(0)
    draws = 20_000
    first = np.bincount([draw_keys(scores, 0, how, rng).argmax() for _ in range(draws)], minlength=3)
    assert first / draws == pytest.approx(weights / weights.sum(), abs=0.015)


def test_the_second_row_is_drawn_from_the_rest_in_proportion_too():
    scores = np.log(np.array([[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]))
    rng = np.random.default_rng(0)
    pairs = [tuple(np.argsort(-draw_keys(scores, 0, "probability", rng))[:2]) for _ in range(20_000)]
    expected = 0.6 / 2.3 * 0.9 / 1.7  # row 0 first, row 2 second
    assert pairs.count((0, 2)) / len(pairs) == pytest.approx(expected, abs=0.01)


def test_each_label_gets_rows_that_the_teachers_give_it():
    scores = np.array([[3.0, 0], [2, 0], [1, 0], [0, 1], [0, 2], [0, 3]])
    chosen = select_rows(scores, np.array([2, 2]), np.random.default_rng(0))
    assert chosen.labels.tolist() == [0, 0, 1, 1]
    assert set(chosen.rows[:2]) <= {0, 1, 2}
    assert not chosen.topped_up.any()
    q = np.exp(scores.max(axis=1)) / (np.exp(scores.max(axis=1)) + 1)
    assert chosen.certainty == pytest.approx(q[chosen.rows].mean())


def test_a_label_without_rows_of_its_own_is_topped_up_with_the_next_best():
    """The authors' code loops for ever when no row gets the label."""
    scores = np.array([[3.0, 0], [3, 1], [3, 2], [3, 2.5]])
    chosen = select_rows(scores, np.array([1, 2]), np.random.default_rng(3))
    assert chosen.topped_up.tolist() == [0, 2]
    assert sorted(chosen.labels.tolist()) == [0, 1, 1]
    taken = chosen.rows[chosen.labels == 0][0]
    best_of_rest = [row for row in (3, 2, 1, 0) if row != taken][:2]
    assert set(chosen.rows[chosen.labels == 1]) == set(best_of_rest)
    without = select_rows(scores, np.array([1, 2]), np.random.default_rng(3), top_up=False)
    assert without.labels.tolist() == [0]


def test_without_labelled_rows_each_label_is_drawn_from_the_best_for_it_even_if_another_is_better():
    scores = np.stack([np.full(500, 9.0), np.arange(500) / 100], axis=1)  # label 0 is best everywhere
    chosen = select_rows(scores, np.array([5, 5]), np.random.default_rng(0), pool=100)
    assert (chosen.labels == 1).sum() == 5
    assert chosen.rows[chosen.labels == 1].min() >= 395  # the 100 best, less what label 0 took of them
    assert not chosen.topped_up.any()


def test_teachers_weigh_by_their_accuracy():
    scores = {0: np.array([[4.0, 0]], dtype=np.float32), 2: np.array([[0, 2.0]], dtype=np.float32)}
    weights = [0.2, 9.9, 0.8]
    teachers = np.array([0, 2])
    chosen = select_training_rows(scores, weights, np.array([0, 1]), PAPER, teachers, np.random.default_rng(0), False)
    assert chosen.labels.tolist() == [1]  # s_N = (0.8, 1.6)
    assert chosen.certainty == pytest.approx(np.exp(1.6) / (np.exp(0.8) + np.exp(1.6)))


@given(
    rows=st.integers(1, 60),
    of_t=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    generation=st.integers(1, 4),
    kind=st.sampled_from(["random", "equal", "huge", "one label", "tiny"]),
    how=st.sampled_from(["probability", "score"]),
    seed=st.integers(0, 5),
    at_once=st.sampled_from([1, 3, 16, 1000]),
)
def test_a_selection_has_the_rows_asked_for_whatever_the_scores_are(rows, of_t, generation, kind, how, seed, at_once):
    """Never an endless loop, a division by zero, a row twice, or a label short; also with rows in parts."""
    of_t = np.array(of_t)
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, len(of_t)))
    if kind == "equal":
        scores[:] = 0.0
    elif kind == "huge":
        scores *= 1e30
    elif kind == "one label":
        scores[:, 0] += 1e4
    elif kind == "tiny":
        scores *= 1e-30
    zero_shot = of_t.sum() == 0
    wanted, capped = counts_to_draw(of_t, generation, rows, PAPER)
    assert wanted.sum() <= rows
    assert (
        capped
        or wanted.tolist()
        == (
            first_counts(len(of_t), PAPER) * 5 ** (generation - 1)
            if zero_shot
            else np.maximum(of_t, 1) * (5**generation - 1)
        ).tolist()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_SIZE", at_once)
        chosen = select_rows(scores, wanted, rng, how, 100 if zero_shot else None)
    assert np.bincount(chosen.labels, minlength=len(of_t)).tolist() == wanted.tolist()
    assert len(set(chosen.rows.tolist())) == len(chosen.rows) == wanted.sum()
    assert np.isfinite(chosen.certainty)


@pytest.mark.parametrize("how", ["probability", "score"])
def test_unlabelled_data_in_parts_is_drawn_from_in_the_same_proportion(how, monkeypatch):
    """By hand for one row of three, each a part of its own; the lowest score is that of all parts, not of one."""
    monkeypatch.setattr(module, "CHUNK_SIZE", 1)
    scores = np.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    weights = np.exp(scores[:, 0]) / (np.exp(scores[:, 0]) + 1) if how == "probability" else scores[:, 0] - 0.5
    rng = np.random.default_rng(0)
    drawn = [select_rows(scores, np.array([1, 0]), rng, how).rows[0] for _ in range(4_000)]
    assert np.bincount(drawn, minlength=3) / len(drawn) == pytest.approx(weights / weights.sum(), abs=0.03)


def test_the_best_of_unlabelled_data_are_the_same_however_it_is_cut(monkeypatch):
    """Only the draw itself is by chance: pools and what is topped up must not depend on the parts."""
    scores = np.random.default_rng(0).normal(size=(200, 3)).round(1)  # many equals
    scores[:, 0] += 5
    result = []
    for at_once in (1, 7, 64, 1000):
        monkeypatch.setattr(module, "CHUNK_SIZE", at_once)
        everything = np.array([0, 40, 40])  # of rows that are best for label 0
        topped = select_rows(scores, everything, np.random.default_rng(0))
        pooled = select_rows(scores, np.array([5, 5, 5]), np.random.default_rng(0), pool=20)
        result.append((topped.rows.tolist(), topped.labels.tolist(), pooled.rows.tolist(), pooled.labels.tolist()))
    assert all(one == result[0] for one in result)


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 9), st.integers(1, 9))
def test_the_best_are_the_first_of_a_stable_sort(values, count, size):
    best, array = TopRows(count), np.array(values, dtype=np.float64)
    for start in range(0, len(array), size):
        best.update(array[start : start + size], np.arange(start, min(start + size, len(array))))
    assert best.rows().tolist() == np.argsort(-array, kind="stable")[:count].tolist()


def test_an_ensemble_asked_for_some_rows_gives_what_it_gives_for_all():
    scores = [np.random.default_rng(n).normal(size=(50, 3)).astype(np.float32) for n in range(3)]
    ensemble = Ensemble(scores, [0.2, 0.5, 0.1])
    whole = ensemble[:]
    assert np.array_equal(np.concatenate([part for _, part in ensemble.chunks(7)]), whole)
    assert np.array_equal(ensemble[np.array([9, 3])], whole[[9, 3]])


def test_a_generation_is_better_unless_certainty_and_consensus_fall_together():
    assert is_better(0.9, 0.8, 0.85, 0.8)
    assert is_better(0.86, 0.85, 0.9, 0.8)
    assert not is_better(0.8, 0.85, 0.9, 0.8)
