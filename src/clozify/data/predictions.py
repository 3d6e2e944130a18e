"""Writes predictions as CSV, JSONL or Parquet: each row's id, true label (if any), prediction and probabilities.

Where the task has groups, also the predicted label's group and the groups' probabilities; where it was asked for, why a
row has no prediction, its prediction set and its out-of-scope score.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.ids import plain_ids
from clozify.data.label_matrix import join_labels
from clozify.data.rows import Rows
from clozify.errors import DataError, quoted
from clozify.utils.atomic import atomic_write, check_writable

JSON_ROWS = 1_024  # rows that are Python objects at a time
SUFFIXES = (".csv", ".jsonl", ".parquet")

ANSWER_COLUMNS = ("abstained", "prediction_set", "out_of_scope")


@dataclass(frozen=True)
class Answers:
    """What was decided about some rows besides their probabilities; None: not asked for."""

    abstained: Sequence[str | None] | None = None  # (rows,): why a row has no prediction, None where it has one
    sets: NDArray[np.bool_] | None = None  # (rows, labels): the labels of each row's prediction set
    out_of_scope: NDArray[np.floating[Any]] | None = None  # (rows,): higher for rows that belong to no label

    def part(self, start: int, stop: int) -> Answers:
        """Of consecutive rows."""
        parts = (self.abstained, self.sets, self.out_of_scope)
        return Answers(*(None if values is None else values[start:stop] for values in parts))  # type: ignore[arg-type]

    def keep(self, values: Sequence[Any]) -> list[Any]:
        """The values of the rows that have a prediction, None for the others."""
        if self.abstained is None:
            return list(values)
        return [value if reason is None else None for value, reason in zip(values, self.abstained, strict=True)]


class PredictedChunk(NamedTuple):
    """Consecutive rows from `start` on: probabilities, (rows, labels), and what was decided."""

    start: int
    probabilities: NDArray[np.float64]
    answers: Answers = Answers()


def check_output(path: Path, *inputs: str | Path, what: str = "Predictions") -> None:
    """Raise an error, before any work is done, where the file cannot be written; `what` starts the sentence."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{what} cannot be written to '{path}'; let its name end in {quoted(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise DataError(f"{what} cannot be written to '{path}': the folder '{path.parent}' does not exist.")
    for data in map(Path, inputs):  # a file, or a folder of shards
        if path.exists() and data.resolve() in (path.resolve(), path.resolve().parent):
            raise DataError(f"{what} cannot be written to '{path}': that is the data; choose another name.")
    if path.is_dir():
        raise DataError(f"{what} cannot be written to '{path}': it is a folder; name a file.")
    try:
        check_writable(path)
    except OSError as error:
        raise DataError(f"{what} cannot be written to '{path}': {error.strerror}.") from None


def write_predictions(
    path: Path,
    rows: Rows,
    chunks: Iterable[PredictedChunk | tuple[int, NDArray[np.float64]]],
    with_text: bool = False,
    top: int | None = None,
    decision: Decision | None = None,
) -> None:
    """Write `PredictedChunk`s of all rows in order, or chunks `(start, probabilities)`.

    `with_text` adds a column for each field of the task. With `top`, each row has that many likeliest labels with their
    probabilities instead of a column for every label. Several labels of a row, which `decision` says, are a list, in
    CSV one text.
    """
    check_output(path)
    suffix, decision = path.suffix.lower(), decision or Decision(rows.task.labels)
    tables = (_table(rows, PredictedChunk(*chunk), decision, suffix, with_text, top) for chunk in chunks)
    write_tables(path, tables)


def text_columns(rows: Rows) -> list[str]:
    """The fields as columns of predictions; an error where a field has the name of another column of theirs."""
    own = {"id", "label", "prediction", *ANSWER_COLUMNS, *(f"probability_{label}" for label in rows.task.labels)}
    if (groups := rows.task.label_groups) is not None:
        own |= {"prediction_group", *(f"group_probability_{name}" for name in groups.names)}
    if clash := [field for field in rows.task.fields if field in own]:
        raise DataError(f"The field {quoted(clash)} has the name of a column of predictions; write them without text.")
    return rows.task.fields


