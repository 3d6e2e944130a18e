"""The interface of an executor, which runs the jobs of a run somewhere."""

from __future__ import annotations

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
