"""A lock on a run in a store, which has no locks: an object with a time that its holder renews.

In: a store. Out: a lease, until it is released. One that was not renewed for two minutes is over, and so is one whose
process has ended on this machine. It is a guard against mistakes, not against malice: two processes that begin within
the same second may both believe to hold it, until the first notices at its next renewal and stops.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from clozify.errors import RunError

LOCK = "lock.json"
RENEWED = 20  # seconds
OVER = 120  # seconds


class Shelf(Protocol):
    """What a lease needs of a store."""

    address: str

    def read(self, name: str) -> bytes | None:
        """A file's content."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""

    def remove(self, name: str) -> None:
        """Take a file away."""


class Lease:
    """Held from the start; `beat` is called whenever it is renewed."""

    def __init__(self, store: Shelf, beat: Callable[[], None], renewed: float = RENEWED, over: float = OVER) -> None:
        self.store, self.beat, self.renewed = store, beat, renewed
        self.token = uuid.uuid4().hex
        self.lost = False
        held = self._held()
        if held is not None and not _ended(held, over):
            raise RunError(
                f"Another process is working on the run '{store.address}' ({held['host']}, process {held['process']}); "
                f"wait for it or name another address. If it was killed, the run is free {over:.0f} seconds after."
            )
        self._write()
        self._released = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Whether the run is still ours; else what we write would mix with what another process writes."""
        if self.lost:
            raise RunError(
                f"Another process has taken over the run '{self.store.address}'; this one stops. What it finished is "
                "kept."
            )

    def release(self) -> None:
        """Let others work on the run."""
        self._released.set()
        self._renewing.join(timeout=self.renewed)  # else it might write once more
        held = self._held()
        if held is not None and held["token"] == self.token:
            self.store.remove(LOCK)

    def _renew(self) -> None:
        while not self._released.wait(self.renewed):
            with suppress(Exception):  # a store that does not answer now may answer next time
                held = self._held()
                if held is not None and held["token"] != self.token:
                    self.lost = True
                    return
                if not self._released.is_set():
                    self._write()
                    self.beat()

    def _held(self) -> dict[str, str] | None:
        content = self.store.read(LOCK)
        try:
            held: dict[str, str] | None = None if content is None else json.loads(content)
        except ValueError:  # cut off in the middle of writing
            return None
        return held

    def _write(self) -> None:
        known = {"token": self.token, "host": socket.gethostname(), "process": str(os.getpid()), "time": time.time()}
        self.store.write(LOCK, json.dumps(known).encode())


def _ended(held: dict[str, str], over: float) -> bool:
    """Whether nobody holds it any more."""
    if time.time() - float(held["time"]) > over:
        return True
    if held["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(held["process"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
