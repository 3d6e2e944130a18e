"""The few-shot selection: the training set T of the paper (section 4)."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import DataError, quoted


def few_shot(rows: Rows, examples: int, seed: int | None = None) -> Rows:
    """The training set T of the paper: the first `examples / |L|` rows of each label, in the order of the file.

    A remainder goes to the first labels, one row each: 10 rows over four labels are 3, 3, 2 and 2. Of a label with
    fewer rows all are taken, and a warning of the selected rows says so. With a `seed` the rows are drawn at random
    instead. Where a row may have several labels it counts for each of them, and rows without any are added in the ratio
    of the file.
    """
    if not isinstance(examples, (int, np.integer)) or examples < 0:
        raise DataError(f"A training set cannot have {examples!r} examples; ask for 0 or more, as a whole number.")
    labels = rows.task.labels
    counts = examples_per_label(examples, len(labels))
    order = np.arange(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows))
    if rows.task.multilabel:
        chosen = rows.select(np.sort(_select_sets(rows.label_matrix, counts, order)))
        taken = np.minimum((chosen.label_matrix == 1).sum(axis=0), counts)
    else:
        labels_in_order = rows.labels[order]
        selected = [order[labels_in_order == label][:count] for label, count in enumerate(counts)]
        chosen = rows.select(np.sort(np.concatenate(selected)))
        taken = np.array(list(map(len, selected)))
    chosen.warnings = rows.warnings + _warnings(rows, examples, counts, taken)
    return chosen


def _select_sets(targets: NDArray[np.int8], counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of rows so that `counts[l]` have each label l, if there are so many, and of rows without any label."""
    selected = np.empty(0, dtype=np.int64)
    for label, count in enumerate(counts.tolist()):
        has_label = targets[:, label] == 1
        missing = max(0, count - int(has_label[selected].sum()))
        has_label[selected] = False
        selected = np.concatenate([selected, order[has_label[order]][:missing]])
    without = (targets == 0).all(axis=1)
    count = round(len(selected) * without.sum() / max(1, (targets == 1).any(axis=1).sum()))
    return np.concatenate([selected, order[without[order]][:count]])


def examples_per_label(examples: int, labels: int) -> NDArray[np.int64]:
    """How many rows each label gets: (labels,)."""
    per_label, remainder = divmod(int(examples), labels)
    return per_label + (np.arange(labels) < remainder)


def reselect(rows: Rows, count: int, seed: int | None = None) -> Rows:
    """The few-shot selection that has `count` rows, however many examples were asked for."""
    if rows.task.multilabel:  # rows may count for several labels: the number of examples is searched for
        numbers = range(len(rows) * len(rows.task.labels) + 1)
        return few_shot(rows, bisect_left(numbers, count, key=lambda number: len(few_shot(rows, number, seed))), seed)
    available = np.bincount(rows.labels, minlength=len(rows.task.labels))

    def selected(examples: int) -> int:
        return int(np.minimum(available, examples_per_label(examples, len(available))).sum())

    return few_shot(rows, bisect_left(range(int(available.max()) * len(available)), count, key=selected), seed)


def _warnings(rows: Rows, examples: int, counts: NDArray[np.int64], taken: NDArray[np.int64]) -> list[str]:
    """A sentence where labels have fewer rows than asked for, and one where there are fewer examples than labels."""
    labels, sentences = rows.task.labels, []
    if 0 < examples < len(labels):
        sentences.append(
            f"{examples} examples are fewer than the {len(labels)} labels, so the first {examples} labels have one and "
            f"the others none; --examples {len(labels)} gives each label one."
        )
    if len(short := np.flatnonzero(taken < counts)):
        names = quoted([f"{labels[index]} ({taken[index]} of {counts[index]})" for index in short], 3)
        sentences.append(
            f"{len(short)} of {len(labels)} labels have fewer rows in '{rows.source}' than {examples} examples over "
            f"{len(labels)} labels need: {names}; all their rows are taken, {taken.sum():,} rows in all."
        )
    return sentences


def select_labeled(rows: Rows, warnings: list[str], name: str) -> Rows:
    """The rows that have a label; a warning counts the others."""
    labeled = np.flatnonzero(rows.is_labeled)
    if len(labeled) == 0:
        raise DataError(f"No row of the {name} data '{rows.source}' has a label.")
    if len(labeled) == len(rows):
        return rows
    warnings.append(f"{len(rows) - len(labeled):,} of {len(rows):,} {name} rows have no label and were left out.")
    return rows.select(labeled)
