"""Arrays in `.npy` files that need not fit into memory: written a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def create_npy(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """A new `.npy` file of this shape as a writable memory map; the rows may be filled in any order."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)


@contextmanager
def npy_writer(path: Path, dtype: DTypeLike, width: int | None = None) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Yields a function that appends rows to a file whose final length is not known; `width` numbers a row, or one.

    The header is written twice: NumPy pads it, so the final number of rows fits. Where the number of rows is known,
    use `create_npy`.
    """
    dtype = np.dtype(dtype)
    rows = 0
    with path.open("wb") as file:
        _write_header(file, dtype, 0, width)

        def append(chunk: NDArray[Any]) -> None:
            nonlocal rows
            rows += len(chunk)
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)

        yield append
        file.seek(0)
        _write_header(file, dtype, rows, width)


def _write_header(file: IO[bytes], dtype: np.dtype[Any], rows: int, width: int | None) -> None:
    shape = (rows,) if width is None else (rows, width)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def cast_scores(scores: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Scores in another dtype; those beyond its range become its largest finite number, not infinity."""
    target = np.dtype(dtype)
    if target == scores.dtype:
        return scores
    largest = np.finfo(target).max
    return np.clip(scores, -largest, largest).astype(target)
