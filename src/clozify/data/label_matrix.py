"""Labels of tasks with several labels a row, as a matrix of 0 and 1.

The label column holds `a|b|c`, or a list; or each label has a column of its own with 0 and 1. A row with an empty cell
or list was labelled, and no label applies to it; one with a missing value, `-` or `-1` was not labelled.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.text_values import to_text
from clozify.errors import DataError, did_you_mean, quoted

if TYPE_CHECKING:
    from clozify.data.rows import Rows

NO_LABEL = -1
UNLABELED = {"", "-", "-1"}  # label values that mean "no label"
TRUTH_VALUES = {"0": 0, "1": 1, "false": 0, "true": 1}


def is_labeled(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row was labelled; targets are label indices, (rows,), or a label matrix, (rows, labels)."""
    labeled: NDArray[np.bool_] = (targets if targets.ndim == 1 else targets[:, 0]) != NO_LABEL
    return labeled


def indicators(rows: Rows) -> NDArray[np.float32]:
    """1 for every label that a labelled row has, else 0: (rows, labels)."""
    if rows.task.multilabel:
        return rows.label_matrix.astype(np.float32)
    return np.eye(len(rows.task.labels), dtype=np.float32)[rows.labels]


def indicator_columns(task: Task, columns: Collection[str]) -> list[str]:
    """The columns of 0 and 1, one for each label, where the task allows several labels a row and all are there."""
    return task.labels if task.multilabel and set(task.labels) <= set(columns) else []


def split_cell(value: object, separator: str) -> list[str] | None:
    """The labels' names in a cell: text with a separator, a list or its JSON text; None if the row was not labelled."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = str(value)
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_text(name) for name in value if name is not None]
    text = "-" if value is None else to_text(value)
    if text in UNLABELED - {""}:
        return None
    return [name.strip() for name in text.split(separator) if name.strip()]


def join_labels(names: Sequence[str], separator: str) -> str:
    """Labels as one cell holds them."""
    return separator.join(names)


def read_label_matrix(rows: Rows) -> NDArray[np.int8]:
    """The labels of all rows of a file: (rows, labels)."""
    if indicators := rows.column(rows.column_mapping[rows.task.label], 0, 1) is None:
        matrix, faults = _read_indicators(rows)
    else:
        matrix, faults = _read_cells(rows)
    if faults:
        first = f"row {faults[0] + 1:,}" + (f" and {len(faults) - 1:,} more" if faults[1:] else "")
        what = "0, 1, true or false in each label's column" if indicators else "labels"
        raise DataError(f"The data '{rows.source}' lacks {what} in {first}; write them, or remove the row.")
    return matrix


def _read_cells(rows: Rows) -> tuple[NDArray[np.int8], list[int]]:
    """The matrix of a column of label names, and no faults: an unknown name raises an error."""
    task, code_of_name = rows.task, dict[str, int]()
    row_indices, codes, unlabeled = list[int](), list[int](), list[int]()
    for start, stop in rows.chunks():
        values = rows.column(rows.column_mapping[task.label], start, stop).to_pylist()
        for row, value in enumerate(values, start):
            if (names := split_cell(value, task.separator)) is None:
                unlabeled.append(row)
                continue
            row_indices += [row] * len(names)
            codes += [code_of_name.setdefault(name, len(code_of_name)) for name in names]
    label_of_name = rows.match_labels(list(code_of_name))
    labels = np.array([label_of_name[name] for name in code_of_name], dtype=np.int64)
    matrix = np.zeros((len(rows), len(task.labels)), dtype=np.int8)
    if codes:
        matrix[row_indices, labels[codes]] = 1
    matrix[unlabeled] = NO_LABEL
    return matrix, []


def _read_indicators(rows: Rows) -> tuple[NDArray[np.int8], list[int]]:
    """The matrix of one column of 0 and 1 for each label, and the rows that have other values."""
    matrix = np.empty((len(rows), len(rows.task.labels)), dtype=np.int8)
    for start, stop in rows.chunks():
        for index, label in enumerate(rows.task.labels):
            values = rows.column(label, start, stop).to_pylist()
            texts = ["" if value is None else to_text(value).lower().removesuffix(".0") for value in values]
            matrix[start:stop, index] = [NO_LABEL if text == "" else TRUTH_VALUES.get(text, 2) for text in texts]
    blank = (matrix == NO_LABEL).any(axis=1) & (matrix != NO_LABEL).any(axis=1)  # in some columns, not in all
    return matrix, np.flatnonzero(blank | (matrix == 2).any(axis=1)).tolist()


def several_labels_hint(names: Sequence[str], task: Task) -> str:
    """Advice where the labels of data for a task with one label a row look like several."""
    several = [split_cell(name, task.separator) or [] for name in names]
    if not task.multilabel and any(len(parts) > 1 and set(parts) <= set(task.labels) for parts in several):
        return " If rows have several labels, add multilabel = true to the task."
    return ""


def missing_labels(source: str, task: Task, column_mapping: Mapping[str, str], columns: Sequence[str]) -> str:
    """The sentence about data without labels."""
    column = column_mapping[task.label]
    sentence = f"The data '{source}' lacks the label column '{column}'"
    if task.multilabel and (missing := [label for label in task.labels if label not in columns]):
        near = did_you_mean(missing[0], columns)
        sentence += f" and, of one column of 0 and 1 for each label, {quoted(missing, 3)}{near}"
    return f"{sentence}; its columns are {quoted(columns)}."
