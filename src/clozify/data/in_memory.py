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

from clozify.config.task import Task
from clozify.data.rows import Rows, missing_column, read_rows, task_spelling, to_text, unknown_fields
from clozify.errors import DataError, did_you_mean, quoted, unknown_names

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset

Texts: TypeAlias = (
    "Sequence[str] | Sequence[Sequence[str]] | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]] "
    "| NDArray[Any] | pd.DataFrame | pd.Series | Dataset | pa.Table"
)
RowSource: TypeAlias = "str | Path | Rows | Texts"  # a file's name, or rows in memory
IN_MEMORY = "rows in memory"  # the source of rows that no file holds

LABEL_TYPES: dict[str, Callable[[str], Any]] = {  # NumPy's dtype.kind of y -> a label's name as such a value
    "U": str,
    "i": int,
    "u": int,
    "f": float,
    "b": {"True": True, "False": False, "true": True, "false": False}.__getitem__,
}


class InputError(DataError, ValueError):
    """Rows or labels in memory that cannot be used; scikit-learn expects a `ValueError`."""


def make_rows(columns: Mapping[str, Sequence[str | int | None]], task: Task, source: str) -> Rows:
    """Rows from each field's texts, and the labels and ids where they are among the columns; messages name `source`."""
    from datasets import Dataset, Features, Value

    types = {name: "int64" if all(type(v) is int for v in values) else "string" for name, values in columns.items()}
    features = Features({name: Value(dtype) for name, dtype in types.items()})
    try:
        dataset = Dataset.from_dict(dict(columns), features)
    except UnicodeEncodeError:
        repaired = {name: [_repair_text(value, source) for value in values] for name, values in columns.items()}
        dataset = Dataset.from_dict(repaired, features)
    return Rows(dataset, task, source)


def _repair_text(value: str | int | None, source: str) -> str | int | None:
    """Text whose UTF-8 bytes Python has read as surrogates, as it does under the locale C, as it was written."""
    try:
        return value.encode("utf-8", "surrogateescape").decode() if isinstance(value, str) else value
    except UnicodeError:
        raise InputError(f"{source} holds {value!a}, which is no valid Unicode; repair the text.") from None


def load_rows(
    data: RowSource,
    task: Task,
    column_mapping: Mapping[str, str] | None = None,
    labels: Any = None,
    name: str = "data",
) -> Rows:
    """Rows from a file or data set (a name), from `Rows`, or from memory.

    In memory they are texts, tuples of a row's texts with or without its label, dicts, a DataFrame, a dict of columns,
    a `datasets.Dataset` or an Arrow table. `labels` belong to rows in memory that have none. Messages call the data
    `name`.
    """
    import pandas as pd
    import pyarrow as pa
    from datasets import Dataset

    if labels is not None and isinstance(data, (str, Path, Rows, Dataset, pa.Table)):
        source = f"the file '{data}'" if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
        raise InputError(
            f"Labels were passed with {source}, which has them in its label column; remove 'labels', or map the "
            f"column with column_mapping={{'{task.label}': COLUMN}}."
        )
    if isinstance(data, Rows):
        return data.with_task(task)
    if isinstance(data, (str, Path)):
        return read_rows(data, task, column_mapping)
    if isinstance(data, (Dataset, pa.Table)):
        return Rows(_as_dataset(data, name), task, IN_MEMORY, column_mapping)
    values: Any = data
    if isinstance(values, Mapping):
        try:
            values = pd.DataFrame(values, dtype=object)  # whole numbers stay exact beside missing values
        except ValueError as error:
            raise InputError(f"{name} is a dict whose values are no columns ({error}); pass a list of dicts.") from None
    elif not hasattr(values, "columns") and hasattr(values, "__len__"):
        values = np.asarray(values).tolist() if hasattr(values, "__array__") else list(values)
        if values and all(isinstance(row, Mapping) for row in values):
            values = pd.DataFrame(values, dtype=object)  # a key that a row lacks is a missing value
        elif values and all(isinstance(row, (list, tuple)) and len(row) == len(task.fields) + 1 for row in values):
            values = pd.DataFrame(values, columns=[*task.fields, task.label], dtype=object)
    if problems := unknown_fields(column_mapping or {}, task):
        raise InputError(problems)
    if hasattr(values, "columns"):
        values = _map_columns(values, column_mapping or {}, task, name)
        labels = values[task.label] if labels is None and task.label in values.columns else labels
    columns: dict[str, Any] = {**extract_columns(values, task, name)}
    if task.id is not None and task.id not in columns and task.id in getattr(values, "columns", ()):
        ids = values[task.id].tolist()
        whole = all(type(row_id) is int and -(2**63) <= row_id < 2**63 for row_id in ids)
        columns[task.id] = ids if whole else _plain_texts(ids)
    if labels is not None:
        columns[task.label] = _plain_texts(labels)
        if len(columns[task.label]) != (count := len(next(iter(columns.values())))):
            raise InputError(f"There are {count} rows, but {len(columns[task.label])} labels; each row needs one.")
    return make_rows(columns, task, IN_MEMORY)


