"""Writes predictions as CSV, JSONL or Parquet: each row's id, true label (if any), prediction and probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.ids import plain_ids
from clozify.data.rows import Rows
from clozify.errors import DataError, quoted
from clozify.utils.atomic import atomic_write, check_writable

SUFFIXES = (".csv", ".jsonl", ".parquet")


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
    chunks: Iterable[tuple[int, NDArray[np.float64]]],
    decision: Decision,
    with_text: bool = False,
) -> None:
    """Write chunks `(start, probabilities)` of all rows in order; probabilities are (rows, labels).

    `with_text` adds a column for each field of the task. Several labels of a row are a list, in CSV one text.
    """
    check_output(path)
    suffix = path.suffix.lower()
    write_tables(path, (_table(rows, start, scores, decision, suffix, with_text) for start, scores in chunks))


def text_columns(rows: Rows) -> list[str]:
    """The fields as columns of predictions; an error where a field has the name of another column of theirs."""
    own = {"id", "label", "prediction", *(f"probability_{label}" for label in rows.task.labels)}
    if clash := [field for field in rows.task.fields if field in own]:
        raise DataError(f"The field {quoted(clash)} has the name of a column of predictions; write them without text.")
    return rows.task.fields


def write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write Arrow tables with equal columns to one file; its suffix decides the format."""
    with atomic_write(path) as tmp_path:
        _WRITERS[path.suffix.lower()](tmp_path, tables)


def _table(
    rows: Rows, start: int, probabilities: NDArray[np.float64], decision: Decision, suffix: str, with_text: bool
) -> Any:
    """The predictions of consecutive rows; ids keep the type of their column in Parquet, which alone can."""
    import pyarrow as pa

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
    columns["prediction"] = pa.array(names(decision.predict(probabilities)), dtype)
    columns |= {f"probability_{name}": probabilities[:, i].astype(np.float32) for i, name in enumerate(labels)}
    return pa.table(columns)


def _write_csv(path: Path, tables: Iterable[Any]) -> None:
    import pyarrow.csv

    with path.open("wb") as file:
        for index, table in enumerate(tables):
            options = pyarrow.csv.WriteOptions(include_header=index == 0, quoting_style="needed")
            pyarrow.csv.write_csv(table, file, options)


def _write_jsonl(path: Path, tables: Iterable[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for table in tables:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())


def _write_parquet(path: Path, tables: Iterable[Any]) -> None:
    import pyarrow.parquet as pq

    writer = None
    for table in tables:
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
