"""Votes of different teachers combined: patterns, rules, classifiers, LLMs (not in the paper; docs/teachers.md).

Patterns alone are combined as in the paper (`methods/ensemble.py`). With other teachers, a model's patterns are one
teacher with the paper's scores s_M, and every teacher's scores become log-probabilities that say as much as it knows:

1. s(l | x) = sum_t w_t log softmax((s_t + o_t) / tau_t)(l) over the teachers that vote on x. tau_t is the temperature
   for which the mean probability of the labels that t votes for is its accuracy a_t. w_t = rho_t b_t with
   b = (|L| a - 1) / (|L| - 1), which is 0 for a teacher that guesses and 1 if all is right.
2. a_t maximises the likelihood of t's votes (the model of Dawid and Skene, 1979, with one parameter a teacher: errors
   fall on all other labels alike). If z is the probability of the label that t votes for in the opinion of the others,
   without copies of t and with w = rho, the vote has the likelihood a z + (1 - a) (1 - z) / (|L| - 1). The prior is
   0.85 and counts as twenty votes. All a_t are fitted again until nothing changes.
3. Patterns of a model that agree beyond chance with kappa (Cohen, 1960; the mean over pairs of patterns) have the prior
   b = sqrt(0.6 kappa), since some of their errors are shared, and it counts as one more vote for each row.
4. On T, c_t of n_t votes, with the offsets of step 5, are right: a_t becomes (c_t + 10 a_t) / (n_t + 10).
5. o_t corrects for labels that a teacher with scores prefers in any row: first log(1 / |L|) less the log of its mean
   probabilities, then log pi less the same, where pi is the mean of softmax(s) from the first, over the rows on which
   it votes. It is multiplied with min(1, 4 times the sum of w_u c_u over the others, divided by w_t c_t), with the
   fraction c of rows that have a vote.
6. Teachers that repeat each other agree more than their accuracies explain. With M_tu = (|L| A_tu - 1) / (|L| - 1) for
   the fraction A_tu of common rows on which they agree, r_tu = (M_tu - b_t b_u) / (1 - b_t b_u), at least 0; copies
   have 1. The share rho_t is 1, and less for a teacher that repeats others: copies together have 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from clozify.methods.calibration import min_rows
from clozify.methods.ensemble import Ensemble, LazyScores
from clozify.methods.votes import Offsets, OnLabeled, Votes, coverage, hard_votes, has_votes

PRIOR_ACCURACY = 0.85  # of a teacher about which nothing is known
PRIOR_VOTES = 20  # m: the votes that the prior counts as
SMOOTHING = 10  # the votes on T that the estimate from unlabelled rows counts as
HIGHEST_ACCURACY = 0.97  # no teacher is believed more than that
RANGE = float(np.log(1e4))  # a label is at most that much less likely than the best one, before scaling
TEMPERATURES = (1e-2, 1e3)
INFORMATIVE = 0.6  # of the agreement of two patterns of a model
ENOUGH = 4  # o_t is whole where the others know a quarter of what t knows
FEWEST_COMMON_ROWS = 10  # on which two teachers vote, to compare them
ITERATIONS, TOLERANCE = 50, 1e-3
SMALLEST_COPY = 0.01  # below that, a teacher is no copy
COMBINED_TEMPERATURE = 1.0  # of soft labels: s is made of log-probabilities


@dataclass(frozen=True)
class TeacherWeight:
    """What a teacher's votes count for."""

    accuracy: float  # a: estimated, on the rows where it votes
    temperature: float  # tau: its scores are divided by it
    weight: float  # w = rho b
    coverage: float  # the fraction of rows on which it votes
    offsets: tuple[float, ...] = ()  # o: added to its scores, one a label; empty for none


def log_probabilities(scores: NDArray[np.floating[Any]], temperature: float = 1.0) -> NDArray[np.float64]:
    """log softmax(s / tau) of a teacher's scores, (rows, labels); zeros in rows on which it abstains (NaN)."""
    scores = np.asarray(scores, dtype=np.float64)
    voted = has_votes(scores)
    result = np.zeros_like(scores)
    if voted.any():
        best = scores[voted].max(axis=-1, keepdims=True)
        result[voted] = log_softmax(np.maximum(scores[voted], best - RANGE) / temperature, axis=-1)
    return result


