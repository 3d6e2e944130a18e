"""Columns and texts that tell the label: what predicts it almost without errors was likely derived from it.

A column's accuracy is cross-validated: a value is predicted as the most frequent label of the same value in the other
folds, a number by a small decision tree, which also covers ids that are sorted by label. A label's name in a field
counts where most rows contain one label's name, and nearly always that of their own label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MIN_ACCURACY = 0.95
MAX_P_VALUE = 1e-3  # of so many correct answers, if the column were no better than the most frequent label
MIN_ROWS = 10
FOLDS = 5
MAX_ROWS = 20_000  # that are looked at; of more, evenly spaced ones
MIN_NAMED = 0.5  # of the rows that contain a label's name, from which on that is suspicious
MIN_NAME_LETTERS = 3

Kind = Literal["values", "numbers", "label names"]


@dataclass(frozen=True)
class Leak:
    """A column that tells the label."""

    column: str
    kind: Kind  # the label follows from equal values, from the order of numbers, or is named in the text
    accuracy: float  # with names, on the rows that contain one
    majority: float  # the accuracy of always answering the most frequent label
    rows: int  # with names, those that contain one


def find_column_leak(name: str, values: Sequence[str], labels: NDArray[np.integer[Any]]) -> Leak | None:
    """The leak of a column whose values or numbers predict the labels, (rows,); None without one."""
    step = max(1, -(-len(labels) // MAX_ROWS))
    values, labels = values[::step], labels[::step]
    distinct, majority = len(set(values)), _majority(labels)
    if len(labels) < MIN_ROWS or distinct < 2 or majority == 1.0:
        return None
    kinds: list[tuple[Kind, float]] = []
    if distinct <= len(labels) / 2:
        kinds.append(("values", _value_accuracy(values, labels)))
    if (numbers := _to_numbers(values)) is not None:
        kinds.append(("numbers", _number_accuracy(numbers, labels)))
    for kind, accuracy in kinds:
        if accuracy >= MIN_ACCURACY and _p_value(accuracy, len(labels), majority) <= MAX_P_VALUE:
            return Leak(name, kind, accuracy, majority, len(labels))
    return None


def find_named_labels(
    name: str, texts: Sequence[str], labels: NDArray[np.integer[Any]], label_names: Sequence[str]
) -> Leak | None:
    """The leak of a field whose texts contain their own label's name suspiciously often; None without one."""
    patterns = [
        re.compile(rf"(?<!\w){re.escape(label)}(?!\w)", re.IGNORECASE)
        if sum(map(str.isalpha, label)) >= MIN_NAME_LETTERS
        else None
        for label in label_names
    ]
    named, right = 0, 0
    for text, label in zip(texts, labels, strict=True):
        mentioned = [index for index, pattern in enumerate(patterns) if pattern is not None and pattern.search(text)]
        named += len(mentioned) == 1
        right += mentioned == [label]
    majority = _majority(labels)
    if named < max(MIN_ROWS, MIN_NAMED * len(labels)) or right < MIN_ACCURACY * named:
        return None
    if _p_value(right / named, named, majority) > MAX_P_VALUE:
        return None
    return Leak(name, "label names", right / named, majority, named)


def is_sorted_by_label(labels: NDArray[np.integer[Any]]) -> bool:
    """Whether the rows of each label are consecutive, and there are several labels and more rows."""
    changes = int((np.diff(labels) != 0).sum())
    return len(labels) >= MIN_ROWS and changes == len(np.unique(labels)) - 1 > 0


def _majority(labels: NDArray[np.integer[Any]]) -> float:
    """The fraction of rows with the most frequent label."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels)) if len(labels) else 1.0


def _p_value(accuracy: float, rows: int, majority: float) -> float:
    from scipy.stats import binomtest

    return float(binomtest(round(accuracy * rows), rows, majority, alternative="greater").pvalue)


def _folds(labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Each row's fold: those of one label are dealt out in turn."""
    order = np.argsort(labels, kind="stable")
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(labels)) % FOLDS
    return folds


def _value_accuracy(values: Sequence[str], labels: NDArray[np.integer[Any]]) -> float:
    """The cross-validated accuracy of each value's most frequent label; a new value has that of all rows."""
    codes = np.unique(np.asarray(values, dtype=object).astype(str), return_inverse=True)[1]
    indices = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros((codes.max() + 1, indices.max() + 1), dtype=np.int64)
    folds, correct = _folds(labels), 0
    np.add.at(counts, (codes, indices), 1)
    for fold in range(FOLDS):
        held_out = folds == fold
        others = counts.copy()
        np.subtract.at(others, (codes[held_out], indices[held_out]), 1)
        predicted = np.where(others.any(axis=1), others.argmax(axis=1), others.sum(axis=0).argmax())
        correct += int((predicted[codes[held_out]] == indices[held_out]).sum())
    return correct / len(labels)


def _to_numbers(values: Sequence[str]) -> NDArray[np.float64] | None:
    """The values as numbers, or the digits at their ends (`row-17`); None where a value has none."""
    numbers = list[float]()
    for value in values:
        try:
            numbers.append(float(value))
        except ValueError:
            digits = re.search(r"\d{1,15}$", value)
            if digits is None:
                return None
            numbers.append(float(digits.group()))
    array = np.array(numbers)
    return array if np.isfinite(array).all() else None


def _number_accuracy(numbers: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> float:
    """The cross-validated accuracy of a decision tree with twice as many leaves as labels."""
    from sklearn.tree import DecisionTreeClassifier

    ranks = np.unique(numbers, return_inverse=True)[1]  # trees compute with 32 bits
    folds, correct = _folds(labels), 0
    for fold in range(FOLDS):
        held_out = folds == fold
        tree = DecisionTreeClassifier(max_leaf_nodes=2 * len(np.unique(labels)), random_state=0)
        tree.fit(ranks[~held_out, None], labels[~held_out])
        correct += int((tree.predict(ranks[held_out, None]) == labels[held_out]).sum())
    return correct / len(labels)
