import numpy as np
import pytest

from clozify.config.recipe import Words
from clozify.errors import TaskError
from clozify.methods.verbalizer_search import (
    WordScores,
    distribution,
    interpolation,
    logsumexp_of_other_labels,
    mean_probabilities,
    score_words,
    search_verbalizer,
    split_rows,
)

# one pattern, a row of label 0 and a row of label 1, three candidates: exp M(t)
EXP = np.array([[[1, 2, 3], [3, 1, 1]]])
SCORES = np.log(EXP).astype(np.float32)
LABELS = np.array([0, 1], dtype=np.int16)


def uniform(labels, candidates):
    return np.full((labels, candidates), 1 / candidates)


def test_s_is_the_paper_s_on_numbers_worked_out_by_hand():
    """With the label's own old word in the denominator, words would still get a ranking, but another one."""
    result = score_words(SCORES, LABELS, np.array([[0, 1]]))  # v(0) is the first candidate, v(1) the second
    # beside v(1), whose exp M is 2 in the first row and 1 in the second
    of_first = [1 / 3 - 3 / 4, 2 / 4 - 1 / 2, 3 / 5 - 1 / 2]
    # beside v(0), whose exp M is 3 in the second row, which is this label's own, and 1 in the first
    of_second = [3 / 6 - 1 / 2, 1 / 4 - 2 / 3, 1 / 4 - 3 / 4]
    assert np.allclose(result, [of_first, of_second], atol=1e-6)


def test_the_words_of_all_other_labels_stand_in_the_denominator():
    scores = np.log([[[1, 2, 3], [1, 1, 1], [4, 1, 2]]]).astype(np.float32)
    result = score_words(scores, np.array([0, 1, 2], dtype=np.int16), np.array([[0, 1, 2]]))
    others = np.array([2 + 3, 1 + 1, 1 + 2])  # of label 0, in each row
    q = [[1 / 6, 2 / 7, 3 / 8], [1 / 3, 1 / 3, 1 / 3], [4 / 7, 1 / 4, 2 / 5]]
    assert np.allclose(np.exp(scores[0]) / (np.exp(scores[0]) + others[:, None]), q, atol=1e-6)
    assert np.allclose(result[0], np.array(q[0]) - (np.array(q[1]) + q[2]) / 2, atol=1e-6)


