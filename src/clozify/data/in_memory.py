"""Rows and labels from memory: lists, arrays, Series, DataFrames and dicts.

Every row is checked. An error names the first bad row and is a `ValueError` too, as callers from scikit-learn expect.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from clozify.config.task import Task
from clozify.data.rows import Rows, read_rows
from clozify.errors import DataError, did_you_mean, quoted

if TYPE_CHECKING:
    import pandas as pd

Texts: TypeAlias = "Sequence[str] | Sequence[Mapping[str, str]] | NDArray[Any] | pd.DataFrame | pd.Series"
RowSource: TypeAlias = "str | Path | Rows | Texts"  # a file's name, or rows in memory

LABEL_TYPES: dict[str, Callable[[str], Any]] = {  # NumPy's dtype.kind of y -> a label's name as such a value
    "U": str,
    "i": int,
    "u": int,
    "f": float,
    "b": {"True": True, "False": False}.__getitem__,
}


class InputError(DataError, ValueError):
    """Rows or labels in memory that cannot be used; scikit-learn expects a `ValueError`."""


def make_rows(columns: dict[str, list[str]], task: Task, source: str) -> Rows:
    """Rows from each field's texts, and the labels where they are among the columns; messages name `source`."""
    from datasets import Dataset

    try:
        return Rows(Dataset.from_dict(columns), task, source)
    except UnicodeEncodeError as error:
        raise InputError(f"{source} holds {error.object!r}, which is no valid Unicode; repair the text.") from None


def load_rows(data: RowSource, task: Task, column_mapping: Mapping[str, str] | None = None, labels: Any = None) -> Rows:
    """Rows from a file or data set (a name), from `Rows`, or from memory: texts, dicts by field, or a DataFrame.

    `labels` belong to rows in memory; a DataFrame's label column serves too.
    """
    if isinstance(data, Rows):
        return data.with_task(task)
    if isinstance(data, (str, Path)):
        return read_rows(data, task, column_mapping)
    texts: Any = data
    if hasattr(texts, "columns"):
        texts = texts.rename(columns={column: field for field, column in (column_mapping or {}).items()})
        if labels is None and task.label in texts.columns:
            labels = texts[task.label]
    columns = extract_columns(texts, task, "data")
    if labels is not None:
        names, _, _ = encode_labels(labels, task)
        if len(names) != (count := len(next(iter(columns.values())))):
            raise InputError(f"There are {count} rows, but {len(names)} labels; each row needs one.")
        columns[task.label] = names
    return make_rows(columns, task, "rows in memory")


def extract_columns(X: Any, task: Task, source: str) -> dict[str, list[str]]:  # noqa: N803
    """Each field's texts from texts, dicts, a 2-D array or a DataFrame; messages name `source`."""
    sized = hasattr(X, "__len__") and getattr(X, "shape", None) != ()
    if isinstance(X, (str, bytes, Mapping)) or hasattr(X, "toarray") or not sized:
        description = "one text" if isinstance(X, str) else f"of the type {type(X).__name__}"
        raise InputError(f"{source} is {description}, not rows; pass a list of texts or a DataFrame.")
    if not len(X):
        raise InputError(f"{source} has 0 rows; at least 1 is required.")
    columns: dict[str, list[Any]]
    if hasattr(X, "columns"):
        present = [name for name in task.fields if name in X.columns or name not in task.optional]
        for name in present:
            if (count := list(X.columns).count(name)) != 1:
                raise InputError(
                    f"{source} has {count} columns '{name}'{did_you_mean(name, map(str, X.columns))}; the fields are "
                    f"{quoted(task.fields)}, the columns {quoted(X.columns)}."
                )
        columns = {name: list(X[name]) for name in present}
    else:
        columns = _split_fields(np.asarray(X).tolist() if hasattr(X, "__array__") else list(X), task, source)
    return {name: _check_texts(values, name, name in task.optional, source) for name, values in columns.items()}


