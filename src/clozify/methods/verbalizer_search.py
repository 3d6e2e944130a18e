"""Automatic verbalizer search: the words that represent a label best (appendix E).

s_l^k(t) is the mean probability of the label l on its own rows minus that on all other rows, with t as the word of l
and k random choices of the other labels' words. rho(t | l) is max(s_l^k(t), epsilon), normalised; the next round draws
from it. M(t) abbreviates M(t | P(x)), the masked LM's raw score of a candidate at the mask of a labelled row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from clozify.config.recipe import Words
from clozify.errors import TaskError

STEP = 0.125  # between the knots of an interpolated curve; cubic pieces between them are exact to 1e-7
BATCH = 8  # rows and patterns whose candidates are summed up at a time


@dataclass(frozen=True)
class WordScores:
    """How well every candidate represents every label, after the last round."""

    scores: NDArray[np.float64]  # (labels, candidates): s_l^k(t); 0 for a label without rows
    rho: NDArray[np.float64]  # (labels, candidates): rho_imax(t | l)
    halves: list[NDArray[np.float64]] = field(default_factory=list)  # s_l^k(t) on each half of the rows

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
    A label without rows keeps its rho_0. `advance` is called with the number of rows, once for each pattern and round.
    """
    rng = np.random.default_rng(seed)
    rho, present, halves = start.copy(), np.unique(labels), split_rows(labels)
    for _ in range(settings.i_max):
        # v_1, ..., v_k: a word for each label, (k, labels)
        verbalizers = np.stack([rng.choice(len(p), size=settings.k, p=p) for p in rho], axis=1)
        sums = [sum_probabilities(scores, labels, verbalizers, np.flatnonzero(halves == i), advance) for i in (0, 1)]
        word_scores = (sums[0] + sums[1]).scores()
        rho[present] = distribution(word_scores[present], settings.epsilon)
    return WordScores(word_scores, rho, [half.scores() for half in sums])


def split_rows(labels: NDArray[np.int16]) -> NDArray[np.int64]:
    """Two halves of the rows, 0 and 1, that each label's rows are in by turns: (rows,)."""
    halves = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        halves[rows] = np.arange(len(rows)) % 2
    return halves


