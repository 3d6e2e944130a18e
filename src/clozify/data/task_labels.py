"""Labels from a file, for tasks that do not name theirs: `--labels-from`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clozify.config.task import Task, TaskSource, build_task, read_task
from clozify.config.task import load_task as load_complete_task
from clozify.data.readers import is_data_file, open_data
from clozify.data.rows import UNLABELED, missing_column, to_text
from clozify.errors import DataError, did_you_mean, quoted

if TYPE_CHECKING:
    from datasets import Dataset


def load_task(
    task: TaskSource,
    labels_from: str | Path | None = None,
    column_mapping: Mapping[str, str] | None = None,
) -> Task:
    """A task from a TOML file, from a dict with the entries of such a file, or by the name of one that is shipped.

    A dict needs `fields`, `patterns` and `labels`, a list of names or the words of each label:
    `{"fields": ["text"], "patterns": ["It was {mask}. {text}"], "labels": {"good": "great", "bad": "terrible"}}`.

    - `labels_from`: data with a label column, or a text file with one label a line. Labels that the task lacks are
      added, with their names as words.
    - `column_mapping`: the data's column for the label, as in `{"label": "topic"}`.
    """
    if labels_from is None:
        return load_complete_task(task)
    content, source = read_task(task)
    label = content.get("label", "label")
    column = dict(column_mapping or {}).get(label, label)
    columns = content.get("columns")
    labels = read_labels(labels_from, str(column), columns if isinstance(columns, list) else None)
    return build_task(content, source, labels)


def read_labels(source: str | Path, label: str = "label", columns: Sequence[str] | None = None) -> list[str]:
    """The names of labels in a file.

    Those of a data file's label column are sorted, so that the order of its rows does not matter; rows without a label
    count for nothing. Those of a text file, one a line, keep their order. `columns` names the columns of CSV and TSV
    files without a header.
    """
    path = Path(source)
    if not path.exists() and path.suffix and "@" not in str(source):
        near = did_you_mean(str(path), [str(file) for file in path.parent.glob("*")])
        raise DataError(f"The file with the labels, '{source}', does not exist{near}; name one that does.")
    if path.is_file() and not is_data_file(path):
        return _read_lines(path)
    dataset = open_data(source, columns, [label])
    if label not in dataset.column_names:
        advice = f" To read the labels from another column, map it: --map {label}=COLUMN."
        raise DataError(missing_column(str(source), label, label, dataset.column_names) + advice)
    names = label_names(dataset, label, str(source))
    if not names:
        raise DataError(f"The column '{label}' of '{source}' has no labels; name a file with labelled rows.")
    return names


def label_names(dataset: Dataset, column: str, source: str) -> list[str]:
    """The distinct labels of a column, sorted, numbers by their value."""
    try:
        values = dataset.unique(column)
    except NotImplementedError:  # Arrow's: lists and structures
        raise DataError(
            f"The label column '{column}' of '{source}' holds {dataset.features[column]}; a label is text or a number."
        ) from None
    if type(dataset.features[column]).__name__ == "Json":  # mixed types, each value as JSON text
        values = [None if value is None else json.loads(value) for value in values]
    return sorted_labels({to_text(value) for value in values if value is not None} - UNLABELED)


def sorted_labels(names: Iterable[str]) -> list[str]:
    """Labels in the order of their names; numbers in that of their values."""
    return sorted(names, key=lambda name: (int(name), name) if name.isdecimal() else (-1, name))


def _read_lines(path: Path) -> list[str]:
    """The labels of a text file, one a line; empty lines are skipped."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"The file '{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    names = list(filter(None, lines))
    if not names:
        raise DataError(f"The file '{path}' has no labels; write one a line.")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"The file '{path}' has the label {quoted(twice)} twice; remove one.")
    return names