def _split_fields(rows: list[Any], task: Task, source: str) -> dict[str, list[Any]]:
    """Each field's values in rows that are dicts, sequences of texts, or (for one field) texts."""
    fields = task.fields
    for index, row in enumerate(rows):
        if type(row) is not type(rows[0]) and {type(row), type(rows[0])} & {dict, list, tuple}:
            raise InputError(
                f"Row {index} of {source} is a {type(row).__name__}, row 0 a {type(rows[0]).__name__}; pass one type "
                "of row."
            )
        if isinstance(row, dict) and (missing := [n for n in fields if n not in row and n not in task.optional]):
            raise InputError(f"Row {index} of {source} lacks the field '{missing[0]}'; it has {quoted(row)}.")
        if not isinstance(row, dict) and (width := len(row) if isinstance(row, (list, tuple)) else 1) != len(fields):
            raise InputError(
                f"Row {index} of {source} has {width} columns, but the task has {len(fields)} fields: {quoted(fields)};"
                " pass a DataFrame, dicts, or columns in this order."
            )
    if isinstance(rows[0], dict):
        return {name: [row.get(name) for row in rows] for name in fields}
    if isinstance(rows[0], (list, tuple)):
        return {name: list(values) for name, values in zip(fields, zip(*rows, strict=True), strict=True)}
    return {fields[0]: rows}


def _check_texts(values: list[Any], field: str, optional: bool, source: str) -> list[str]:
    """The values as text; a missing value of an optional field is empty."""
    import pandas as pd

    missing = pd.isna(np.fromiter(values, dtype=object, count=len(values)))
    for index, value in enumerate(values):
        if missing[index] and not optional:
            raise InputError(
                f"Row {index} of {source} has no text in the field '{field}' ({value}); remove the row or pass an "
                "empty text."
            )
        if not missing[index] and not isinstance(value, str):
            raise InputError(
                f"Row {index} of {source} holds {value!r} in the field '{field}', which is of the type "
                f"{type(value).__name__}; pass text."
            )
    return ["" if is_missing else str(value) for value, is_missing in zip(values, missing, strict=True)]


def encode_labels(y: Any, task: Task) -> tuple[list[str], NDArray[Any], NDArray[np.int64]]:
    """The rows' labels by the task's names; `classes_`, of the type of `y`; and their indices in `task.labels`.

    Classes are sorted: scikit-learn's scorers take the columns of `predict_proba` to be in that order.
    """
    import pandas as pd

    if y is None:
        raise InputError("PetClassifier requires y to be passed, but the target y is None; pass each row's label.")
    values = column_or_1d(np.asarray(y, dtype=object) if hasattr(y, "__array__") else y, warn=True)
    if (missing := np.flatnonzero(pd.isna(values))).size:
        raise InputError(
            f"Input y contains NaN: row {missing[0]} has no label; pass rows without labels as 'unlabeled'."
        )
    values = np.array(values.tolist())  # plain text or numbers, also out of arrays of objects
    check_classification_targets(values)
    kind, labels = values.dtype.kind, task.labels
    texts = [str(int(value) if kind == "f" else value) for value in values.tolist()]  # 1.0 is 1
    distinct = sorted(set(texts))
    fitting = [names for names in [labels, *task.aliases] if set(distinct) <= set(names)]
    if not fitting or kind not in LABEL_TYPES:
        unknown = [text for text in distinct if text not in labels] or distinct
        hint = " If scikit-learn numbered the labels itself, list its numbers in the task's 'aliases'."
        raise InputError(
            f"y holds the label {quoted(unknown, 5)}, which the task does not know{did_you_mean(unknown[0], labels)}; "
            f"its labels are {quoted(labels)}.{hint if kind == 'i' else ''}"
        )
    names = fitting[0]
    if len({tuple(other.index(text) for text in distinct) for other in fitting}) > 1:
        warnings.warn(
            f"The labels {quoted(distinct, 5)} fit {quoted(names, 5)} as well as {quoted(fitting[1], 5)}; the first is "
            "taken. If that is wrong, change 'aliases' in the task.",
            stacklevel=3,
        )
    try:
        classes = np.array([LABEL_TYPES[kind](name) for name in names])
    except (ValueError, KeyError):
        raise InputError(
            f"y holds {values.dtype.name} values, which not all of the labels {quoted(names)} are; pass labels as text."
        ) from None
    order = np.argsort(classes)
    return [labels[names.index(text)] for text in texts], classes[order], order
