"""Tests of whether new rows differ from reference rows by more than chance, each with the size of the difference.

- Predicted labels: Pearson's chi-squared for a change of many labels (where some expected counts are small, its p-value
  is the fraction of random splits of all rows with a larger one) and Fisher's exact test of each label for a change of
  one; twice the smaller p-value counts. Effect: the total variation distance of the labels' shares.
- Numbers, such as the confidence: Kolmogorov and Smirnov's two-sample test. Effect: its statistic, the largest
  difference of the two distribution functions.
- Numbers beyond a threshold that a fraction of the reference's exceed, the k-th smallest of n: where nothing changed,
  the number of m new ones beyond it has the beta-binomial distribution of m, n - k + 1 and k. Effect: the new fraction
  less the reference's, 0 where it is lower.
- Words: Fisher's exact test of the number of rows that have a word, for every word, with Bonferroni's correction.
  Effect: the largest difference of shares of rows among the words that differ significantly.

All effects are between 0 and 1. `holm` corrects the p-values of all tests together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray
from scipy import stats

from clozify.methods.explain import NO_SPACES

SMALL_COUNT = 5  # below that many expected rows, chi-squared's distribution is not trusted
RANDOM_SPLITS = 20_000
MIN_ROWS_OF_WORD = 5  # rarer words, counted in both sets together, are not tested


@dataclass(frozen=True)
class Difference:
    """A test's p-value before correction, and the size of the difference."""

    p_value: float
    effect: float


@dataclass(frozen=True)
class Exceeding:
    """How many numbers are beyond a threshold."""

    difference: Difference
    reference: float  # the fraction of the reference's
    new: float


@dataclass(frozen=True)
class WordShift:
    """A word whose share of rows has changed."""

    word: str
    reference: float  # the share of the reference rows that have it
    new: float
    p_value: float  # corrected for the number of words


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """p-values corrected for their number by Holm's step-down method: (tests,)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return corrected


def compare_shares(reference: NDArray[Any], new: NDArray[Any], seed: int = 0) -> Difference:
    """Test whether two samples have the same shares of labels, from the labels' counts: (labels,) each."""
    counts = np.stack([np.asarray(reference, dtype=np.int64), np.asarray(new, dtype=np.int64)])
    counts = counts[:, counts.sum(axis=0) > 0]
    shares = counts / counts.sum(axis=1, keepdims=True)
    effect = float(np.abs(shares[0] - shares[1]).sum() / 2)
    if counts.shape[1] < 2:
        return Difference(1.0, effect)
    all_labels = chi_squared_p_value(counts, seed)
    rows = int(counts[0].sum()), int(counts[1].sum())
    one_label = compare_label_sets(counts[0], counts[1], rows).p_value
    return Difference(min(1.0, 2 * min(all_labels, one_label)), effect)


def chi_squared_p_value(counts: NDArray[np.int64], seed: int = 0) -> float:
    """The p-value of Pearson's test of two samples' counts, (2, labels); of small counts, by random splits."""
    expected = _expected(counts)
    if expected.min() >= SMALL_COUNT:
        return float(stats.chi2_contingency(counts, correction=False).pvalue)
    splits = np.random.default_rng(seed).multivariate_hypergeometric(
        counts.sum(axis=0), int(counts[1].sum()), size=RANDOM_SPLITS, method="marginals"
    )  # (splits, labels): the counts of the new rows, if all rows were split at random
    observed = _chi_squared(counts[1], expected)
    larger = int((_chi_squared(splits, expected) >= observed * (1 - 1e-9)).sum())
    return (1 + larger) / (1 + RANDOM_SPLITS)