def fit_weights(teachers: Sequence[Votes]) -> list[TeacherWeight]:
    """The weight of each teacher, from the votes of all on the same rows and on T."""
    labels = teachers[0].scores.shape[1]
    equal = [label_offsets(teacher, np.full(labels, 1 / labels)) for teacher in teachers]
    calibrated = [teacher.with_offsets(offsets) for teacher, offsets in zip(teachers, equal, strict=True)]
    weights = _fit(calibrated)
    if not any(equal):
        return weights
    combined = softmax(combine_votes([teacher.scores for teacher in calibrated], weights), axis=-1)  # (rows, labels)
    knowledge = np.array([weight.weight * weight.coverage for weight in weights])
    final = []
    for teacher, own, of_equal in zip(teachers, knowledge, equal, strict=True):
        offsets = label_offsets(teacher, combined[has_votes(teacher.scores)].mean(axis=0)) if of_equal else ()
        factor = min(1.0, ENOUGH * (knowledge.sum() - own) / max(own, 1e-9))
        final.append(tuple(tuple(factor * offset for offset in of_voter) for of_voter in offsets))
    calibrated = [teacher.with_offsets(offsets) for teacher, offsets in zip(teachers, final, strict=True)]
    fitted = _fit(calibrated)
    return [
        replace(weight, offsets=offsets[0] if offsets else ()) for weight, offsets in zip(fitted, final, strict=True)
    ]


def label_offsets(teacher: Votes, shares: NDArray[np.float64]) -> Offsets:
    """o of the teacher and of its voters, with which the labels' mean probabilities are nearer to `shares`, (labels,).

    There are none for plain votes and for too few rows.
    """
    if len(score_gaps(teacher.scores)) < min_rows(len(shares)):
        return ()
    return tuple(
        tuple(np.log(shares) - np.log(np.exp(log_probabilities(scores[has_votes(scores)])).mean(axis=0)))
        for scores in (teacher.scores, *teacher.voters)
    )


def _fit(teachers: Sequence[Votes]) -> list[TeacherWeight]:
    """The weights of calibrated teachers."""
    agreement, gaps = Agreement.of(teachers), [score_gaps(teacher.scores) for teacher in teachers]
    labels, accuracies = agreement.labels, fit_accuracies(teachers, agreement, gaps)
    weights = agreement.shares(accuracies) * _skill(accuracies, labels)
    return [
        TeacherWeight(
            accuracy=float(accuracies[index]),
            temperature=fit_temperature(gaps[index], float(accuracies[index])),
            weight=float(weights[index]),
            coverage=coverage(teacher.scores) if teacher.coverage is None else teacher.coverage,
        )
        for index, teacher in enumerate(teachers)
    ]


