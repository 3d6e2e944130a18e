"""Automatic verbalizer search: which words stand best for a label (appendix E).

In: the masked LM's raw score M(t) of every candidate word at the mask of every labelled row and pattern, and the rows'
labels. Out: s_l^k(t), how much likelier a word makes a label on the label's own rows than on the others, and
rho(t | l), the distribution that the words are chosen by. The language model is not needed here: only arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Words
from clozify.errors import TaskError

STEP = 0.125  # between the points where a curve is worked out; cubic pieces between them are exact to 1e-7


@dataclass(frozen=True)
class WordScores:
    """How well every candidate stands for every label, after the last round."""

    scores: NDArray[np.float64]  # (labels, candidates): s_l^k(t); 0 for a label without rows
    rho: NDArray[np.float64]  # (labels, candidates): rho_imax(t | l)

    def order(self, label: int) -> NDArray[np.int64]:
        """Candidates, the likeliest first; those that the least weight makes equal by score, then as they came."""
        return np.lexsort((-self.scores[label], -self.rho[label]))

    def choose(self, settings: Words, given: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Each label's given words, then the likeliest, m in all; no two labels end with exactly the same words.

        A word that is not above epsilon is there by chance alone, so it is left out unless the label would have none.
        A given word is not found for another label. Where two labels have the same words, the one whose best word is
        weaker takes its next one for its last, or one word less.
        """
        chosen: dict[int, list[int]] = {}
        taken = {place for places in given.values() for place in places}
        for label in sorted(range(len(self.rho)), key=lambda label: (label not in given, -self.scores[label].max())):
            own = list(dict.fromkeys(given.get(label, ())))
            order = [place for place in self.order(label).tolist() if place not in taken]
            good = [place for place in order if self.scores[label, place] > settings.epsilon]
            picked = good[: max(settings.m - len(own), 0)] or order[: not own]
            chosen[label] = _unlike(chosen.values(), own, picked, order)
        return [chosen[label] for label in range(len(self.rho))]


def _unlike(others: Iterable[list[int]], own: list[int], picked: list[int], order: list[int]) -> list[int]:
    """A label's words, those picked if possible (they lead the order), as no other label has them exactly."""
    taken = [set(words) for words in others]
    for count in range(len(picked), 0, -1):
        for last in order[count - 1 :]:
            words = own + picked[: count - 1] + [last]
            if set(words) not in taken:
                return words
    if own and set(own) not in taken:
        return own
    raise TaskError("There are too few words to choose from to tell every label from the others; allow more words.")


def search_verbalizer(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    start: NDArray[np.float64],
    settings: Words,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> WordScores:
    """Rounds of drawing k random verbalizers and weighing every candidate against them, all patterns jointly.

    `scores` is M(t), (patterns, rows, candidates); `labels` is (rows,); `start` is rho_0(t | l), (labels, candidates).
    A label without rows keeps its rho_0: nothing can be learned about its words. `advance` is told of each row.
    """
    rng = np.random.default_rng(seed)
    rho, known = start.copy(), np.unique(labels)
    for _ in range(settings.i_max):
        # v_1, ..., v_k: a word for each label, (k, labels)
        verbalizers = np.stack([rng.choice(len(of), size=settings.k, p=of) for of in rho], axis=1)
        found = weigh(scores, labels, verbalizers, advance)
        rho[known] = distribution(found[known], settings.epsilon)
    return WordScores(found, rho)


def distribution(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """rho(t | l) = max(s_l^k(t), epsilon) / Z for each label; uniform where that leaves no word any weight."""
    weights = np.maximum(scores, epsilon)
    weights[weights.sum(axis=-1) <= 0] = 1
    shares: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def weigh(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    verbalizers: NDArray[np.int64],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float64]:
    """s_l^k(t): the mean of s_l(t | (P, v)) over patterns P and drawn verbalizers v: (labels, candidates).

    s_l(t | p) is the mean of q_{p[l <- t]}(l | x) over the rows of l, less its mean over all other rows; a mean over no
    rows counts as 0. `verbalizers` is (k, labels), each a candidate's place.
    """
    patterns, rows, candidates = scores.shape
    count = np.bincount(labels, minlength=verbalizers.shape[1])  # (labels,): |T_l|
    found = np.zeros((len(count), candidates))
    for row in range(rows):
        for pattern in range(patterns):
            at = np.asarray(scores[pattern, row])  # (candidates,)
            others = log_sum_of_others(at[verbalizers])  # (k, labels)
            curve = Curve(at)
            for label in np.flatnonzero(count):
                own = labels[row] == label
                share = 1 / count[label] if own else -1 / (rows - count[label])
                found[label] += share / patterns * curve.mean_probability(others[:, label])
        advance(patterns)
    return found


def log_sum_of_others(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """S = log sum_{l' != l} exp M(v(l')), so that q_{p[l <- t]}(l | x) = sigmoid(M(t) - S): (k, labels) -> the same."""
    labels = scores.shape[1]
    without = np.where(np.eye(labels, dtype=bool), -np.inf, scores[:, None])  # (k, labels, labels)
    most = without.max(axis=-1, keepdims=True)
    logs: NDArray[np.float32] = np.log(np.exp(without - most).sum(axis=-1)) + most[..., 0]
    return logs.astype(np.float32)


class Curve:
    """The mean over v_1, ..., v_k of sigmoid(M(t) - S_j) for all candidates t of one row and pattern.

    For a row and a pattern it is one smooth curve over M, whatever the word: worked out at points STEP apart, with its
    slope, and read off between them, it costs a small part of k sigmoids for each candidate.
    """

    def __init__(self, at: NDArray[np.float32]) -> None:
        self.points = at
        self._between: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        low, high = float(at.min()), float(at.max())
        count = int((high - low) / STEP) + 2
        if count < len(at):
            place = (at - np.float32(low)) / np.float32(STEP)
            left = np.minimum(place.astype(np.int64), count - 2)  # float32 may round up to the last point
            self.points = (low + STEP * np.arange(count)).astype(np.float32)
            self._between = left, place - left

    def mean_probability(self, others: NDArray[np.float32]) -> NDArray[np.floating]:
        """For the S_j of a label, (k,): (candidates,)."""
        with np.errstate(over="ignore"):  # exp of much is infinite, and 1 / infinite is the 0 that it should be
            q = 1 / (1 + np.exp(others - self.points[:, None]))  # (points, k)
        mean: NDArray[np.float64] = q.mean(axis=1, dtype=np.float64)
        if self._between is None:
            return mean
        slope = STEP * (mean - np.square(q).mean(axis=1, dtype=np.float64))  # of sigmoid: q (1 - q)
        rise = np.diff(mean)
        first, second = slope[:-1], slope[1:]
        cubic = np.stack([mean[:-1], first, 3 * rise - 2 * first - second, first + second - 2 * rise])
        left, along = self._between
        a, b, c, d = cubic.astype(np.float32).take(left, axis=1)
        read: NDArray[np.floating] = a + along * (b + along * (c + along * d))
        return read
