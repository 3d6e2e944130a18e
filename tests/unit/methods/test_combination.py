"""Votes of several teachers combined, on made-up votes whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import cohen_kappa_score

from clozify.methods.combination import (
    HIGHEST_ACCURACY,
    PRIOR_ACCURACY,
    RANGE,
    Agreement,
    CombinedScores,
    Prior,
    TeacherWeight,
    combine_votes,
    fit_accuracy,
    fit_temperature,
    fit_weights,
    kappa,
    label_offsets,
    log_probabilities,
    score_gaps,
)
from clozify.methods.ensemble import Ensemble
from clozify.methods.votes import LabeledScores, OnLabeled, Votes, hard_votes

LABELS = 4
NOBODY = OnLabeled()


def noisy(truth, accuracy, seed, labels=LABELS):
    """Votes that are right with this probability, else any other label."""
    rng = np.random.default_rng(seed)
    wrong = (truth + rng.integers(1, labels, len(truth))) % labels
    return np.where(rng.random(len(truth)) < accuracy, truth, wrong)


def as_scores(votes, labels=LABELS):
    """Votes as scores: 0 for the label, -inf for the others, NaN without a vote."""
    scores = np.full((len(votes), labels), np.nan)
    voted = np.flatnonzero(votes >= 0)
    scores[voted] = -np.inf
    scores[voted, votes[voted]] = 0.0
    return scores


@pytest.fixture
def truth():
    return np.random.default_rng(0).integers(LABELS, size=4000)


def estimates(votes, on_labeled=None):
    """The estimated accuracies of teachers with these votes, (teachers, rows)."""
    on_labeled = on_labeled or [NOBODY] * len(votes)
    teachers = [Votes(as_scores(of_teacher), (on,)) for of_teacher, on in zip(votes, on_labeled, strict=True)]
    return [weight.accuracy for weight in fit_weights(teachers)]


def test_accuracies_of_independent_teachers_are_found_without_labels(truth):
    expected = [0.9, 0.75, 0.6, 0.5]
    votes = np.stack([noisy(truth, accuracy, seed) for seed, accuracy in enumerate(expected)])
    assert estimates(votes) == pytest.approx(expected, abs=0.06)


def test_a_teacher_that_guesses_has_the_accuracy_of_chance(truth):
    votes = np.stack([*(noisy(truth, 0.8, seed) for seed in range(3)), noisy(truth, 0.25, 9)])
    assert estimates(votes)[-1] == pytest.approx(0.25, abs=0.03)


def test_five_copies_of_a_guess_do_not_confirm_each_other(truth):
    guess = noisy(truth, 0.25, 9)
    votes = np.stack([*(noisy(truth, 0.8, seed) for seed in range(3)), *[guess] * 5])
    accuracies = estimates(votes)
    assert accuracies[:3] == pytest.approx([0.8] * 3, abs=0.06)
    assert accuracies[3:] == pytest.approx([0.25] * 5, abs=0.03)


def test_rows_on_which_a_teacher_abstains_do_not_count(truth):
    votes = np.stack([noisy(truth, 0.8, seed) for seed in range(4)])
    votes[3, 400:] = -1
    assert estimates(votes)[3] == pytest.approx(0.8, abs=0.07)


def test_a_teacher_that_votes_where_nobody_else_does_keeps_the_prior(truth):
    votes = np.stack([noisy(truth, 0.9, 1), noisy(truth, 0.3, 2)])
    votes[0, 2000:], votes[1, :2000] = -1, -1
    assert estimates(votes) == pytest.approx([PRIOR_ACCURACY] * 2, abs=1e-3)


def test_ten_labelled_rows_count_as_much_as_all_unlabelled_ones(truth):
    votes = np.stack([noisy(truth, 0.8, seed) for seed in range(3)])
    without = estimates(votes)
    half_right = estimates(votes, [OnLabeled(10, 5), NOBODY, NOBODY])
    assert half_right[0] == pytest.approx((without[0] + 0.5) / 2, abs=0.01)


def test_a_rule_is_as_good_as_it_is_where_the_patterns_miss_its_label(truth):
    rng = np.random.default_rng(3)
    patterns = [rng.normal(size=(4000, LABELS)) for _ in range(3)]
    for scores in patterns:
        scores[np.arange(4000), truth] += np.where(truth == 2, 0.8, 2.5)
    fires = np.where(truth == 2, rng.random(4000) < 0.3, rng.random(4000) < 0.01)
    rule = as_scores(np.where(fires, 2, -1))
    precision = (truth[fires] == 2).mean()
    teachers = [Votes(np.mean(patterns, axis=0), (NOBODY,) * 3, tuple(patterns)), Votes(rule, (NOBODY,))]
    assert (np.mean(patterns, axis=0)[fires].argmax(axis=1) == 2).mean() < 0.75
    assert fit_weights(teachers)[1].accuracy == pytest.approx(precision, abs=0.08)


def test_the_fitted_accuracy_is_the_most_likely_one():
    z = np.random.default_rng(0).dirichlet(np.ones(LABELS), size=200)[:, 0]
    prior, grid = Prior(0.7, 30), np.linspace(1 / LABELS, HIGHEST_ACCURACY, 1000)
    votes = np.log(grid[:, None] * z + (1 - grid[:, None]) * (1 - z) / (LABELS - 1)).sum(axis=1)
    likelihood = votes + 30 * (0.7 * np.log(grid) + 0.3 * np.log(1 - grid))
    assert fit_accuracy(z, prior, LABELS) == pytest.approx(grid[likelihood.argmax()], abs=1e-3)
    assert fit_accuracy(np.full(50, 1 / LABELS), prior, LABELS) == pytest.approx(0.7, abs=1e-3)
    assert fit_accuracy(np.zeros(500), prior, LABELS) == 1 / LABELS
    assert fit_accuracy(np.ones(500), prior, LABELS) == HIGHEST_ACCURACY


def test_kappa_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    one, other = rng.integers(LABELS, size=50), rng.integers(LABELS - 1, size=50)
    assert kappa(one, other, LABELS) == pytest.approx(cohen_kappa_score(one, other))
    constant = np.full(50, 1)
    assert kappa(constant, constant, LABELS) == 0
    assert kappa(np.where(one == 0, -1, one), np.where(one == 0, 2, one), LABELS) == pytest.approx(1)


def test_patterns_that_always_give_the_same_label_count_for_nothing(truth):
    constant = np.tile(np.array([3.0, 0, 0, 0]), (4000, 1))
    others = [as_scores(noisy(truth, 0.8, seed)) for seed in range(2)]
    teachers = [Votes(constant, (NOBODY,) * 3, (constant,) * 3), *(Votes(scores, (NOBODY,)) for scores in others)]
    weights = fit_weights(teachers)
    assert weights[0].accuracy == pytest.approx(1 / LABELS, abs=0.03)
    assert [weight.accuracy for weight in weights[1:]] == pytest.approx([0.8, 0.8], abs=0.06)


@pytest.mark.parametrize("voters", [1, 3])
@pytest.mark.parametrize("copies", [1, 5])
def test_patterns_are_believed_more_than_a_single_other_teacher_that_guesses(truth, voters, copies):
    rng = np.random.default_rng(2)
    patterns = [rng.normal(size=(4000, LABELS)) for _ in range(voters)]
    for scores in patterns:
        scores[np.arange(4000), truth] += 1.2
    ensemble, guess = np.mean(patterns, axis=0), as_scores(noisy(truth, 0.25, 9))
    teachers = [Votes(ensemble, (NOBODY,) * voters, tuple(patterns))] + [Votes(guess, (NOBODY,))] * copies
    combined = combine_votes([ensemble, *[guess] * copies], fit_weights(teachers))
    assert (combined.argmax(axis=1) == truth).mean() > (ensemble.argmax(axis=1) == truth).mean() - 0.005


def biased_patterns(truth, seed=5):
    """Three patterns that hardly ever choose label 2, and rules for all labels."""
    rng = np.random.default_rng(seed)
    patterns = [rng.normal(size=(len(truth), LABELS)) for _ in range(3)]
    for scores in patterns:
        scores[np.arange(len(truth)), truth] += 2
        scores[:, 2] -= 3
    rules = []
    for label in range(LABELS):
        fires = np.where(truth == label, rng.random(len(truth)) < 0.3, rng.random(len(truth)) < 0.02)
        rules.append(Votes(as_scores(np.where(fires, label, -1)), (NOBODY,)))
    return Votes(np.mean(patterns, axis=0), (NOBODY,) * 3, tuple(patterns)), rules


@pytest.mark.parametrize("frequencies", [(0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1)])
def test_patterns_with_a_bias_are_calibrated_beside_rules_whatever_the_labels_frequencies(frequencies):
    truth = np.random.default_rng(0).choice(LABELS, 4000, p=frequencies)
    patterns, rules = biased_patterns(truth)
    weights = fit_weights([patterns, *rules])
    scores = [teacher.scores for teacher in (patterns, *rules)]
    combined = combine_votes(scores, weights)
    without = combine_votes(scores, [replace(weight, offsets=()) for weight in weights])
    assert (combined.argmax(axis=1) == truth).mean() > (without.argmax(axis=1) == truth).mean() + 0.03
    assert not any(weight.offsets for weight in weights[1:])  # votes have no labels that they prefer


def test_offsets_give_labels_the_shares_that_a_teacher_lacks(truth):
    patterns, _ = biased_patterns(truth)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    own, *of_voters = label_offsets(patterns, shares)
    mean = softmax(patterns.scores, axis=1).mean(axis=0)
    assert own == pytest.approx(np.log(shares / mean), abs=1e-3)
    assert len(of_voters) == 3
    calibrated = patterns.with_offsets((own, *of_voters))
    assert calibrated.voters[1] == pytest.approx(patterns.voters[1] + np.array(of_voters[1]))
    assert label_offsets(Votes(patterns.scores[:5], (NOBODY,)), shares) == ()  # too few rows
    assert label_offsets(Votes(as_scores(truth), (NOBODY,)), shares) == ()  # votes


def test_a_teacher_that_is_asked_about_some_rows_is_calibrated_to_the_labels_of_these_rows():
    """An LLM that prefers a label, asked about rows of which most have another label than all rows."""
    rng = np.random.default_rng(3)
    truth = rng.choice(LABELS, 3000, p=[0.7, 0.1, 0.1, 0.1])
    patterns = [rng.normal(size=(3000, LABELS)) + 3 * np.eye(LABELS)[truth] for _ in range(3)]
    asked = np.flatnonzero(truth != 0)[:400]  # no row of the most frequent label
    llm = np.full((3000, LABELS), np.nan)
    llm[asked] = rng.normal(size=(400, LABELS)) + 3 * np.eye(LABELS)[truth[asked]]
    llm[asked, 1] += 2  # in any text
    teachers = [Votes(np.mean(patterns, axis=0), (NOBODY,) * 3, tuple(patterns)), Votes(llm, (NOBODY,))]
    offsets = np.array(fit_weights(teachers)[1].offsets)
    assert offsets[1] < min(offsets[2:]) - 0.3  # the preference is taken back
    corrected = (llm[asked] + offsets).argmax(axis=1)
    assert (corrected == truth[asked]).mean() > (llm[asked].argmax(axis=1) == truth[asked]).mean()
    assert (corrected == 0).mean() < 0.05  # and the label of the other rows is not put in its place


@pytest.mark.parametrize(("rows", "is_corrected"), [(9, False), (10, True)])
def test_a_preference_is_corrected_from_ten_rows_on(rows, is_corrected):
    rng = np.random.default_rng(4)
    truth = rng.integers(2, size=200)
    llm = np.full((200, 2), np.nan)
    llm[:rows] = np.log(softmax(rng.normal(size=(rows, 2)) + np.array([3, 0]), axis=1))
    rule = as_scores(np.where(rng.random(200) < 0.5, truth, -1), 2)
    weights = fit_weights([Votes(llm, (NOBODY,)), Votes(rule, (NOBODY,))])
    assert bool(weights[0].offsets) == is_corrected


def test_a_teacher_that_prefers_a_label_is_judged_on_labelled_rows_without_the_preference(truth):
    rng = np.random.default_rng(6)
    biased = 3 * np.eye(LABELS)[truth] + rng.normal(size=(len(truth), LABELS)) + np.array([4, 0, 0, 0])
    rules = [Votes(as_scores(noisy(truth, 0.8, seed)), (NOBODY,)) for seed in (7, 8)]
    labeled = LabeledScores(biased[:100], truth[:100])
    raw = OnLabeled.of(labeled.scores, labeled.truth)
    assert raw.correct == (biased[:100].argmax(axis=1) == truth[:100]).sum()
    judged = fit_weights([Votes(biased, (raw,), labeled=labeled), *rules])[0]
    as_voted = fit_weights([Votes(biased, (raw,)), *rules])[0]
    right = ((biased + np.array(judged.offsets)).argmax(axis=1) == truth).mean()
    assert abs(judged.accuracy - right) < abs(as_voted.accuracy - right)
    assert judged.accuracy > as_voted.accuracy + 0.1


def test_beside_a_guess_patterns_with_a_bias_keep_their_labels(truth):
    patterns, _ = biased_patterns(truth)
    guess = as_scores(noisy(truth, 0.25, 9))
    combined = combine_votes([patterns.scores, guess], fit_weights([patterns, Votes(guess, (NOBODY,))]))
    assert (combined.argmax(axis=1) == patterns.scores.argmax(axis=1)).mean() > 0.97


def test_copies_together_have_the_share_of_one_teacher(truth):
    one, two, three = (noisy(truth, 0.8, seed) for seed in range(3))
    alone = Agreement.of_votes(np.stack([one, two, three]), LABELS).shares(np.array([0.8] * 3))
    assert alone == pytest.approx([1.0] * 3, abs=0.05)
    copied = Agreement.of_votes(np.stack([one, two, *[three] * 5]), LABELS).shares(np.array([0.8] * 7))
    assert copied[2:].sum() == pytest.approx(1.0, abs=0.1)
    assert copied[:2] == pytest.approx([1.0] * 2, abs=0.1)


def test_rules_for_one_label_are_copies_only_where_they_vote_on_the_same_rows():
    rows, accuracies = np.arange(1000), np.array([0.9, 0.9])
    first, second = np.where(rows % 2, 1, -1), np.where(rows % 3 == 0, 1, -1)
    assert (Agreement.of_votes(np.stack([first, second]), LABELS).shares(accuracies) > 0.8).all()
    shares = Agreement.of_votes(np.stack([first, first]), LABELS).shares(accuracies)
    assert shares == pytest.approx([0.5, 0.5], abs=0.02)


def test_the_mean_probability_of_a_teachers_labels_is_its_accuracy(truth):
    rng = np.random.default_rng(1)
    soft = rng.normal(size=(500, LABELS)) * 5
    hard = as_scores(noisy(truth[:500], 0.7, 3))
    for scores in (soft, hard):
        probabilities = np.exp(log_probabilities(scores, fit_temperature(score_gaps(scores), 0.7)))
        assert probabilities.max(axis=1).mean() == pytest.approx(0.7, abs=1e-3)
    guess = fit_temperature(score_gaps(soft), 1 / LABELS)
    assert np.exp(log_probabilities(soft, guess)) == pytest.approx(np.full((500, LABELS), 1 / LABELS), abs=0.02)


def test_combined_scores_are_the_weighted_sum_of_log_probabilities():
    first, second = np.log([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]), np.log([[0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
    second[1] = np.nan
    weights = [TeacherWeight(0.8, 2.0, 0.9, 1.0, (0.5, 0.0, -1.0)), TeacherWeight(0.6, 1.0, 0.5, 0.5)]
    expected = 0.9 * np.log(softmax((first + np.array([0.5, 0, -1])) / 2, axis=1))
    expected[0] += 0.5 * second[0]
    assert combine_votes([first, second], weights) == pytest.approx(expected)
    chunks = CombinedScores([Ensemble([first], [1.0]), second], weights).chunks(1)
    assert np.concatenate([chunk for _, chunk in chunks]) == pytest.approx(expected)


def test_an_impossible_label_is_only_very_unlikely():
    assert log_probabilities(as_scores(np.array([1])))[0, 0] == pytest.approx(-RANGE, abs=1e-3)


@pytest.mark.parametrize("labeled", [0, 10])
@pytest.mark.parametrize("harm", ["a guess", "five copies of a guess", "five copies of a rule"])
def test_a_teacher_without_news_does_not_harm(truth, labeled, harm):
    rng = np.random.default_rng(2)
    patterns = [rng.normal(size=(4000, LABELS)) for _ in range(3)]
    for scores in patterns:
        scores[np.arange(4000), truth] += 1.2
    rules = []
    for label in range(LABELS):
        fires = np.where(truth == label, rng.random(4000) < 0.3, rng.random(4000) < 0.02)
        rules.append(as_scores(np.where(fires, label, -1)))
    guess = np.log(rng.dirichlet(np.ones(LABELS), size=4000))
    more = {"a guess": [guess], "five copies of a guess": [guess] * 5, "five copies of a rule": [rules[0]] * 4}[harm]

    def accuracy(others):
        ensemble = np.mean(patterns, axis=0)
        fitted, held_out = slice(labeled, 2000), slice(2000, None)
        teachers = [Votes(ensemble[fitted], (NOBODY,) * 3, tuple(scores[fitted] for scores in patterns))]
        for scores in others:
            votes = hard_votes(scores[:labeled])
            on_labeled = OnLabeled((votes >= 0).sum(), (votes == truth[:labeled]).sum())
            teachers.append(Votes(scores[fitted], (on_labeled,)))
        combined = combine_votes([ensemble[held_out], *(s[held_out] for s in others)], fit_weights(teachers))
        return (combined.argmax(axis=1) == truth[held_out]).mean()

    alone = (np.mean(patterns, axis=0)[2000:].argmax(axis=1) == truth[2000:]).mean()
    assert accuracy(rules) > alone + 0.005
    assert accuracy([*rules, *more]) > accuracy(rules) - 0.005
