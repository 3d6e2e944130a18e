"""Memory that a process holds but does not use."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def return_freed_memory() -> None:
    """Give memory that is free back to the system, where the C library is glibc; elsewhere nothing is done.

    Trainings on rows of many lengths allocate tensors of many sizes. Small allocations that last, such as oneDNN's
    cached primitives for each shape, keep the freed ones from being joined, so the process grows to several times the
    size of its tensors (benchmarks/training_memory.py).
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