def _expected(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The counts if both samples had the same shares: (2, labels)."""
    expected: NDArray[np.float64] = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    return expected


def _chi_squared(new: NDArray[np.int64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's statistic of a table with two rows from the counts of the second: (...,) of (..., labels)."""
    squared = (new - expected[1]) ** 2  # both rows differ by the same from what is expected
    result: NDArray[np.float64] = (squared * (1 / expected[0] + 1 / expected[1])).sum(axis=-1)
    return result


def compare_label_sets(reference: NDArray[Any], new: NDArray[Any], rows: tuple[int, int]) -> Difference:
    """Test how many of the `rows` have each label, (labels,) each: the label that differs most counts."""
    reference, new = np.asarray(reference, dtype=np.int64), np.asarray(new, dtype=np.int64)
    occurring = reference + new > 0
    if not occurring.any():
        return Difference(1.0, 0.0)
    p_values = fisher_exact(reference[occurring], new[occurring], rows)
    effect = np.abs(reference / rows[0] - new / rows[1]).max()
    return Difference(min(1.0, float(p_values.min()) * len(p_values)), float(effect))


def compare_numbers(reference: NDArray[Any], new: NDArray[Any], larger: bool = False) -> Difference:
    """Test whether two samples of numbers have the same distribution; with `larger`, whether new ones are larger."""
    result = stats.ks_2samp(reference, new, alternative="greater" if larger else "two-sided", method="asymp")
    return Difference(float(result.pvalue), float(result.statistic))


def compare_exceeding(reference: NDArray[Any], new: NDArray[Any], fraction: float) -> Exceeding | None:
    """Test whether more of the new numbers are beyond a threshold than the `fraction` of the reference's.

    None where the reference has too few numbers for such a threshold.
    """
    rows = len(reference)
    rank = math.ceil((1 - fraction) * (rows + 1) - 1e-9)  # the k-th smallest
    if rank > rows:
        return None
    threshold = np.sort(reference)[rank - 1]
    count = int((new > threshold).sum())
    shares = float((reference > threshold).mean()), count / len(new)
    p_value = float(stats.betabinom.sf(count - 1, len(new), rows - rank + 1, rank))
    return Exceeding(Difference(p_value, max(0.0, shares[1] - shares[0])), *shares)


def fisher_exact(reference: NDArray[np.int64], new: NDArray[np.int64], rows: tuple[int, int]) -> NDArray[np.float64]:
    """Two-sided p-values of how many of the `rows` of both sets have each of some words or labels: (words,)."""
    distribution = stats.hypergeom(sum(rows), reference + new, rows[1])
    tail = np.minimum(distribution.cdf(new), distribution.sf(new - 1))
    p_values: NDArray[np.float64] = np.minimum(2 * tail, 1.0)
    return p_values


@cache
def _word_pattern() -> regex.Pattern[str]:
    return regex.compile(rf"[{NO_SPACES}]|[^\W{NO_SPACES}]+")


def row_words(texts: Iterable[str]) -> set[str]:
    """The words of a row's texts, in lower case."""
    return {word for text in texts for word in _word_pattern().findall(text.lower())}


def count_rows_with_words(rows: Iterable[set[str]]) -> Counter[str]:
    """How many rows have each word."""
    return Counter(word for words in rows for word in words)


def unseen_fractions(rows: Sequence[set[str]], counts: Mapping[str, int], own: bool = False) -> NDArray[np.float64]:
    """The fraction of each row's words that no reference row has, from how many reference rows have each: (rows,).

    `own`: the rows are the reference rows; each is compared with the others.
    """
    return np.array([sum(counts.get(word, 0) <= own for word in words) / max(1, len(words)) for words in rows])


def compare_words(
    reference: Mapping[str, int], new: Mapping[str, int], rows: tuple[int, int], level: float
) -> tuple[Difference, list[WordShift]]:
    """Test the number of rows that have each word; also returns the words that differ at this level, by p-value."""
    totals = Counter(reference) + Counter(new)
    words = sorted(word for word, count in totals.items() if count >= MIN_ROWS_OF_WORD)
    if not words:
        return Difference(1.0, 0.0), []
    before, after = (np.array([counts.get(word, 0) for word in words]) for counts in (reference, new))
    p_values = np.minimum(fisher_exact(before, after, rows) * len(words), 1.0)
    shares = before / rows[0], after / rows[1]
    difference = np.abs(shares[1] - shares[0])
    order = np.lexsort((-difference, p_values))
    shifts = [
        WordShift(words[index], float(shares[0][index]), float(shares[1][index]), float(p_values[index]))
        for index in order
        if p_values[index] < level
    ]
    significant = p_values < level
    effect = difference[significant].max() if significant.any() else difference[order[0]]
    return Difference(float(p_values.min()), float(effect)), shifts
