"""Dynamic batching: what waits is scored together, by one thread.

In: requests' texts, from an event loop. Out: a future a request, with the scores of its texts in their order. While one
batch is scored the next one gathers, so nobody waits for company. A request with many texts gives a share to each
batch and queues again, so that small ones need not wait for all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.utils import libraries

Score = Callable[[Mapping[str, list[str]]], NDArray[np.floating]]
Part = tuple["Job", int, int]  # a job, and the first and last of its texts that are meant


@dataclass(eq=False)
class Job:
    """A request's texts and what is known of them so far."""

    texts: Mapping[str, list[str]]
    count: int
    scores: NDArray[np.float64]  # (texts, labels)
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[NDArray[np.float64]]
    taken: int = 0
    dropped: bool = False  # nobody waits for it any more

    def settle(self, error: Exception | None = None) -> None:
        """Tell the event loop how it ended."""
        self.loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self.scores)
        else:
            self.future.set_exception(error)


class Batcher:
    """A queue of jobs and the thread that works on it."""

    def __init__(
        self, score: Score, labels: int, rows_at_once: int, tell: Callable[[int], None] = lambda rows: None
    ) -> None:
        self._score, self._labels, self._rows_at_once, self._tell = score, labels, rows_at_once, tell
        self._share = max(1, rows_at_once // 2)  # the most that one job gives to a batch others want to be in
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether anybody works on the queue."""
        return self._thread.is_alive()

    def submit(self, texts: Mapping[str, list[str]]) -> Job:
        """Queue a request's texts; its future is awaited in the event loop that calls this."""
        loop = asyncio.get_running_loop()
        count = len(next(iter(texts.values())))
        job = Job(texts, count, np.empty((count, self._labels)), loop, loop.create_future())
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        libraries.choose_kernels()  # the number of threads is a thread's own
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return
                parts = self._take()
            if parts:
                self._tell(sum(stop - start for _, start, stop in parts))
                self._do(parts)

    def _take(self) -> list[Part]:
        """Stretches of the jobs that wait, the oldest first; what is left of a job queues again."""
        room, parts, unfinished = self._rows_at_once, list[Part](), list[Job]()
        while self._jobs and room:
            job = self._jobs.popleft()
            if job.dropped:
                continue
            most = min(room, self._share) if self._jobs else room
            start, stop = job.taken, min(job.count, job.taken + most)
            job.taken, room = stop, room - (stop - start)
            parts.append((job, start, stop))
            if stop < job.count:
                unfinished.append(job)
        self._jobs.extend(unfinished)
        return parts

    def _do(self, parts: list[Part]) -> None:
        names = parts[0][0].texts
        texts = {name: [text for job, start, stop in parts for text in job.texts[name][start:stop]] for name in names}
        try:
            scores = self._score(texts)
        except Exception as error:  # a request may not take the others with it
            if len(parts) > 1:
                for part in parts:
                    self._do([part])
                return
            parts[0][0].dropped = True
            parts[0][0].settle(error)
            return
        at = 0
        for job, start, stop in parts:
            job.scores[start:stop] = scores[at : at + stop - start]
            at += stop - start
            if stop == job.count:
                job.settle()
