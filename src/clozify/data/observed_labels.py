"""Labels of rows as the data has them, read without an error where a name is none of the task's.

`Rows.labels` refuses such data; here unknown names are reported row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.label_matrix import NO_LABEL, UNLABELED, is_labeled, join_labels, split_cell
from clozify.data.rows import Rows
from clozify.data.text_values import task_spelling, to_text


@dataclass(frozen=True)
class ObservedLabels:
    """The labels of all rows of a data set."""

    cells: list[str]  # each row's labels as the data has them; empty without any
    targets: NDArray[np.int64]  # label indices, (rows,), or a label matrix, (rows, labels); NO_LABEL where unknown
    names: list[str]  # of the task's labels, as the data writes them
    unknown: dict[int, list[str]] = field(default_factory=dict)  # row -> its names that the task does not have

    @property
    def is_labeled(self) -> NDArray[np.bool_]:
        """Whether each row has labels of the task and no others: (rows,)."""
        return is_labeled(self.targets)

    def counts(self) -> NDArray[np.int64]:
        """How many rows each label has: (labels,)."""
        labeled = self.targets[self.is_labeled]
        if self.targets.ndim == 2:
            return np.asarray(labeled.sum(axis=0), dtype=np.int64)
        return np.bincount(labeled, minlength=len(self.names)).astype(np.int64)


def observe_labels(rows: Rows) -> ObservedLabels | None:
    """The labels of all rows; None where the data has no label column."""
    task = rows.task
    if not rows.has_labels:
        return None
    column = rows.column_mapping[task.label]
    if rows.column(column, 0, 1) is None:  # a column of 0 and 1 for each label
        matrix = rows.label_matrix.astype(np.int64)
        cells = [join_labels([task.labels[i] for i in np.flatnonzero(row == 1)], task.separator) for row in matrix]
        return ObservedLabels(cells, matrix, task.labels)
    values = [value for start, stop in rows.chunks() for value in rows.column(column, start, stop).to_pylist()]
    cells = ["" if value is None else to_text(value) for value in values]
    if task.multilabel:
        sets = [split_cell(value, task.separator) for value in values]
    else:
        sets = [None if cell in UNLABELED and cell not in task.labels else [cell] for cell in cells]
    return _match(task, cells, sets)


def _match(task: Task, cells: list[str], sets: Sequence[list[str] | None]) -> ObservedLabels:
    """The labels' indices, by the task's own names or by the list of aliases that fits the most rows."""
    name_lists = [task.labels, *task.aliases]
    task_names = {name for names in name_lists for name in names}
    counts = Counter(name for names in sets for name in names or ())
    spelling = {name: task_spelling(name, task_names) for name in counts}

    def fitting_rows(names: list[str]) -> int:
        return sum(count for name, count in counts.items() if spelling[name] in names)

    names = max(name_lists, key=fitting_rows)  # of equal ones the first
    index = {name: names.index(spelling[name]) for name in counts if spelling[name] in names}
    shape = (len(cells), len(names)) if task.multilabel else (len(cells),)
    targets, unknown = np.full(shape, NO_LABEL, dtype=np.int64), dict[int, list[str]]()
    for row, row_names in enumerate(sets):
        if row_names is None:
            continue
        if missing := [name for name in row_names if name not in index]:
            unknown[row] = missing
        elif task.multilabel:
            targets[row] = 0
            targets[row, [index[name] for name in row_names]] = 1
        else:
            targets[row] = index[row_names[0]]
    return ObservedLabels(cells, targets, names, unknown)