def write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write Arrow tables with equal columns to one file; its suffix decides the format."""
    with atomic_write(path) as tmp_path:
        _WRITERS[path.suffix.lower()](tmp_path, tables)


def _table(rows: Rows, chunk: PredictedChunk, decision: Decision, suffix: str, with_text: bool, top: int | None) -> Any:
    """The predictions of consecutive rows; ids keep the type of their column in Parquet, which alone can."""
    import pyarrow as pa

    start, probabilities, answers = chunk
    stop, labels = start + len(probabilities), rows.task.labels
    ids = rows.id_column(start, stop)
    columns: dict[str, Any] = {"id": ids if suffix == ".parquet" else plain_ids(ids)}
    if with_text:
        columns |= {name: pa.array(rows.texts(name, start, stop), pa.large_string()) for name in text_columns(rows)}
    in_list = decision.multilabel and suffix != ".csv"
    names, dtype = (decision.name_lists, pa.list_(pa.string())) if in_list else (decision.names, pa.string())
    if rows.has_labels:
        truth = np.maximum(rows.targets[start:stop], 0)
        labeled = rows.is_labeled[start:stop]
        columns["label"] = pa.array(
            [name if has_label else None for name, has_label in zip(names(truth), labeled, strict=True)], dtype
        )
    columns["prediction"] = pa.array(answers.keep(names(decision.predict(probabilities))), dtype)
    columns |= _answer_columns(answers, decision, suffix) | _group_columns(rows, probabilities, answers)
    columns |= _probability_columns(labels, probabilities, top)
    return pa.table(columns)


def _answer_columns(answers: Answers, decision: Decision, suffix: str) -> dict[str, Any]:
    """Why each row has no prediction, its prediction set and its out-of-scope score, where they were asked for."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if answers.abstained is not None:
        columns["abstained"] = pa.array(answers.abstained, pa.string())
    if answers.sets is not None:
        sets: list[Any] = decision.name_lists(answers.sets)
        dtype = pa.string() if suffix == ".csv" else pa.list_(pa.string())
        if suffix == ".csv":
            sets = [join_labels(names, decision.separator) for names in sets]
        columns["prediction_set"] = pa.array(sets, dtype)
    if answers.out_of_scope is not None:
        columns["out_of_scope"] = answers.out_of_scope.astype(np.float32)
    return columns


def _group_columns(rows: Rows, probabilities: NDArray[np.float64], answers: Answers) -> dict[str, Any]:
    """The predicted label's group, and every group's probability; nothing where the task has no groups."""
    import pyarrow as pa

    if (groups := rows.task.label_groups) is None:
        return {}
    sums = groups.sum_columns(probabilities).astype(np.float32)  # (rows, groups)
    predicted = answers.keep([groups.by_label[index] for index in probabilities.argmax(axis=-1)])
    return {
        "prediction_group": pa.array(predicted, pa.string()),
        **{f"group_probability_{name}": sums[:, index] for index, name in enumerate(groups.names)},
    }


def _probability_columns(labels: list[str], probabilities: NDArray[np.float64], top: int | None) -> dict[str, Any]:
    """A column for each label; with `top`, the likeliest labels and their probabilities, numbered from 1."""
    import pyarrow as pa

    if top is None:
        return {f"probability_{name}": probabilities[:, i].astype(np.float32) for i, name in enumerate(labels)}
    names, columns, likeliest = pa.array(labels), dict[str, Any](), top_labels(probabilities, top)
    for rank, indices in enumerate(likeliest.T, start=1):
        columns[f"label_{rank}"] = names.take(pa.array(indices))
        columns[f"probability_{rank}"] = probabilities[np.arange(len(indices)), indices].astype(np.float32)
    return columns


def top_labels(probabilities: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """The indices of each row's likeliest labels, the likeliest first, of equal ones the first: (rows, count)."""
    return np.argsort(-probabilities, axis=-1, kind="stable")[:, :count]


def _write_csv(path: Path, tables: Iterable[Any]) -> None:
    import pyarrow.csv

    with path.open("wb") as file:
        for index, table in enumerate(tables):
            options = pyarrow.csv.WriteOptions(include_header=index == 0, quoting_style="needed")
            pyarrow.csv.write_csv(table, file, options)


def _write_jsonl(path: Path, tables: Iterable[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for table in tables:
            for batch in table.to_batches(max_chunksize=JSON_ROWS):
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())


def _write_parquet(path: Path, tables: Iterable[Any]) -> None:
    import pyarrow.parquet as pq

    writer = None
    for table in tables:
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
