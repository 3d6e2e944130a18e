"""The queue of a run's jobs, and the outcome of a job in a worker.

A job whose worker fails is tried three times before the run ends.
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
        self.running = 0  # jobs that were taken and are neither completed nor queued again
        self._submitted: list[QueuedJob] = []  # since a job was last taken
        self._pending: list[QueuedJob] = []  # the last is next

    @property
    def pending(self) -> int:
        """How many jobs wait for a worker."""
        return len(self._submitted) + len(self._pending)

    @property
    def unfinished(self) -> int:
        """How many jobs wait or run."""
        return self.pending + self.running

    def submit(self, job: Job) -> None:
        """Add a job."""
        self._submitted.append(QueuedJob(job))

    def take(self) -> QueuedJob | None:
        """Remove and return the next job, which now counts as running; None when none is pending."""
        self._pending += reversed(self._submitted)
        self._submitted.clear()
        if not self._pending:
            return None
        self.running += 1
        return self._pending.pop()

    def complete(self) -> None:
        """Count a running job as done."""
        self.running -= 1

    def retry_with_fewer_workers(self, queued: QueuedJob, workers: int) -> None:
        """Queue a job again whose worker ran out of memory and was removed; this is not counted as a failure."""
        self._requeue(queued)
        self.log(f"{queued.job.name}  ran out of memory; continuing with {workers} at once")

    def retry(self, queued: QueuedJob, reason: str, worker_log: str) -> None:
        """Queue a failed job again; the third failure raises."""
        self._requeue(queued)
        queued.failures += 1
        self.log(f"{queued.job.name}  failed: {reason} ({queued.failures} of {ATTEMPTS} tries)")
        if queued.failures == ATTEMPTS:
            raise RunError(
                f"'{queued.job.name}' failed {ATTEMPTS} times, the last time with: {reason}; see {worker_log}. "
                "What is finished is kept: give the same command again and the run resumes."
            )

    def _requeue(self, queued: QueuedJob) -> None:
        self.running -= 1
        self._pending.append(queued)


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job in a worker."""

    kind: Literal["done", "error", "memory", "failed"]
    result: JobResult | None = None  # of a job that is done
    reason: str = ""  # of a failure
    error: ClozifyError | None = None  # that the user can correct
    traceback: str = ""  # for the worker's log


def run_job(worker: Worker, job: Job) -> JobOutcome:
    """Run a job; every exception becomes an outcome."""
    try:
        return JobOutcome("done", job.run(worker))
    except ClozifyError as error:
        return JobOutcome("error", error=error)
    except Exception as error:
        text = traceback.format_exc()
        if disk_full := worker.folder.disk_full_error(error):
            return JobOutcome("error", error=disk_full, traceback=text)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        kind: Literal["memory", "failed"] = "memory" if isinstance(error, torch.OutOfMemoryError) else "failed"
        return JobOutcome(kind, reason=reason, traceback=text)


class RelayTracking(Tracking):
    """Sends every logged loss of a worker to the run's main process, which has the trackers."""

    def __init__(self, send: Callable[[str, int, float], None]) -> None:
        super().__init__(None)
        self.send = send

    def log_loss(self, name: str, step: int, loss: float) -> None:
        """Send a step's loss."""
        self.send(name, step, loss)
