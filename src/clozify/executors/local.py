"""Runs a run's jobs in this process: the executor for one model at a time on one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clozify.executors.base import Executor
from clozify.runs.jobs import Job, JobResult
from clozify.runs.worker import Worker


class LocalExecutor(Executor):
    """Runs one job after another in this process, in the order of their submission."""

    workers = 1

    def start(self, worker: Worker, expected_jobs: int) -> None:  # noqa: ARG002
        """Begin a run."""
        self.worker = worker
        self.jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.jobs.append(job)

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Run the jobs; yields each with its result."""
        while self.jobs:
            job = self.jobs.popleft()
            yield job, job.run(self.worker)
