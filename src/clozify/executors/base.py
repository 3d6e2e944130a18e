"""Where jobs run: the interface of an executor, and the executor that runs jobs in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from clozify.runs.jobs import Job, JobResult
from clozify.runs.worker import Worker


class Executor(Protocol):
    """Runs the jobs of one run."""

    @property
    def workers(self) -> int:
        """How many jobs run at a time."""

    def start(self, worker: Worker, expected_jobs: int) -> None:
        """Begin a run; called once, before the first job is submitted.

        `worker` is the run's state in this process. Processes may be started now for the expected number of jobs.
        """

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Yield every job with its result as it is completed; ends when no job is pending.

        More jobs may be submitted meanwhile.
        """


class InProcess(Executor):
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