def distribution(scores: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """rho(t | l) = max(s_l^k(t), epsilon) / Z for each label; uniform where no word has any weight."""
    weights = np.maximum(scores, epsilon)
    weights[weights.sum(axis=-1) <= 0] = 1
    rho: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return rho


@dataclass(frozen=True)
class ProbabilitySums:
    """Sums over rows of q_{p[l <- t]}(l | x), the mean over patterns and drawn verbalizers."""

    of_all: NDArray[np.float64]  # (candidates, labels): over all rows
    of_own: NDArray[np.float64]  # (candidates, labels): over the rows of the label
    counts: NDArray[np.int64]  # (labels,): |T_l|

    def __add__(self, other: ProbabilitySums) -> ProbabilitySums:
        return ProbabilitySums(self.of_all + other.of_all, self.of_own + other.of_own, self.counts + other.counts)

    def scores(self) -> NDArray[np.float64]:
        """s_l^k(t): the mean over the rows of l minus that over all other rows, (labels, candidates).

        A mean over no rows is 0, and so is the score of a label without rows.
        """
        others = self.counts.sum() - self.counts
        scores: NDArray[np.float64] = self.of_own / np.maximum(self.counts, 1) - (
            self.of_all - self.of_own
        ) / np.maximum(others, 1)
        scores[:, self.counts == 0] = 0
        return np.ascontiguousarray(scores.T)


def score_words(
    scores: NDArray[np.float32], labels: NDArray[np.int16], verbalizers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """s_l^k(t): the mean of s_l(t | (P, v)) over patterns P and drawn verbalizers v: (labels, candidates).

    s_l(t | p) is the mean of q_{p[l <- t]}(l | x) over the rows of l, minus its mean over all other rows.
    `verbalizers` are (k, labels), each a candidate's index.
    """
    return sum_probabilities(scores, labels, verbalizers, np.arange(len(labels))).scores()


def sum_probabilities(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    verbalizers: NDArray[np.int64],
    rows: NDArray[np.int64],
    advance: Callable[[int], None] = lambda count: None,
) -> ProbabilitySums:
    """The sums over these rows, for all labels at once.

    A row's probabilities in a pattern are W V: W interpolates curves of M(t) at the candidates, (candidates, 2 knots),
    four numbers each; V has the curves' values and slopes at the knots for every label, (2 knots, labels).
    """
    patterns, _, candidates = scores.shape
    label_count = verbalizers.shape[1]
    of_all, of_own = np.zeros((candidates, label_count)), np.zeros((candidates, label_count))
    pairs = [(row, pattern) for row in rows.tolist() for pattern in range(patterns)]
    for start in range(0, len(pairs), BATCH):
        weights: list[NDArray[np.float64]]
        columns: list[NDArray[np.int64]]
        curves: list[NDArray[np.float64]]
        weights, columns, curves, width = [], [], [], 0
        for row, pattern in pairs[start : start + BATCH]:
            at_mask = np.asarray(scores[pattern, row], dtype=np.float64)  # (candidates,)
            knots, row_weights, row_columns = interpolation(at_mask)
            curves.append(mean_probabilities(knots, logsumexp_of_other_labels(at_mask[verbalizers])))
            own = labels[row]
            of_own[:, own] += (row_weights * curves[-1][row_columns, own]).sum(axis=1)
            weights.append(row_weights)
            columns.append(row_columns + width)
            width += len(curves[-1])
        ends = np.arange(candidates + 1) * 4 * len(weights)
        matrix = csr_array((np.hstack(weights).ravel(), np.hstack(columns).ravel(), ends), shape=(candidates, width))
        of_all += matrix @ np.concatenate(curves)
        advance(len(weights))
    counts = np.bincount(labels[rows], minlength=label_count)
    return ProbabilitySums(of_all / patterns, of_own / patterns, counts)


def logsumexp_of_other_labels(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """S = log sum_{l' != l} exp M(v(l')), so that q_{p[l <- t]}(l | x) = sigmoid(M(t) - S): (k, labels) -> the same."""
    highest = scores.max(axis=1, keepdims=True)
    exp = np.exp(scores - highest)
    before, after = np.zeros_like(exp), np.zeros_like(exp)
    before[:, 1:] = np.cumsum(exp, axis=1)[:, :-1]
    after[:, :-1] = np.cumsum(exp[:, ::-1], axis=1)[:, ::-1][:, 1:]
    logs: NDArray[np.float64] = highest + np.log(np.maximum(before + after, np.finfo(np.float64).tiny))
    return logs


def interpolation(
    at_mask: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Knots STEP apart and, for each candidate, four weights and the indices of what they weigh, (candidates, 4).

    Indices below the number of knots are those of a curve's values there, the following of its slopes times STEP: the
    curve is a cubic between two knots, which is much cheaper than k sigmoids for each candidate.
    """
    lowest = at_mask.min()
    position = (at_mask - lowest) / STEP
    left = position.astype(np.int64)
    used = np.zeros(int(left.max()) + 2, dtype=bool)
    used[left] = used[left + 1] = True
    index = np.cumsum(used) - 1  # of a used knot among all that are used
    knots = lowest + STEP * np.flatnonzero(used)
    u = position - left
    v = 1 - u
    weights = np.stack([(1 + 2 * u) * v * v, u * v * v, u * u * (1 + 2 * v), -u * u * v], axis=1)
    columns = np.stack([index[left], index[left] + len(knots), index[left + 1], index[left + 1] + len(knots)], axis=1)
    return knots, weights, columns


def mean_probabilities(knots: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over v_1, ..., v_k of sigmoid(M - S_j) for M at the knots, and its slopes times STEP: (2 knots, labels).

    `others` is S, (k, labels). Each S_j counts as four nodes STEP / 2 apart with the weights of cubic interpolation, so
    that the sigmoids are computed once for all verbalizers and labels.
    """
    k, labels = others.shape
    lowest, step = others.min(), STEP / 2
    position = (others - lowest) / step
    left = position.astype(np.int64)
    u = position - left
    weights = np.stack(  # of the nodes left - 1, ..., left + 2, which the index below counts from 0
        [
            -u * (u - 1) * (u - 2) / 6,
            (u + 1) * (u - 1) * (u - 2) / 2,
            -(u + 1) * u * (u - 2) / 2,
            (u + 1) * u * (u - 1) / 6,
        ]
    )
    nodes = left + np.arange(4)[:, None, None]  # (4, k, labels)
    used = np.zeros(int(left.max()) + 4, dtype=bool)
    used[nodes] = True
    index = np.cumsum(used) - 1
    cells = index[nodes] * labels + np.arange(labels)
    count = int(used.sum())
    shares = np.bincount(cells.ravel(), weights.ravel(), count * labels).reshape(count, labels) / k
    q = expit(knots[:, None] - (lowest + step * (np.flatnonzero(used) - 1)))  # (knots, nodes)
    return np.concatenate([q @ shares, STEP * (q * (1 - q)) @ shares])
