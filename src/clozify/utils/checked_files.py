"""Reads files that clozify has written; a damaged one raises a `RunError` that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from clozify.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

M = TypeVar("M", bound=BaseModel)


@contextmanager
def naming_damaged(path: Path) -> Iterator[None]:
    """Turn the errors of a file that is cut off or garbled into a `RunError` that names it."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RunError(_message(path, f"{where}: {first['msg']}" if where else first["msg"])) from None
    except (ValueError, EOFError, KeyError, TypeError, RecursionError, SyntaxError, TokenError) as error:
        raise RunError(_message(path, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")) from None


def _message(path: Path, reason: str) -> str:
    return (
        f"The file '{path}' is damaged or of another version of clozify ({reason.rstrip('.')}); give the training "
        "command again: it computes what is missing."
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    with naming_damaged(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"not an object, but {type(content).__name__}")
        return content


def read_record(path: Path, record: type[M]) -> M:
    """The content of a JSON file as a Pydantic model."""
    with naming_damaged(path):
        return record.model_validate_json(path.read_bytes())


def open_npy(path: Path) -> NDArray[Any]:
    """The array of a `.npy` file as a read-only memory map."""
    with naming_damaged(path):
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))


def read_parquet(path: Path, columns: list[str] | None = None, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """The batches of rows of a Parquet file, of `batch_rows` at most."""
    import pyarrow.parquet as pq

    with naming_damaged(path):
        try:
            yield from pq.ParquetFile(path).iter_batches(batch_rows, columns=columns)
        except OSError as error:
            if error.errno is not None:  # of the system; Arrow's errors have no number
                raise
            raise ValueError(error) from None
