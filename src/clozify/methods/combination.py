"""Votes of different teachers combined: patterns, rules, classifiers, LLMs (not in the paper; docs/teachers.md).

Patterns alone are combined as in the paper (`methods/ensemble.py`). With other teachers, a model's patterns are one
teacher with the paper's scores s_M, and every teacher's scores become log-probabilities that say as much as it knows:

1. The accuracy a_t of each teacher on the rows where it votes, from how teachers agree. If errors are independent and
   fall on all other labels alike (the model of Dawid and Skene, 1979, with one parameter a teacher), two teachers agree
   on A_tu = a_t a_u + (1 - a_t) (1 - a_u) / (|L| - 1) of the rows where both vote. With b = (|L| a - 1) / (|L| - 1),
   which is 0 for a teacher that guesses, and M_tu = (|L| A_tu - 1) / (|L| - 1) that is M_tu = b_t b_u, which is fitted
   by least squares over all pairs of teachers.
2. Teachers that repeat each other agree more: r_tu = (M_tu - b_t b_u) / (1 - b_t b_u), at least 0; copies have 1. In
   the fit of b a pair of teachers counts 1 - r_tu times, and copies judge others as one. Patterns of a model share
   errors: for two of them M = b_t b_u / 0.4.
3. On T, c_t of n_t votes are right: a_t becomes (c_t + m a_t) / (n_t + m), with m = 10.
4. A temperature tau_t for which the mean probability of the labels that it votes for is a_t. A teacher that guesses has
   a_t = 1 / |L|, so all its probabilities are alike.
5. s(l | x) = sum_t w_t log softmax(s_t / tau_t)(l) over the teachers that vote on x, w_t = rho_t b_t. The share rho_t
   is 1, and less for a teacher that repeats others: copies together have 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from clozify.methods.ensemble import Ensemble, LazyScores

PRIOR_ACCURACY = 0.8  # of a teacher about which nothing is known
PRIOR_ROWS = 50  # the votes that the prior counts as
SMOOTHING = 10  # m: the votes on T that the estimate from agreement counts as
HIGHEST_ACCURACY = 0.97  # no teacher is believed more than that
RANGE = float(np.log(1e4))  # a label is at most that much less likely than the best one, before scaling
TEMPERATURES = (1e-2, 1e3)
INFORMATIVE = 0.4  # of the agreement of two patterns of a model; 0.34 and 0.49 were seen before training
FEWEST_COMMON_ROWS = 10  # on which two teachers vote, to compare them
ITERATIONS = 100
FITTED_ROWS = 5_000  # unlabelled rows, evenly spaced, that weights are fitted on


@dataclass(frozen=True)
class OnLabeled:
    """A teacher's votes on T: how many, and how many are right."""

    votes: float = 0.0
    correct: float = 0.0

    def at_most(self, votes: float) -> OnLabeled:
        """The same accuracy on at most so many votes."""
        scale = min(1.0, votes / self.votes) if self.votes else 0.0
        return OnLabeled(scale * self.votes, scale * self.correct)


@dataclass(frozen=True)
class TeacherWeight:
    """What a teacher's votes count for."""

    accuracy: float  # a: estimated, on the rows where it votes
    temperature: float  # tau: its scores are divided by it
    weight: float  # w = rho b
    coverage: float  # the fraction of rows on which it votes


def log_probabilities(scores: NDArray[np.floating[Any]], temperature: float = 1.0) -> NDArray[np.float64]:
    """log softmax(s / tau) of a teacher's scores, (rows, labels); zeros in rows on which it abstains (NaN)."""
    scores = np.asarray(scores, dtype=np.float64)
    voted = has_votes(scores)
    result = np.zeros_like(scores)
    if voted.any():
        best = scores[voted].max(axis=-1, keepdims=True)
        result[voted] = log_softmax(np.maximum(scores[voted], best - RANGE) / temperature, axis=-1)
    return result


