"""A lock on a run in an object store: a file with a time that its holder renews.

A lock that was not renewed for two minutes has expired, and so has one whose process has ended on this machine. Object
stores have no atomic test-and-set: two processes that start within the same second may both hold the lock, until the
first notices at its next renewal and stops. It guards against mistakes, not against malice.
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
from dataclasses import asdict, dataclass

from clozify.errors import RunError
from clozify.runs.object_store import ObjectStore

LOCK_FILE = "lock.json"
RENEWAL_SECONDS = 20.0
EXPIRY_SECONDS = 120.0


@dataclass(frozen=True)
class LockHolder:
    """The content of the lock file."""

    token: str
    host: str = ""
    process: str = ""
    time: float = 0.0  # of the last renewal

    def has_expired(self, expiry_seconds: float) -> bool:
        """Whether the lock is free again: not renewed for too long, or its process on this machine has ended."""
        if time.time() - self.time > expiry_seconds:
            return True
        if self.host != socket.gethostname():
            return False
        import psutil

        return not psutil.pid_exists(int(self.process))


class ObjectStoreLock:
    """A lock that is held from its creation and renewed by a thread, which calls `on_renewal` each time."""

    def __init__(
        self,
        store: ObjectStore,
        on_renewal: Callable[[], None],
        renewal_seconds: float = RENEWAL_SECONDS,
        expiry_seconds: float = EXPIRY_SECONDS,
    ) -> None:
        self.store, self.on_renewal, self.renewal_seconds = store, on_renewal, renewal_seconds
        self.token = uuid.uuid4().hex
        self.lost = False
        holder = self._read()
        if holder is not None and not holder.has_expired(expiry_seconds):
            raise RunError(
                f"Another process is working on the run '{store.address}' ({holder.host}, process {holder.process}); "
                "wait for it or name another address. If it was killed, the lock expires "
                f"{expiry_seconds:.0f} seconds after."
            )
        self._write()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise where another process holds the lock now: the results of both would mix."""
        if self.lost:
            raise RunError(
                f"Another process has taken over the run '{self.store.address}'; this one stops. What it finished is "
                "kept."
            )

    def release(self) -> None:
        """Remove the lock file, unless it is another process's."""
        self._released.set()
        self._thread.join(timeout=self.renewal_seconds)  # else it might write once more
        holder = self._read()
        if holder is not None and holder.token == self.token:
            self.store.remove(LOCK_FILE)

    def _renew(self) -> None:
        while not self._released.wait(self.renewal_seconds):
            with suppress(Exception):  # a store that does not answer now may answer next time
                holder = self._read()
                if holder is not None and holder.token != self.token:
                    self.lost = True
                    return
                if not self._released.is_set():
                    self._write()
                    self.on_renewal()

    def _read(self) -> LockHolder | None:
        content = self.store.read(LOCK_FILE)
        try:
            return None if content is None else LockHolder(**json.loads(content))
        except ValueError:  # cut off while it was written
            return None

    def _write(self) -> None:
        holder = LockHolder(self.token, socket.gethostname(), str(os.getpid()), time.time())
        self.store.write(LOCK_FILE, json.dumps(asdict(holder)).encode())
