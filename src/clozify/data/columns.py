"""Which columns of a data set are the text, the label and the id, by their names and their content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from clozify.data.readers import is_data_file, open_data
from clozify.data.rows import UNLABELED, to_text
from clozify.errors import DataError, did_you_mean, quoted

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE_ROWS = 2_000  # rows that columns are judged by, evenly spaced over the data
MAX_FIELDS = 3
MAX_LABEL_WORDS = 6  # of the mean label
MAX_LABELS = 1_000
LABEL_NAMES = ("label", "labels", "class", "category", "intent", "topic", "target", "tag", "sentiment", "emotion")
TEXT_NAME = re.compile(
    "(title|headline|subject|summary|question|premise|text|sentence|utterance|query|message|content|body|description|"
    "review|comment|hypothesis|answer|abstract|tweet|post|email|document|article|request|ticket)"
)
ID_NAME = re.compile("(id|uid|guid|uuid|idx|index|key)")


@dataclass(frozen=True)
class Column:
    """A column's name and the texts of a sample of its rows; missing values are left out."""

    name: str
    values: list[str]

    @property
    def words(self) -> float:
        """The mean number of words."""
        return fmean(len(value.split()) for value in self.values)

    @property
    def ends_in_punctuation(self) -> bool:
        """Whether most texts end in a punctuation mark."""
        return fmean(value[-1] in ".!?…\"')" for value in self.values) >= 0.5

    @property
    def asks(self) -> bool:
        """Whether most texts end in a question mark."""
        return fmean(value.endswith("?") for value in self.values) >= 0.5

    @property
    def is_text(self) -> bool:
        """Whether the values are running text: no numbers, addresses or single words."""
        addresses = fmean(bool(re.match(r"(https?://|www\.|\S+@\S+$)", value)) for value in self.values)
        return self.words >= 1.5 and addresses < 0.5

    @property
    def is_label(self) -> bool:
        """Whether the values are short and most of them occur several times."""
        distinct = len(set(self.values))
        return 2 <= distinct <= min(MAX_LABELS, len(self.values) / 2) and self.words <= MAX_LABEL_WORDS

    @property
    def is_id(self) -> bool:
        """Whether the column is called an id and no value occurs twice."""
        return is_called(self, ID_NAME) and len(set(self.values)) == len(self.values)


@dataclass(frozen=True)
class Columns:
    """The columns of a data set that a task uses."""

    fields: list[Column]
    label: Column | None
    id: Column | None


def open_with_header(source: str | Path) -> tuple[Dataset, list[str] | None]:
    """The rows of a file and, where its first line seems to be no header, names for its columns."""
    dataset = open_data(source)
    names = dataset.column_names
    if Path(source).suffix in (".json", ".jsonl", ".parquet") or not is_data_file(Path(source)):
        return dataset, None
    if not any(name.strip().isdecimal() or len(name.split()) > 5 for name in names):
        return dataset, None
    names = [f"text_{index}" for index in range(1, len(names) + 1)]
    return open_data(source, names, names), names


def guess_columns(
    dataset: Dataset, source: str, text: Sequence[str] = (), label: str | None = None, needs_label: bool = True
) -> Columns:
    """The columns of a task: those that the user names and, for the rest, the likeliest ones."""
    names = dataset.column_names
    if unknown := [name for name in [*text, *([label] if label else [])] if name not in names]:
        raise DataError(
            [
                f"The data '{source}' has no column '{name}'{did_you_mean(name, names)}; its columns are "
                f"{quoted(names)}."
                for name in unknown
            ]
        )
    columns = {column.name: column for column in _sample(dataset)}
    rest = [column for column in columns.values() if column.name not in (*text, label)]
    label_column = columns.get(label) if label else _guess_label(rest, source, needs_label)
    rest = [column for column in rest if column is not label_column]
    id_column = next((column for column in rest if column.is_id), None)
    fields = [columns[name] for name in text if name in columns]
    if not fields:
        fields = _guess_fields([column for column in rest if column is not id_column])
    if not fields:
        raise DataError(f"The data '{source}' has no column with texts; name the column with --text.")
    return Columns(fields, label_column, id_column)


def _guess_label(columns: Sequence[Column], source: str, required: bool) -> Column | None:
    """The column that is called a label, else the only one that looks like labels."""
    by_name = {column.name.lower(): column for column in columns if column.words <= MAX_LABEL_WORDS}
    named = [by_name[name] for name in LABEL_NAMES if name in by_name]
    likely = [column for column in columns if column.is_label]
    if named or len(likely) == 1:
        return (named or likely)[0]
    if not required:
        return None
    if likely:
        raise DataError(
            f"Several columns of '{source}' could hold the labels: {quoted(column.name for column in likely)}; name "
            "one with --label."
        )
    raise DataError(
        f"The data '{source}' has no column that looks like labels, but {quoted(column.name for column in columns)}; "
        "name the column with --label, or the labels with --labels A,B,C or --labels-from FILE."
    )


def _guess_fields(columns: Sequence[Column]) -> list[Column]:
    """The first text columns with a usual name, else the one with the longest texts."""
    texts = [column for column in columns if column.is_text]
    named = [column for column in texts if is_called(column, TEXT_NAME)]
    return named[:MAX_FIELDS] or sorted(texts or columns, key=lambda column: -column.words)[:1]


def is_called(column: Column, name: re.Pattern[str]) -> bool:
    """Whether a part of the column's name, such as `title` of `question_title`, is one of these names."""
    return any(name.fullmatch(part) for part in re.split(r"[\W_\d]+", column.name.lower()))


def _sample(dataset: Dataset) -> list[Column]:
    """The columns with texts, numbers or truth values in them."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(SAMPLE_ROWS, len(dataset))).astype(np.int64))
    sample: dict[str, list[Any]] = dataset.select(rows).with_format(None)[:]
    columns = []
    for name, values in sample.items():
        if any(isinstance(value, (list, dict)) for value in values):
            continue
        texts = [to_text(value) for value in values if value is not None]
        if texts := [text for text in texts if text not in UNLABELED]:
            columns.append(Column(name, texts))
    return columns
