"""Which rows weights are fitted on."""

import numpy as np

from clozify.methods.fitted_rows import FITTED_ROWS, MORE_ROWS, fitted_rows


def votes_on(rows, indices):
    scores = np.full((rows, 2), np.nan, dtype=np.float32)
    scores[indices] = 0.5
    return scores


def test_few_rows_are_all_fitted():
    assert fitted_rows(100, [votes_on(100, [3])]).tolist() == list(range(100))


def test_without_rare_votes_the_rows_are_evenly_spaced():
    rows = fitted_rows(50_000, [votes_on(50_000, slice(None))])
    assert rows.tolist() == np.linspace(0, 49_999, FITTED_ROWS).astype(int).tolist()


def test_the_few_rows_that_an_llm_was_asked_about_are_among_them():
    asked = np.random.default_rng(0).choice(100_000, 200, replace=False)
    rows = fitted_rows(100_000, [votes_on(100_000, asked)])
    assert set(asked) <= set(rows)
    assert len(rows) <= FITTED_ROWS + 200
    assert (np.diff(rows) > 0).all()


def test_many_teachers_with_few_votes_add_a_tenth_of_the_rows_at_most():
    rng = np.random.default_rng(0)
    others = [votes_on(100_000, rng.choice(100_000, 300, replace=False)) for _ in range(40)]
    assert len(fitted_rows(100_000, others)) <= FITTED_ROWS + MORE_ROWS
