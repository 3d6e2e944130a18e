"""Tests the words that were found for labels on rows that did not choose them.

Words chosen on one half of T should tell the label's rows in the other half from the rows of all other labels there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Words
from clozify.methods.verbalizer_search import WordScores, split_rows

MAX_P_VALUE = 0.05  # of a one-sided Mann-Whitney test; above it, a label's words count as weak


@dataclass(frozen=True)
class Separation:
    """How well a label's words rank its rows above those of other labels, on rows that did not choose the words."""

    auc: float  # the probability that a row of the label ranks above another; 0.5 by chance
    p_value: float

    @property
    def is_weak(self) -> bool:
        """Whether the ranking may be due to chance."""
        return self.p_value > MAX_P_VALUE


def measure_separation(
    scores: NDArray[np.float32],
    labels: NDArray[np.int16],
    result: WordScores,
    settings: Words,
    fixed: Mapping[int, Sequence[int]],
) -> dict[int, Separation]:
    """The separation of each label with two rows or more; `scores` is M(t), (patterns, rows, candidates)."""
    from scipy.stats import mannwhitneyu

    halves, ranked = split_rows(labels), np.zeros((len(labels), len(result.rho)))
    for half in (0, 1):
        rows = np.flatnonzero(halves == half)
        if not len(rows):
            continue
        others = result.halves[1 - half]  # (labels, candidates)
        words = [_choose(of_label, settings, fixed.get(label, ())) for label, of_label in enumerate(others)]
        at_mask = sum(of_pattern[rows] for of_pattern in scores)  # (rows, candidates)
        label_scores = np.stack([at_mask[:, label_words].mean(axis=1) for label_words in words], axis=1)
        label_scores = label_scores - label_scores.mean(axis=1, keepdims=True)  # of rows that fit all words better
        ranked[rows] = label_scores - label_scores.mean(axis=0)  # the two halves have other words
    separations = {}
    for label in np.unique(labels).tolist():
        own = labels == label
        if 1 < own.sum() < len(labels):
            test = mannwhitneyu(ranked[own, label], ranked[~own, label], alternative="greater")
            auc = float(test.statistic) / (own.sum() * (~own).sum())
            separations[label] = Separation(float(auc), float(test.pvalue))
    return separations


def _choose(scores: NDArray[np.float64], settings: Words, fixed: Sequence[int]) -> list[int]:
    """The words of a label by their scores on one half of the rows, as `WordScores.choose` takes them."""
    best = np.argsort(-scores, kind="stable")[: settings.m].tolist()
    good = [word for word in best if scores[word] > settings.epsilon]
    added = good[: max(settings.m - len(fixed), 0)] or ([] if fixed else best[:1])
    return list(dict.fromkeys([*fixed, *added]))
