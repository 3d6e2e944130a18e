"""Progress bars with a rate and the time left, for work that takes longer than two seconds.

Nothing is shown where the error stream is not a terminal, so logs and pipes stay clean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 2.0  # seconds before a bar appears


@contextmanager
def progress(description: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of units just done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield lambda count: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(description, total=total, rate="")
    started = time.monotonic()
    done = 0
    visible = False

    def advance(count: int) -> None:
        nonlocal done, visible
        done += count
        seconds = time.monotonic() - started
        if not visible and seconds > DELAY:
            bar.start()
            visible = True
        bar.update(task, advance=count, rate=f"{done / max(seconds, 1e-9):,.0f} {unit}/s")

    try:
        yield advance
    finally:
        if visible:
            bar.stop()
