"""Arrays that need not fit into memory: `.npy` files, written a stretch at a time and read by memory map.

In: parts of an array, in order. Out: an ordinary `.npy` file, as `np.save` would write it; and a file's content as an
array whose pages come from the disk when they are looked at, and go again when their room is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@contextmanager
def npy_writer(path: Path, dtype: DTypeLike, width: int | None = None) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Yields a function that appends rows: numbers, or so many numbers each with a `width`.

    NumPy leaves room in the head of a file for the number of rows, which is filled in at the end.
    """
    kind = np.dtype(dtype)
    rows = 0
    with path.open("wb") as file:
        _write_head(file, kind, 0, width)

        def append(part: NDArray[Any]) -> None:
            nonlocal rows
            rows += len(part)
            file.write(np.ascontiguousarray(part, dtype=kind).data)

        yield append
        file.seek(0)
        _write_head(file, kind, rows, width)


def _write_head(file: IO[bytes], kind: np.dtype[Any], rows: int, width: int | None) -> None:
    shape = (rows,) if width is None else (rows, width)
    head = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, head)


def open_npy(path: Path) -> NDArray[Any]:
    """A file's array, on the disk."""
    return np.asarray(np.load(path, mmap_mode="r"))


def cast_scores(scores: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Scores in fewer bits; what is too large for these becomes the largest number there is, not infinity."""
    kind = np.dtype(dtype)
    if kind == scores.dtype:
        return scores
    largest = np.finfo(kind).max
    return np.clip(scores, -largest, largest).astype(kind)
