"""Progress that a person can read: a bar with a rate and the time left, for what takes longer than two seconds.

Silent where the error stream is not a terminal, so logs and pipes stay clean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds before a bar appears


@contextmanager
def progress(what: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of units just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(what, total=total, rate="")
    began = time.monotonic()
    done = 0
    shown = False

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        seconds = time.monotonic() - began
        if not shown and seconds > PATIENCE:
            bar.start()
            shown = True
        bar.update(task, advance=count, rate=f"{done / max(seconds, 1e-9):,.0f} {unit}/s")

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
