"""Dynamic batching: one thread scores the texts of all waiting requests together.

While a batch is scored, the next one fills up; no request waits for a batch to become full. A request with many texts
is spread over several batches, so that small requests are not delayed by all of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozify.utils import libraries

ScoreFunction = Callable[[Mapping[str, list[str]]], NDArray[np.floating]]  # texts by field -> (texts, labels)


@dataclass(eq=False)
class Job:
    """A request's texts, the scores computed so far, and the future that its handler awaits."""

    texts: Mapping[str, list[str]]  # by field
    count: int
    scores: NDArray[np.float64]  # (texts, labels)
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[NDArray[np.float64]]
    assigned: int = 0  # texts that have been put into a batch
    dropped: bool = False  # the client no longer waits

    def finish(self, error: Exception | None = None) -> None:
        """Set the future's result or error, from any thread."""
        self.loop.call_soon_threadsafe(self._set_future, error)

    def _set_future(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self.scores)
        else:
            self.future.set_exception(error)


class JobSlice(NamedTuple):
    """The texts `start:stop` of a job."""

    job: Job
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many texts it has."""
        return self.stop - self.start


class Batcher:
    """A queue of jobs and the thread that scores them in batches of at most `max_batch_rows` texts."""

    def __init__(
        self,
        score: ScoreFunction,
        labels: int,
        max_batch_rows: int,
        on_batch: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._score, self._labels, self._on_batch = score, labels, on_batch
        self._max_batch_rows = max_batch_rows
        self._max_job_rows = max(1, max_batch_rows // 2)  # of one job in a batch while other jobs wait
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the scoring thread runs."""
        return self._thread.is_alive()

    def submit(self, texts: Mapping[str, list[str]]) -> Job:
        """Queue a request's texts; await the job's future in the calling event loop."""
        loop = asyncio.get_running_loop()
        count = len(next(iter(texts.values())))
        job = Job(texts, count, np.empty((count, self._labels)), loop, loop.create_future())
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Score what is queued, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        libraries.stable_kernels()  # PyTorch's number of threads is set per thread
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return
                batch = self._next_batch()
            if batch:
                self._on_batch(sum(part.size for part in batch))
                self._score_batch(batch)

    def _next_batch(self) -> list[JobSlice]:
        """Slices of the waiting jobs, oldest first; an unfinished job goes to the end of the queue."""
        free, batch, unfinished = self._max_batch_rows, list[JobSlice](), list[Job]()
        while self._jobs and free:
            job = self._jobs.popleft()
            if job.dropped:
                continue
            limit = min(free, self._max_job_rows) if self._jobs else free
            part = JobSlice(job, job.assigned, min(job.count, job.assigned + limit))
            job.assigned, free = part.stop, free - part.size
            batch.append(part)
            if part.stop < job.count:
                unfinished.append(job)
        self._jobs.extend(unfinished)
        return batch

    def _score_batch(self, batch: list[JobSlice]) -> None:
        fields = batch[0].job.texts
        texts = {
            field: [text for job, start, stop in batch for text in job.texts[field][start:stop]] for field in fields
        }
        try:
            scores = self._score(texts)
        except Exception as error:  # one bad request must not fail the others
            if len(batch) > 1:
                for part in batch:
                    self._score_batch([part])
                return
            batch[0].job.dropped = True
            batch[0].job.finish(error)
            return
        offset = 0
        for part in batch:
            part.job.scores[part.start : part.stop] = scores[offset : offset + part.size]
            offset += part.size
            if part.stop == part.job.count:
                part.job.finish()
