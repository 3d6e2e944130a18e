"""Automatic verbalizer search: the words that represent a label best (appendix E).

s_l^k(t) is the mean probability of the label l on its own rows minus that on all other rows, with t as the word of l
and k random choices of the other labels' words. rho(t | l) is max(s_l^k(t), epsilon), normalised; the next round draws
from it. M(t) abbreviates M(t | P(x)), the masked LM's raw score of a candidate at the mask of a labelled row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from clozify.config.recipe import Words
from clozify.errors import TaskError

STEP = 0.125  # between the knots of an interpolated curve; cubic pieces between them are exact to 1e-7


@dataclass(frozen=True)
class WordScores:
    """How well every candidate represents every label, after the last round."""

    scores: NDArray[np.float64]  # (labels, candidates): s_l^k(t); 0 for a label without rows
    rho: NDArray[np.float64]  # (labels, candidates): rho_imax(t | l)

    def order(self, label: int) -> NDArray[np.int64]:
        """The candidates in descending order of rho, then of score, then by index."""
        return np.lexsort((-self.scores[label], -self.rho[label]))

    def choose(self, settings: Words, fixed: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Each label's fixed words, then the most likely ones, m in all; no two labels get exactly the same words.

        Words with a score of at most epsilon are left out unless a label would have none. A fixed word is not chosen
        for another label. Where two labels would have the same words, the label with the lower best score takes its
        next word instead of its last, or one word less.
        """
        chosen: dict[int, list[int]] = {}
        taken = {word for words in fixed.values() for word in words}
        for label in sorted(range(len(self.rho)), key=lambda label: (label not in fixed, -self.scores[label].max())):
            label_words = list(dict.fromkeys(fixed.get(label, ())))
            order = [word for word in self.order(label).tolist() if word not in taken]
            good = [word for word in order if self.scores[label, word] > settings.epsilon]
            picked = good[: max(settings.m - len(label_words), 0)] or order[: not label_words]
            chosen[label] = _distinct_words(chosen.values(), label_words, picked, order)
        return [chosen[label] for label in range(len(self.rho))]


def _distinct_words(
    other_labels: Iterable[list[int]], fixed: list[int], picked: list[int], order: list[int]
) -> list[int]:
    """A label's fixed and picked words, changed as little as possible so that no other label has exactly these."""
    taken = [set(words) for words in other_labels]
    for count in range(len(picked), 0, -1):
        for last in order[count - 1 :]:
            words = fixed + picked[: count - 1] + [last]
            if set(words) not in taken:
                return words
    if fixed and set(fixed) not in taken:
        return fixed
    raise TaskError("There are too few words to choose from to tell every label from the others; allow more words.")


def search_verbalizer(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    start: NDArray[np.float64],
    settings: Words,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> WordScores:
    """Rounds of drawing k random verbalizers and scoring every candidate with them, jointly for all patterns.

    `scores` is M(t), (patterns, rows, candidates); `labels` is (rows,); `start` is rho_0(t | l), (labels, candidates).
    A label without rows keeps its rho_0. `advance` is called for each row.
    """
    rng = np.random.default_rng(seed)
    rho, present = start.copy(), np.unique(labels)
    for _ in range(settings.i_max):
        # v_1, ..., v_k: a word for each label, (k, labels)
        verbalizers = np.stack([rng.choice(len(p), size=settings.k, p=p) for p in rho], axis=1)
        word_scores = score_words(scores, labels, verbalizers, advance)
        rho[present] = distribution(word_scores[present], settings.epsilon)
    return WordScores(word_scores, rho)


def distribution(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """rho(t | l) = max(s_l^k(t), epsilon) / Z for each label; uniform where no word has any weight."""
    weights = np.maximum(scores, epsilon)
    weights[weights.sum(axis=-1) <= 0] = 1
    rho: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return rho


def score_words(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    verbalizers: NDArray[np.int64],
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float64]:
    """s_l^k(t): the mean of s_l(t | (P, v)) over patterns P and drawn verbalizers v: (labels, candidates).

    s_l(t | p) is the mean of q_{p[l <- t]}(l | x) over the rows of l, minus its mean over all other rows; a mean over
    no rows is 0. `verbalizers` are (k, labels), each a candidate's index.
    """
    patterns, rows, candidates = scores.shape
    counts = np.bincount(labels, minlength=verbalizers.shape[1])  # (labels,): |T_l|
    word_scores = np.zeros((len(counts), candidates))
    for row in range(rows):
        for pattern in range(patterns):
            at_mask = np.asarray(scores[pattern, row])  # (candidates,)
            others = logsumexp_of_other_labels(at_mask[verbalizers])  # (k, labels)
            curve = Curve(at_mask)
            for label in np.flatnonzero(counts):
                weight = 1 / counts[label] if labels[row] == label else -1 / (rows - counts[label])
                word_scores[label] += weight / patterns * curve.mean_probability(others[:, label])
        advance(patterns)
    return word_scores


def logsumexp_of_other_labels(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """S = log sum_{l' != l} exp M(v(l')), so that q_{p[l <- t]}(l | x) = sigmoid(M(t) - S): (k, labels) -> the same."""
    without_label = np.where(np.eye(scores.shape[1], dtype=bool), -np.inf, scores[:, None])  # (k, labels, labels)
    logs: NDArray[np.float64] = logsumexp(without_label, axis=-1)
    return logs.astype(np.float32)


class Curve:
    """The mean over v_1, ..., v_k of sigmoid(M(t) - S_j) for all candidates t of one row and pattern.

    It is a smooth function of M(t) alone, so it is evaluated at knots STEP apart and interpolated with its derivative:
    much cheaper than k sigmoids for each candidate.
    """

    def __init__(self, at_mask: NDArray[np.float32]) -> None:
        self.knots = at_mask
        self._intervals: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None  # index and offset
        low, high = float(at_mask.min()), float(at_mask.max())
        count = int((high - low) / STEP) + 2
        if count < len(at_mask):
            position = (at_mask - np.float32(low)) / np.float32(STEP)
            left = np.minimum(position.astype(np.int64), count - 2)  # float32 may round up to the last knot
            self.knots = (low + STEP * np.arange(count)).astype(np.float32)
            self._intervals = left, position - left

    def mean_probability(self, others: NDArray[np.float32]) -> NDArray[np.floating]:
        """The means for the S_j of one label, (k,): (candidates,)."""
        with np.errstate(over="ignore"):  # exp overflows to infinity, and 1 / infinity is the correct 0
            q = 1 / (1 + np.exp(others - self.knots[:, None]))  # (knots, k)
        mean: NDArray[np.float64] = q.mean(axis=1, dtype=np.float64)
        if self._intervals is None:
            return mean
        slope = STEP * (mean - np.square(q).mean(axis=1, dtype=np.float64))  # sigmoid' = q (1 - q)
        rise = np.diff(mean)
        first, second = slope[:-1], slope[1:]
        cubic = np.stack([mean[:-1], first, 3 * rise - 2 * first - second, first + second - 2 * rise])
        left, offset = self._intervals
        a, b, c, d = cubic.astype(np.float32).take(left, axis=1)
        interpolated: NDArray[np.floating] = a + offset * (b + offset * (c + offset * d))
        return interpolated
