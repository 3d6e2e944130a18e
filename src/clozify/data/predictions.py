"""Predictions as a file that joins back to the input: the row's id, the label, every label's probability.

In: an id, a label and probabilities for each row, a stretch at a time. Out: CSV, JSONL or Parquet, written beside
its place and moved there when whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import NO_LABEL, Rows
from clozify.errors import DataError, quoted
from clozify.utils.atomic import atomic_write, check_writable

KINDS = (".csv", ".jsonl", ".parquet")


def check_output(path: Path, *inputs: str | Path, what: str = "Predictions") -> None:
    """Fail before the work, not after it, where the file could not be written; `what` is to be written."""
    if path.suffix.lower() not in KINDS:
        raise DataError(f"{what} cannot be written to '{path}'; let its name end in {quoted(KINDS)}.")
    if not path.parent.is_dir():
        raise DataError(f"{what} cannot be written to '{path}': the folder '{path.parent}' does not exist.")
    for place in map(Path, inputs):
        if path.exists() and (path.resolve() == place.resolve() or path.resolve().parent == place.resolve()):
            raise DataError(f"{what} cannot be written to '{path}': that is the data; choose another name.")
    if path.is_dir():
        raise DataError(f"{what} cannot be written to '{path}': it is a folder.")
    try:
        check_writable(path)
    except OSError as error:
        raise DataError(f"{what} cannot be written to '{path}': {error.strerror}.") from None


def write_predictions(path: Path, rows: Rows, chunks: Iterable[tuple[int, NDArray[np.float64]]]) -> None:
    """Write `(start, probabilities)` stretches; probabilities are (rows, labels)."""
    check_output(path)
    write_tables(path, (_table(rows, start, part) for start, part in chunks))


def write_tables(path: Path, tables: Iterable[Any]) -> None:
    """Write Arrow tables of one kind as one file, in the form that its name says."""
    with atomic_write(path) as tmp_path:
        _WRITERS[path.suffix.lower()](tmp_path, tables)


def _table(rows: Rows, start: int, probabilities: NDArray[np.float64]) -> Any:
    import pyarrow as pa

    stop, labels = start + len(probabilities), rows.task.labels
    columns: dict[str, Any] = {"id": pa.array(rows.ids(start, stop))}
    if rows.has_labels:
        known = rows.labels[start:stop]
        columns["label"] = pa.array([None if n == NO_LABEL else labels[n] for n in known], pa.string())
    columns["prediction"] = [labels[n] for n in probabilities.argmax(axis=-1)]
    columns |= {f"probability_{label}": probabilities[:, n].astype(np.float32) for n, label in enumerate(labels)}
    return pa.table(columns)


def _write_csv(path: Path, tables: Iterable[Any]) -> None:
    import pyarrow.csv

    with path.open("wb") as file:
        for number, table in enumerate(tables):
            options = pyarrow.csv.WriteOptions(include_header=number == 0, quoting_style="needed")
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