def fit_accuracies(
    teachers: Sequence[Votes], agreement: Agreement, gaps: Sequence[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """a of each teacher, (teachers,): steps 2 to 4 until nothing changes."""
    labels, on_labeled = agreement.labels, [_on_labeled(teacher) for teacher in teachers]
    priors = [_prior(teacher) for teacher in teachers]
    accuracies = _with_labeled([prior.accuracy for prior in priors], on_labeled, labels)
    for _ in range(ITERATIONS):
        temperatures = [fit_temperature(of, float(a)) for of, a in zip(gaps, accuracies, strict=True)]
        z = _others_opinions(teachers, agreement, accuracies, temperatures)
        fitted = [fit_accuracy(of, prior, labels) for of, prior in zip(z, priors, strict=True)]
        change = _with_labeled(fitted, on_labeled, labels) - accuracies
        accuracies = accuracies + change / 2  # half of it: two teachers that judge each other would take turns
        if np.abs(change).max() < TOLERANCE:
            break
    return accuracies


@dataclass(frozen=True)
class Prior:
    """What is believed of a teacher's accuracy before others judge its votes."""

    accuracy: float = PRIOR_ACCURACY
    votes: float = PRIOR_VOTES  # that it counts as


def _prior(teacher: Votes) -> Prior:
    """The prior of a teacher: that of patterns from how they agree, as much as their votes on all rows together."""
    if not teacher.voters:
        return Prior()
    votes = [hard_votes(scores) for scores in teacher.voters]
    labels, counted = teacher.scores.shape[1], PRIOR_VOTES + float(has_votes(teacher.scores).sum())
    kappas = [kappa(one, other, labels) for one, other in itertools.combinations(votes, 2)]
    if not kappas or not has_votes(teacher.scores).any():
        return Prior(votes=counted)
    return Prior(float(_accuracy(np.sqrt(INFORMATIVE * max(0.0, float(np.mean(kappas)))), labels)), counted)


def kappa(one: NDArray[np.int64], other: NDArray[np.int64], labels: int) -> float:
    """Cohen's kappa of two voters, the agreement beyond that of their labels' frequencies; 0 for constant votes."""
    common = (one >= 0) & (other >= 0)
    if not common.any():
        return 0.0
    one, other = one[common], other[common]
    expected = float(np.bincount(one, minlength=labels) @ np.bincount(other, minlength=labels)) / len(one) ** 2
    return 0.0 if expected == 1 else (float((one == other).mean()) - expected) / (1 - expected)


def _on_labeled(teacher: Votes) -> OnLabeled:
    """The votes on T; of several voters, their mean."""
    each = teacher.on_labeled
    return OnLabeled(float(np.mean([on.votes for on in each])), float(np.mean([on.correct for on in each])))


def _with_labeled(accuracies: Sequence[float], on_labeled: Sequence[OnLabeled], labels: int) -> NDArray[np.float64]:
    """(c_t + 10 a_t) / (n_t + 10), within the limits of an accuracy: (teachers,)."""
    smoothed = [
        (t.correct + SMOOTHING * a) / (t.votes + SMOOTHING) for t, a in zip(on_labeled, accuracies, strict=True)
    ]
    return np.asarray(np.clip(smoothed, 1 / labels, HIGHEST_ACCURACY))


def fit_accuracy(z: NDArray[np.float64], prior: Prior, labels: int) -> float:
    """a: the most likely accuracy of a teacher whose votes have the probabilities `z` in others' opinion, (votes,).

    It maximises sum log(a z + (1 - a) (1 - z) / (|L| - 1)) + m (a_0 log a + (1 - a_0) log(1 - a)), which is concave.
    """
    if_wrong = (1 - z) / (labels - 1)  # the probability of such a vote if it errs

    def slope(a: float) -> float:
        of_prior = prior.votes * (prior.accuracy / a - (1 - prior.accuracy) / (1 - a))
        return of_prior + float(((z - if_wrong) / (a * z + (1 - a) * if_wrong)).sum())

    lowest, highest = 1 / labels, HIGHEST_ACCURACY
    if slope(lowest) <= 0:
        return lowest
    return highest if slope(highest) >= 0 else float(brentq(slope, lowest, highest, xtol=1e-4))


def _others_opinions(
    teachers: Sequence[Votes],
    agreement: Agreement,
    accuracies: NDArray[np.float64],
    temperatures: Sequence[float],
) -> list[NDArray[np.float64]]:
    """z: for each teacher the probabilities of its votes in the opinion of the others without its copies, (votes,)."""
    votes, copies, shares = agreement.votes, agreement.copies(accuracies), agreement.shares(accuracies)
    rows = [np.flatnonzero(of_teacher >= 0) for of_teacher in votes]
    parts = [  # (votes, labels) each
        share * log_probabilities(teacher.scores[voted], temperature)
        for teacher, share, temperature, voted in zip(teachers, shares, temperatures, rows, strict=True)
    ]
    total = np.zeros((votes.shape[1], agreement.labels))
    for voted, part in zip(rows, parts, strict=True):
        total[voted] += part
    opinions = []
    for index, voted in enumerate(rows):
        others = total[voted] - parts[index]
        for copy in np.flatnonzero(copies[index] > SMALLEST_COPY):
            of_copy = np.zeros_like(total)
            of_copy[rows[copy]] = parts[copy]
            others -= copies[index, copy] * of_copy[voted]
        opinions.append(softmax(others, axis=-1)[np.arange(len(others)), votes[index, voted]])
    return opinions


def _skill(accuracies: NDArray[np.float64], labels: int) -> NDArray[np.float64]:
    """b = (|L| a - 1) / (|L| - 1), at least 0: 0 for a guess, 1 if all is right."""
    return np.asarray(np.clip((labels * accuracies - 1) / (labels - 1), 0.0, 1.0))


def _accuracy(skill: float, labels: int) -> float:
    return (skill * (labels - 1) + 1) / labels


@dataclass(frozen=True)
class Agreement:
    """How every two teachers agree; what is compared is (teachers, teachers), 0 for teachers with few common rows."""

    votes: NDArray[np.int64]  # (teachers, rows)
    labels: int
    beyond_guessing: NDArray[np.float64]  # M
    common: NDArray[np.float64]  # rows on which both vote

    @classmethod
    def of(cls, teachers: Sequence[Votes]) -> Agreement:
        """The agreement of teachers."""
        return cls.of_votes(np.stack([hard_votes(t.scores) for t in teachers]), teachers[0].scores.shape[1])

    @classmethod
    def of_votes(cls, votes: NDArray[np.int64], labels: int) -> Agreement:
        """The agreement of votes, (teachers, rows)."""
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
        return cls(votes, labels, agreeing, counts)

    def redundancy(self, accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
        """r: how far two teachers agree beyond what their accuracies explain, less one standard error, 0 to 1."""
        labels, skills = self.labels, _skill(accuracies, self.labels)
        explained = np.minimum(np.outer(skills, skills), 0.99)
        fractions = (self.beyond_guessing * (labels - 1) + 1) / labels
        smoothed = (fractions * self.common + 1) / (self.common + 2)
        error = labels / (labels - 1) * np.sqrt(smoothed * (1 - smoothed) / np.maximum(self.common, 1))
        repeats = np.clip((self.beyond_guessing - error - explained) / (1 - explained), 0.0, 1.0)
        return np.where(self.common > 0, repeats, 0.0)

    def copies(self, accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far two teachers are copies: near 1 only if they vote alike on the same rows, else near 0."""
        voted = (self.votes >= 0).sum(axis=1)
        either = np.maximum(1, voted[:, None] + voted - self.common)
        return np.asarray(self.redundancy(accuracies) ** 4 * self.common / either)

    def shares(self, accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
        """rho: 1, less for a teacher that repeats others; copies together have 1: (teachers,)."""
        repeats, copies = self.redundancy(accuracies), self.copies(accuracies)
        copy_counts = 1 + copies.sum(axis=1)
        common = self.common / np.maximum(1, (self.votes >= 0).sum(axis=1))[:, None]  # of a teacher's votes
        repeated = common * repeats * (1 - copies) / copy_counts[None, :]
        return np.asarray(1 / (copy_counts * (1 + repeated.sum(axis=1))))


def score_gaps(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """How far each label's score is below the best one, ascending, of the rows with votes: (votes, labels).

    One row stands for all where they are alike, as those of plain votes are.
    """
    voted = np.asarray(scores, dtype=np.float64)[has_votes(scores)]
    gaps = np.sort(np.minimum(voted.max(axis=-1, keepdims=True) - voted, RANGE), axis=-1)
    return gaps[:1] if len(gaps) and (gaps == gaps[0]).all() else gaps


def fit_temperature(gaps: NDArray[np.float64], accuracy: float) -> float:
    """The temperature at which the mean probability of a teacher's own labels is its accuracy."""
    if not len(gaps):
        return 1.0

    def surplus(log_temperature: float) -> float:
        return float((1 / np.exp(-gaps / np.exp(log_temperature)).sum(axis=-1)).mean()) - accuracy

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
        calibrated = of_teacher + np.asarray(weight.offsets) if weight.offsets else of_teacher
        total += weight.weight * log_probabilities(calibrated, weight.temperature)
    return total