def test_patterns_and_verbalizers_count_alike():
    """The score of appendix E is a mean over n patterns and k verbalizers; a sum would change what epsilon means."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 6, 9)).astype(np.float32)
    labels = np.array([0, 1, 2, 0, 0, 1], dtype=np.int16)
    drawn = rng.integers(0, 9, size=(4, 3))
    single = [score_words(scores[[p]], labels, drawn[[j]]) for p in range(3) for j in range(4)]
    assert np.allclose(score_words(scores, labels, drawn), np.mean(single, axis=0), atol=1e-6)


def test_rho_is_the_paper_s_on_numbers_worked_out_by_hand():
    assert np.allclose(distribution(np.array([[0.3, -0.2, 0.1]]), 0.1), [[0.6, 0.2, 0.2]])
    assert np.allclose(distribution(np.array([[0.3, -0.2, 0.1]]), 0.0), [[0.75, 0, 0.25]])


def test_without_epsilon_a_label_that_no_word_fits_draws_from_all():
    """0 / 0 would make every later number NaN."""
    assert np.allclose(distribution(np.array([[-0.3, -0.2], [0.1, 0.0]]), 0.0), [[0.5, 0.5], [1, 0]])


def curve(at, others):
    """The mean probabilities of all candidates, (candidates, labels), as the search reads them off its curves."""
    knots, weights, columns = interpolation(at)
    return knots, (weights[..., None] * mean_probabilities(knots, others)[columns]).sum(axis=1)


def test_many_candidates_are_read_off_the_curve_as_exactly_as_worked_out_one_by_one():
    rng = np.random.default_rng(1)
    at = rng.normal(-3, 5, size=4000)
    others = logsumexp_of_other_labels(at[rng.integers(0, 4000, size=(50, 3))])
    knots, means = curve(at, others)
    assert len(knots) < 1000
    exact = (1 / (1 + np.exp(others - at[:, None, None]))).mean(axis=1)
    assert np.abs(means - exact).max() < 1e-6


@pytest.mark.filterwarnings("error")
def test_scores_far_apart_are_certain_and_not_broken():
    """exp of a raw score overflows float32 from 89 on, which would make NaN of the words that fit best."""
    at = np.array([-300.0, 0, 300])
    others = logsumexp_of_other_labels(np.array([[-300.0, 0], [300, 0]]))
    assert np.allclose(others, [[0, -300], [0, 300]])
    assert np.allclose(curve(at, others)[1][:, 1], [0.25, 0.5, 0.75])


def test_all_labels_at_once_are_scored_as_one_by_one_and_naively():
    rng = np.random.default_rng(4)
    scores = rng.normal(0, 3, size=(2, 11, 40)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0], dtype=np.int16)
    drawn = rng.integers(0, 40, size=(6, 6))  # the last label has no rows
    expected = np.zeros((6, 40))
    for label in range(5):
        for word in range(40):
            q = np.empty((2, 11, 6))
            for draw in range(6):
                others = [drawn[draw, other] for other in range(6) if other != label]
                weights = np.exp(scores.astype(np.float64))
                q[..., draw] = weights[..., word] / (weights[..., word] + weights[..., others].sum(axis=-1))
            means = q.mean(axis=(0, 2))
            expected[label, word] = means[labels == label].mean() - means[labels != label].mean()
    assert np.allclose(score_words(scores, labels, drawn), expected, atol=1e-6)


def test_the_halves_of_the_rows_share_every_label():
    labels = np.array([3, 3, 1, 3, 1, 0], dtype=np.int16)
    assert split_rows(labels).tolist() == [0, 1, 0, 0, 1, 0]


def test_a_mean_over_no_rows_counts_as_nothing():
    """A label without rows, or all rows of one label: NaN would spread to every label by the next draw."""
    result = score_words(SCORES, np.array([0, 0], dtype=np.int16), np.array([[0, 1]]))
    assert np.allclose(result[0], [(1 / 3 + 3 / 4) / 2, 1 / 2, (3 / 5 + 1 / 2) / 2])
    assert not result[1].any()


def test_a_label_without_rows_keeps_the_words_that_it_started_with():
    start = np.array([[1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]])
    result = search_verbalizer(SCORES, LABELS, start, Words(k=5), 0)
    assert np.array_equal(result.rho[2], [0, 1, 0])
    assert np.allclose(result.rho.sum(axis=1), 1)


def test_the_first_draw_is_from_the_words_that_a_label_starts_with():
    """Seeds that are only put beside the result would not steer the search."""
    start = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    result = search_verbalizer(SCORES, LABELS, start, Words(k=7, i_max=1), 0)
    assert np.allclose(result.scores, score_words(SCORES, LABELS, np.array([[0, 1]])), atol=1e-6)


def test_the_word_that_only_a_label_s_rows_call_for_is_found():
    rng = np.random.default_rng(2)
    labels = np.arange(30, dtype=np.int16) % 3
    scores = rng.normal(size=(2, 30, 200)).astype(np.float32)
    for label, word in enumerate((17, 5, 150)):
        scores[:, labels == label, word] += 4
    result = search_verbalizer(scores, labels, uniform(3, 200), Words(k=40), 0)
    assert [int(result.order(label)[0]) for label in range(3)] == [17, 5, 150]


def test_a_seed_repeats_the_search_and_another_one_draws_anew():
    scores = np.random.default_rng(3).normal(size=(2, 6, 50)).astype(np.float32)
    labels = np.arange(6, dtype=np.int16) % 2
    first, again, other = (
        search_verbalizer(scores, labels, uniform(2, 50), Words(k=9), seed).scores for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def suitability(*scores, epsilon=0.001):
    return WordScores(np.array(scores), distribution(np.array(scores), epsilon))


def test_equally_good_words_stay_in_the_order_of_their_frequency():
    result = suitability([0.2, 0.3, 0.2, 0.3, -0.5, -0.4])
    assert result.order(0).tolist() == [1, 3, 0, 2, 5, 4]


def test_a_label_gets_m_words_that_tell_it_from_the_others_and_one_at_least():
    """Below epsilon all words are equally likely: taking ten anyway would fill a verbalizer with noise."""
    result = suitability([0.5, 0.4, 0.3, -0.1], [-0.4, -0.3, 0.2, -0.1], [-0.4, -0.3, -0.2, -0.1])
    assert result.choose(Words(m=2), {}) == [[0, 1], [2], [3]]


def test_given_words_come_first_and_are_found_for_no_other_label():
    result = suitability([0.5, 0.4, 0.3, 0.2], [0.1, 0.9, 0.2, 0.3])
    assert result.choose(Words(m=2), {0: [3, 3]}) == [[3, 0], [1, 2]]
    assert result.choose(Words(m=1), {0: [3, 2]}) == [[3, 2], [1]]


def test_no_two_labels_end_with_exactly_the_same_words():
    """They could never be told apart, and the task file would be refused."""
    result = suitability([0.5, 0.4, 0.3], [0.6, 0.2, 0.1], [0.3, 0.2, 0.1])
    assert result.choose(Words(m=1), {}) == [[1], [0], [2]]
    assert result.choose(Words(m=2), {}) == [[0, 2], [0, 1], [0]]
    assert result.choose(Words(m=3), {}) == [[0, 1], [0, 1, 2], [0, 2]]
    with pytest.raises(TaskError, match="too few words"):
        suitability([0.5], [0.4]).choose(Words(m=1), {})
