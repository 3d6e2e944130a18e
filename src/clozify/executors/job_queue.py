"""What executors with several workers share: the queue of jobs, retries, and what a worker answers.

A job whose worker fails is tried three times before the run ends. A worker runs a job and answers with its outcome:
done, error (something that the user can correct), memory (out of memory) or failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from clozify.errors import ClozifyError, RunError
from clozify.runs.jobs import Job, JobResult
from clozify.runs.tracking import Tracking
from clozify.runs.worker import Worker

ATTEMPTS = 3  # tries of a job before the run ends


@dataclass(eq=False)
class QueuedJob:
    """A job and how often it has failed."""

    job: Job
    failures: int = 0


class JobQueue:
    """The jobs of a run that are not done yet; those submitted while others run come first."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.log = log
        self.pending = 0  # jobs that wait or run
        self._submitted: list[QueuedJob] = []
        self._waiting: list[QueuedJob] = []  # the last is next

    def submit(self, job: Job) -> None:
        """Add a job."""
        self._submitted.append(QueuedJob(job))
        self.pending += 1

    def next(self) -> QueuedJob | None:
        """Remove and return the next job; None when none waits."""
        self._waiting += reversed(self._submitted)
        self._submitted.clear()
        return self._waiting.pop() if self._waiting else None

    def complete(self) -> None:
        """Count a job as done."""
        self.pending -= 1

    def retry_with_fewer_workers(self, queued: QueuedJob, workers: int) -> None:
        """Run a job again after its worker ran out of memory and was removed."""
        self._waiting.append(queued)
        self.log(f"{queued.job.name}  found no memory left; going on with {workers} at once")

    def retry(self, queued: QueuedJob, reason: str, worker_log: str) -> None:
        """Run a failed job again; the third time the run ends."""
        self._waiting.append(queued)
        queued.failures += 1
        self.log(f"{queued.job.name}  failed: {reason} ({queued.failures} of {ATTEMPTS} tries)")
        if queued.failures == ATTEMPTS:
            raise RunError(
                f"'{queued.job.name}' failed {ATTEMPTS} times, at last with: {reason}; see {worker_log}. "
                "What is finished is kept: the same command goes on from there."
            )


@dataclass(frozen=True)
class Outcome:
    """What became of a job in a worker."""

    kind: Literal["done", "error", "memory", "failed"]
    result: JobResult | None = None  # of a job that is done
    reason: str = ""  # of a failure
    error: ClozifyError | None = None  # that the user can correct
    traceback: str = ""  # for the worker's log


def run_job(worker: Worker, job: Job) -> Outcome:
    """Run a job; every exception becomes an outcome."""
    try:
        return Outcome("done", job.run(worker))
    except ClozifyError as error:
        return Outcome("error", error=error)
    except Exception as error:
        text = traceback.format_exc()
        if disk_full := worker.folder.disk_full_error(error):
            return Outcome("error", error=disk_full, traceback=text)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        kind: Literal["memory", "failed"] = "memory" if isinstance(error, torch.OutOfMemoryError) else "failed"
        return Outcome(kind, reason=reason, traceback=text)


class Relay(Tracking):
    """Sends each step of a worker to the run's main process, which has the trackers."""

    def __init__(self, send: Callable[[str, int, float], None]) -> None:
        super().__init__(None)
        self.send = send

    def log_loss(self, name: str, step: int, loss: float) -> None:
        """Send a step's loss."""
        self.send(name, step, loss)