def _as_dataset(data: Any, source: str) -> Dataset:
    """A `datasets.Dataset` with rows, also from an Arrow table."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    if not len(data):
        raise InputError(f"{source} has 0 rows; at least 1 is required.")
    if isinstance(data, Dataset):
        return data
    if len(set(data.column_names)) < len(data.column_names):
        raise InputError(f"{source} has several columns of one name: {quoted(data.column_names)}; rename them.")
    try:
        return Dataset(InMemoryTable(data))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(f"{source} is an Arrow table that Datasets cannot hold ({error}); pass a DataFrame.") from None


def _map_columns(frame: Any, column_mapping: Mapping[str, str], task: Task, source: str) -> Any:
    """The DataFrame with each mapped field's column by the field's name; other columns of that name are left out.

    Rows may lack the label's column: one mapping is for labelled and unlabelled rows.
    """
    names = list(frame.columns)
    missing = {field: column for field, column in column_mapping.items() if column not in names}
    if problems := [
        missing_column(source, *item, list(map(str, names))) for item in missing.items() if item[0] != task.label
    ]:
        raise InputError(problems)
    mapped = {field: column for field, column in column_mapping.items() if field not in missing}
    for column in {*mapped.values(), task.label, task.id}:
        if (count := names.count(column)) > 1:
            raise InputError(f"{source} has {count} columns '{column}'; rename all but one.")
    columns = {field: frame[column] for field, column in mapped.items()}
    return frame.drop(columns=list(column_mapping), errors="ignore").assign(**columns)


def _plain_texts(values: Any) -> list[str | None]:
    """Labels or ids as text; None where a value is missing."""
    import pandas as pd

    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise InputError(f"The labels are {values!r}, not a list; pass one label for each row.")
    values = [value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for value in values]
    return [to_text(value) if not pd.api.types.is_scalar(value) or not pd.isna(value) else None for value in values]


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


def label_texts(y: Any) -> tuple[NDArray[Any], list[str]]:
    """The values of `y` as an array of text, numbers or truth values, and each as text: (rows,) both."""
    import pandas as pd
    from sklearn.utils import column_or_1d  # a second to import, and predictions do not need it
    from sklearn.utils.multiclass import check_classification_targets

    if y is None:
        raise InputError("PetClassifier requires y to be passed, but the target y is None; pass each row's label.")
    values = column_or_1d(np.asarray(y, dtype=object) if hasattr(y, "__array__") else y, warn=True)
    if (missing := np.flatnonzero(pd.isna(values))).size:
        raise InputError(
            f"Input y contains NaN: row {missing[0]} has no label; pass rows without labels as 'unlabeled'."
        )
    values = np.array(values.tolist())  # plain text or numbers, also out of arrays of objects
    check_classification_targets(values)
    return values, [str(int(value) if values.dtype.kind == "f" else value) for value in values.tolist()]  # 1.0 is 1


def encode_labels(y: Any, task: Task) -> tuple[list[str], NDArray[Any], NDArray[np.int64]]:
    """The rows' labels by the task's names; `classes_`, of the type of `y`; and their indices in `task.labels`.

    Classes are sorted: scikit-learn's scorers take the columns of `predict_proba` to be in that order.
    """
    values, texts = label_texts(y)
    kind, labels = values.dtype.kind, task.labels
    if kind == "b":
        texts = [task_spelling(text, {name for names in (labels, *task.aliases) for name in names}) for text in texts]
    distinct = sorted(set(texts))
    fitting = [names for names in [labels, *task.aliases] if set(distinct) <= set(names)]
    if not fitting or kind not in LABEL_TYPES:
        unknown = [text for text in distinct if text not in labels] or distinct
        hint = " If scikit-learn numbered the labels itself, list its numbers in the task's 'aliases'."
        raise InputError(
            f"y holds the label {unknown_names(unknown, labels)}, which the task does not know; its labels are "
            f"{quoted(labels)}.{hint if kind == 'i' else ''}"
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
