"""What every executor with workers shares: who does what, how often it failed, and what a worker answers.

In: pieces of work. Out: which is next, and the end of the run where a piece has failed three times. A worker does a
piece and answers in one word: done, error (the user can mend it), memory (there was none left) or failed.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from clozify.errors import ClozifyError, RunError
from clozify.runs.plan import Plan
from clozify.runs.tracking import Tracking
from clozify.runs.worker import Work, WorkerContext

ATTEMPTS = 3  # before a piece of work is given up


class Ledger:
    """Which pieces of work are waiting, and how often each has failed."""

    def __init__(self, works: Sequence[Work], say: Callable[[str], None]) -> None:
        self.works, self.say = works, say
        self.done = 0
        self.waiting: list[int] = []  # the last is next
        self._known = 0
        self._failures: Counter[int] = Counter()
        self.look()

    @property
    def left(self) -> int:
        """How many pieces are not done yet."""
        return len(self.works) - self.done

    def look(self) -> None:
        """See what was added to the work; it is done first."""
        self.waiting += range(self._known, len(self.works))[::-1]
        self._known = len(self.works)

    def without_memory(self, place: int, workers: int) -> None:
        """A worker found no memory left and is gone; the piece is done by one of the others."""
        self.waiting.append(place)
        self.say(f"{self.works[place].name}  found no memory left; going on with {workers} at once")

    def failed(self, place: int, reason: str, log: str) -> None:
        """A piece is to be done again; the third time the run ends."""
        self.waiting.append(place)
        self._failures[place] += 1
        name, failures = self.works[place].name, self._failures[place]
        self.say(f"{name}  failed: {reason} ({failures} of {ATTEMPTS} tries)")
        if failures == ATTEMPTS:
            raise RunError(
                f"'{name}' failed {ATTEMPTS} times, at last with: {reason}; see {log}. "
                "What is finished is kept: the same command goes on from there."
            )


@dataclass(frozen=True)
class Answer:
    """What became of a piece of work."""

    kind: Literal["done", "error", "memory", "failed"]
    said: str = ""  # what to say of it, or the reason
    error: ClozifyError | None = None
    story: str = ""  # the traceback, for a log


def answer(bench: WorkerContext, piece: Work) -> Answer:
    """Do a piece of work; whatever happens is an answer."""
    try:
        return Answer("done", piece.do(bench))
    except ClozifyError as error:
        return Answer("error", error=error)
    except Exception as error:
        story = traceback.format_exc()
        if full := bench.folder.disk_full_error(error):
            return Answer("error", error=full, story=story)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Answer("memory" if isinstance(error, torch.OutOfMemoryError) else "failed", reason, story=story)


def sendable(plan: Plan) -> Plan:
    """The plan for a worker, which speaks through what it answers."""
    return replace(plan, say=_unheard, trackers=())


def _unheard(line: str) -> None:
    """Nobody listens in a worker."""


class Relay(Tracking):
    """Hands on each step of a worker; the trackers are with the run's own process."""

    def __init__(self, hand_on: Callable[[str, int, float], None]) -> None:
        super().__init__(None)
        self.hand_on = hand_on

    def log_loss(self, name: str, step: int, loss: float) -> None:
        """Hand it on."""
        self.hand_on(name, step, loss)