def has_votes(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Whether a teacher votes on each row: (rows,)."""
    voted: NDArray[np.bool_] = ~np.isnan(scores[:, 0])
    return voted


def hard_votes(scores: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """The label that a teacher votes for in each row, -1 where it abstains: (rows,)."""
    voted, labels = has_votes(scores), np.full(len(scores), -1, dtype=np.int64)
    labels[voted] = np.asarray(scores)[voted].argmax(axis=-1)
    return labels


@dataclass(frozen=True)
class Votes:
    """A teacher's scores of some rows, and its votes on T; a model's patterns are one teacher with several voters."""

    scores: NDArray[Any]  # (rows, labels), NaN in rows on which it abstains
    on_labeled: tuple[OnLabeled, ...]  # one per voter
    voters: tuple[NDArray[Any], ...] = ()  # the patterns' own scores, (rows, labels) each; empty for a single voter


def fit_weights(teachers: Sequence[Votes]) -> list[TeacherWeight]:
    """The weight of each teacher, from the votes of all on the same rows and on T."""
    labels = teachers[0].scores.shape[1]
    voters = [(index, scores) for index, t in enumerate(teachers) for scores in (t.voters or (t.scores,))]
    teacher_of = np.array([index for index, _ in voters])
    on_labeled = [on for t in teachers for on in t.on_labeled]
    votes = np.stack([hard_votes(scores) for _, scores in voters])  # (voters, rows)
    of_voters = fit_accuracies(votes, labels, on_labeled, teacher_of)
    accuracies = np.array([of_voters[teacher_of == index].mean() for index in range(len(teachers))])
    shares = fit_shares(np.stack([hard_votes(teacher.scores) for teacher in teachers]), accuracies, labels)
    return [
        TeacherWeight(
            accuracy=float(accuracy),
            temperature=fit_temperature(teacher.scores, float(accuracy)),
            weight=float(weight),
            coverage=float(has_votes(teacher.scores).mean()) if len(teacher.scores) else 0.0,
        )
        for teacher, accuracy, weight in zip(teachers, accuracies, shares * _skill(accuracies, labels), strict=True)
    ]


def fit_accuracies(
    votes: NDArray[np.int64],
    labels: int,
    on_labeled: Sequence[OnLabeled],
    teacher_of: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """The accuracy of each voter where it votes, (voters,), from agreement and T; `votes` are (voters, rows).

    `teacher_of` says which voters are patterns of the same model: they share errors, so that some of their agreement
    says nothing of their accuracy.
    """
    prior = np.array([(t.correct + PRIOR_ROWS * PRIOR_ACCURACY) / (t.votes + PRIOR_ROWS) for t in on_labeled])
    agreeing, counts = agreement(votes, labels)
    factors = np.ones_like(agreeing)
    if teacher_of is not None:
        factors[teacher_of[:, None] == teacher_of[None, :]] = 1 / INFORMATIVE
    start = _skill(prior, labels)
    skills = start.copy()  # b
    for _ in range(ITERATIONS):
        repeats = redundancy(agreeing, counts, skills, labels, factors)
        copies = 1 + _copies(repeats, votes, counts).sum(axis=1)
        pair_weights = counts * (1 - repeats) / copies[None, :]  # copies of a voter judge the others as one
        before = skills.copy()
        for voter in range(len(skills)):
            expected = factors[voter] * skills  # M = b x expected
            numerator = pair_weights[voter] @ (agreeing[voter] * expected) + PRIOR_ROWS * start[voter]
            skills[voter] = np.clip(numerator / (pair_weights[voter] @ expected**2 + PRIOR_ROWS), 0.0, 1.0)
        if np.abs(skills - before).max() < 1e-5:
            break
    fitted = _accuracy(skills, labels)
    smoothed = [(t.correct + SMOOTHING * a) / (t.votes + SMOOTHING) for t, a in zip(on_labeled, fitted, strict=True)]
    return np.asarray(np.clip(smoothed, 1 / labels, HIGHEST_ACCURACY))


def _skill(accuracies: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    """b = (|L| a - 1) / (|L| - 1), at least 0: 0 for a guess, 1 if all is right."""
    return np.asarray(np.clip((labels * accuracies - 1) / (labels - 1), 0.0, 1.0))


def _accuracy(skills: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    return np.asarray((skills * (labels - 1) + 1) / labels)


def agreement(votes: NDArray[np.int64], labels: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """M, the agreement of every two voters beyond chance, and on how many rows both vote: (voters, voters) each.

    Both are 0 on the diagonal and for voters with few common rows.
    """
    agreeing, counts = np.zeros((len(votes), len(votes))), np.zeros((len(votes), len(votes)))
    only_label = [int(of[of >= 0][0]) if len(np.unique(of[of >= 0])) == 1 else None for of in votes]
    for one, other in itertools.combinations(range(len(votes)), 2):
        common = (votes[one] >= 0) & (votes[other] >= 0)
        if common.sum() >= FEWEST_COMMON_ROWS:
            either = common
            if only_label[one] is not None and only_label[one] == only_label[other]:
                either = (votes[one] >= 0) | (votes[other] >= 0)  # rules of one label agree wherever both vote
            fraction = float((votes[one, either] == votes[other, either]).mean())
            agreeing[one, other] = agreeing[other, one] = (labels * fraction - 1) / (labels - 1)
            counts[one, other] = counts[other, one] = common.sum()
    return agreeing, counts


def redundancy(
    agreeing: NDArray[np.float64],
    counts: NDArray[np.float64],
    skills: NDArray[np.float64],
    labels: int,
    factors: NDArray[np.float64] | float = 1.0,
) -> NDArray[np.float64]:
    """r: how far two voters agree beyond what b and `factors` explain, 0 to 1: (voters, voters)."""
    explained = np.minimum(factors * np.outer(skills, skills), 0.99)
    fractions = (agreeing * (labels - 1) + 1) / labels
    smoothed = (fractions * counts + 1) / (counts + 2)
    error = labels / (labels - 1) * np.sqrt(smoothed * (1 - smoothed) / np.maximum(counts, 1))  # one standard error
    repeats = np.clip((agreeing - error - explained) / (1 - explained), 0.0, 1.0)
    return np.where(counts > 0, repeats, 0.0)


def _copies(repeats: NDArray[np.float64], votes: NDArray[np.int64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far two voters are copies of each other: near 1 only if they vote alike on the same rows, else near 0."""
    voted = (votes >= 0).sum(axis=1)
    return np.asarray(repeats**4 * counts / np.maximum(1, voted[:, None] + voted - counts))


def fit_shares(votes: NDArray[np.int64], accuracies: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    """rho: 1, less for a teacher that repeats others; copies together have 1: (teachers,)."""
    agreeing, counts = agreement(votes, labels)
    repeats = redundancy(agreeing, counts, _skill(accuracies, labels), labels)
    copies = _copies(repeats, votes, counts)
    copy_counts = 1 + copies.sum(axis=1)
    common = counts / np.maximum(1, (votes >= 0).sum(axis=1))[:, None]  # of a teacher's votes, with each other one's
    repeated = common * repeats * (1 - copies) / copy_counts[None, :]
    return np.asarray(1 / (copy_counts * (1 + repeated.sum(axis=1))))


def fit_temperature(scores: NDArray[np.floating[Any]], accuracy: float) -> float:
    """The temperature at which the mean probability of a teacher's own labels is its accuracy."""
    voted = np.asarray(scores, dtype=np.float64)[has_votes(scores)]
    if not len(voted):
        return 1.0
    voted = np.maximum(voted, voted.max(axis=-1, keepdims=True) - RANGE)

    def surplus(log_temperature: float) -> float:
        return float(softmax(voted / np.exp(log_temperature), axis=-1).max(axis=-1).mean()) - accuracy

    low, high = np.log(TEMPERATURES)
    if surplus(low) <= 0:
        return TEMPERATURES[0]
    if surplus(high) >= 0:
        return TEMPERATURES[1]
    return float(np.exp(brentq(surplus, low, high, xtol=1e-4)))


class CombinedScores(LazyScores):
    """s of any rows; the scores of a model's patterns may be an `Ensemble`."""

    def __init__(
        self, scores: Sequence[NDArray[np.floating[Any]] | Ensemble], weights: Sequence[TeacherWeight]
    ) -> None:
        self.scores, self.weights = scores, weights

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float64]:
        """s(l | x) of these rows: (rows, labels)."""
        return combine_votes([of_teacher[rows] for of_teacher in self.scores], self.weights)


def combine_votes(scores: Sequence[NDArray[np.floating[Any]]], weights: Sequence[TeacherWeight]) -> NDArray[np.float64]:
    """s(l | x): the sum of the teachers' log-probabilities, each times its weight: (rows, labels)."""
    total = np.zeros(scores[0].shape, dtype=np.float64)
    for of_teacher, weight in zip(scores, weights, strict=True):
        total += weight.weight * log_probabilities(of_teacher, weight.temperature)
    return total
