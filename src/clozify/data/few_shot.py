"""The few-shot selection: the training set T of the paper (section 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import DataError, quoted


def few_shot(rows: Rows, examples: int, seed: int | None = None) -> Rows:
    """The training set T of the paper: the first `examples / |L|` rows of each label, in the order of the file.

    A remainder goes to the first labels, one row each: 10 rows over four labels are 3, 3, 2 and 2. Of a label with
    fewer rows all are taken, and a warning of the selected rows says so. With a `seed` the rows are drawn at random
    instead.
    """
    if not isinstance(examples, (int, np.integer)) or examples < 0:
        raise DataError(f"A training set cannot have {examples!r} examples; ask for 0 or more, as a whole number.")
    labels = rows.task.labels
    counts = examples_per_label(examples, len(labels))
    order = np.arange(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows))
    labels_in_order = rows.labels[order]
    selected = [order[labels_in_order == label][:count] for label, count in enumerate(counts)]
    chosen = rows.select(np.sort(np.concatenate(selected)))
    chosen.warnings = rows.warnings + _warnings(rows, examples, counts, np.array(list(map(len, selected))))
    return chosen


def examples_per_label(examples: int, labels: int) -> NDArray[np.int64]:
    """How many rows each label gets: (labels,)."""
    per_label, remainder = divmod(int(examples), labels)
    return per_label + (np.arange(labels) < remainder)


def reselect(rows: Rows, count: int, seed: int | None = None) -> Rows:
    """The few-shot selection that has `count` rows, however many examples were asked for."""
    available = np.bincount(rows.labels, minlength=len(rows.task.labels))
    most = int(available.max(initial=0)) * len(available)
    examples = count
    while examples < most and np.minimum(available, examples_per_label(examples, len(available))).sum() < count:
        examples += 1
    return few_shot(rows, examples, seed)


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
