"""Progress with a rate and the time left, on the error stream.

- On a terminal: a bar, for work that takes longer than two seconds.
- In a notebook: tqdm's bar.
- Elsewhere (nohup, CI, pipes): a line every 30 seconds, so that a log shows that a long step is alive.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

DELAY = 2.0  # seconds before a bar appears
LINE_EVERY = 30.0  # seconds
_is_hidden: ContextVar[bool] = ContextVar("is_hidden", default=False)


class Display(Protocol):
    """Shows the progress of one step."""

    def advance(self, count: int) -> None:
        """Take the number of units just done."""

    def close(self) -> None:
        """Remove the display."""


@contextmanager
def progress(description: str, total: int, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of units just done."""
    if _is_hidden.get():
        yield lambda count: None
        return
    display = _choose_display()(description, total, unit)
    try:
        yield display.advance
    finally:
        display.close()


@contextmanager
def hide_progress() -> Iterator[None]:
    """Nothing shows progress within the block."""
    token = _is_hidden.set(True)
    try:
        yield
    finally:
        _is_hidden.reset(token)


def _choose_display() -> Callable[[str, int, str], Display]:
    from rich.console import Console

    if Console().is_jupyter:
        return NotebookBar
    return TerminalBar if sys.stderr.isatty() else TimedLines


class TerminalBar:
    """Rich's bar."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()
        console = Console(stderr=True)
        self.bar = Progress(TextColumn("{task.description}"), *columns, console=console, transient=True)
        self.task = self.bar.add_task(description, total=total, rate="")
        self.unit, self.done, self.visible, self.started = unit, 0, False, time.monotonic()

    def advance(self, count: int) -> None:
        """Move the bar, which appears after `DELAY` seconds."""
        self.done += count
        seconds = time.monotonic() - self.started
        if not self.visible and seconds > DELAY:
            self.bar.start()
            self.visible = True
        self.bar.update(self.task, advance=count, rate=f"{self.done / max(seconds, 1e-9):,.0f} {self.unit}/s")

    def close(self) -> None:
        """Remove the bar."""
        if self.visible:
            self.bar.stop()


class NotebookBar:
    """tqdm's bar: a widget where ipywidgets is installed, else text."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        from tqdm.auto import tqdm

        self.bar: Any = tqdm(desc=description, total=total, unit=f" {unit}", delay=DELAY, leave=False)

    def advance(self, count: int) -> None:
        """Move the bar."""
        self.bar.update(count)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()


class ProgressLines:
    """A line for every `LINE_EVERY` seconds that passed by `clock`."""

    def __init__(
        self,
        description: str,
        total: int,
        unit: str,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.clock, self.write = clock, write or _write_line
        self.done, self.started = 0, clock()
        self.due = self.started + LINE_EVERY

    def advance(self, count: int) -> None:
        """Count units."""
        self.done += count

    def write_if_due(self) -> None:
        """Write a line, if the last one is `LINE_EVERY` seconds ago."""
        now = self.clock()
        if now < self.due:
            return
        self.due = now + LINE_EVERY
        seconds = now - self.started
        line = f"{self.description}: {self.done:,} of {self.total:,} {self.unit} in {_minutes(seconds)}"
        if self.done:
            left = max(self.total - self.done, 0) * seconds / self.done
            line += f", about {_minutes(left)} left"
        self.write(line)


class TimedLines(ProgressLines):
    """Lines that a thread writes, also while a single unit takes long."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        super().__init__(description, total, unit)
        self.closed = threading.Event()
        threading.Thread(target=self._run, name="progress", daemon=True).start()

    def _run(self) -> None:
        while not self.closed.wait(max(self.due - self.clock(), 0.0)):
            self.write_if_due()

    def close(self) -> None:
        """End the thread."""
        self.closed.set()


def _write_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:,.0f} min"
