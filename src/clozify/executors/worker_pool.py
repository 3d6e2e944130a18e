"""Schedules jobs over workers in other processes: starts workers, distributes jobs, retries after failures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from clozify.executors.base import Executor
from clozify.executors.job_queue import JobOutcome, JobQueue, QueuedJob
from clozify.runs.jobs import Job, JobResult
from clozify.runs.worker import Worker


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """A worker as the run's main process sees it."""

    slot: int  # index among the workers; decides the GPU and the log
    log: Path
    ready: bool  # jobs can be sent to it
    queued: QueuedJob | None = None  # the job that it runs


Handle = TypeVar("Handle", bound=WorkerHandle)


class WorkerPool(Executor, Generic[Handle]):
    """An executor whose jobs run in workers; a subclass starts, stops and talks to them.

    A worker that dies or fails is replaced, and its job is run again. One that ran out of memory is not replaced:
    fewer models at a time may fit.
    """

    def __init__(self, count: int) -> None:
        self.slots: dict[int, Handle | None] = dict.fromkeys(range(count))

    @abstractmethod
    def start_worker(self, slot: int) -> Handle:
        """Start a worker."""

    @abstractmethod
    def stop_worker(self, handle: Handle) -> None:
        """End a worker, whatever it is doing."""

    @abstractmethod
    def send_job(self, handle: Handle, job: Job) -> None:
        """Send a job to a worker that is ready and idle."""

    @abstractmethod
    def wait_for_outcomes(self) -> list[tuple[Handle, JobOutcome]]:
        """Wait until a worker reports something; returns the outcomes of jobs, if there are any."""

    @property
    def workers(self) -> int:
        """How many jobs run at a time."""
        return len(self.slots)

    @property
    def handles(self) -> list[Handle]:
        """The workers that were started."""
        return [handle for handle in self.slots.values() if handle is not None]

    def start(self, worker: Worker, expected_jobs: int) -> None:  # noqa: ARG002
        """Begin a run; workers are started when there are jobs."""
        self.worker, self.queue = worker, JobQueue(worker.context.log)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.queue.submit(job)

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Distribute the jobs; yields each with its result as it is completed."""
        while self.queue.unfinished:
            self._distribute_jobs()
            for handle, outcome in self.wait_for_outcomes():
                queued, handle.queued = handle.queued, None
                assert queued is not None
                if outcome.result is not None:
                    self.queue.complete()
                    yield queued.job, outcome.result
                else:
                    self._handle_failure(handle, queued, outcome)

    def _distribute_jobs(self) -> None:
        """Send jobs to idle workers; starts as many workers as there are jobs for them."""
        starting = sum(not handle.ready for handle in self.handles)
        for slot, handle in self.slots.items():
            if handle is None and self.queue.pending > starting:
                handle = self.slots[slot] = self.start_worker(slot)
                starting += not handle.ready
            if handle is not None and handle.ready and handle.queued is None:
                handle.queued = self.queue.take()
                if handle.queued is not None:
                    self.send_job(handle, handle.queued.job)

    def _handle_failure(self, handle: Handle, queued: QueuedJob, outcome: JobOutcome) -> None:
        """Raise what the user can correct; else replace the worker and run its job again."""
        if outcome.error is not None:
            raise outcome.error
        self.stop_worker(handle)
        if outcome.kind == "memory" and len(self.slots) > 1:
            del self.slots[handle.slot]
            self.queue.retry_with_fewer_workers(queued, len(self.slots))
            return
        self.slots[handle.slot] = None
        self.queue.retry(queued, outcome.reason, self.shown_log(handle))

    def shown_log(self, handle: Handle) -> str:
        """The address of a worker's log, for messages."""
        return f"{self.worker.folder.address}/workers/{handle.log.name}"
