"""Runs every job in all processes that Accelerate's launcher has started: they train one model together.

Rank 0 runs the command, broadcasts each job, and writes its results; the other ranks run the same job on their slice
of the rows (`clozify.utils.process_group`). When one process fails the launcher ends all of them, and the run resumes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from clozify.errors import ClozifyError
from clozify.executors.local import LocalExecutor
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import Job, JobResult
from clozify.runs.plan import Plan
from clozify.runs.tracking import Tracking
from clozify.runs.worker import Worker
from clozify.utils.process_group import ProcessGroup, use_group

BROADCAST_TIMEOUT = timedelta(days=7)  # the other ranks wait while rank 0 works without them
EXIT_SECONDS = 60  # that the launcher has to end a rank after rank 0 failed


def launched_processes() -> int:
    """How many processes the launcher has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def is_worker_rank() -> bool:
    """Whether the launcher has started this process as another rank than 0."""
    return launched_processes() > 1 and os.environ.get("RANK", "0") != "0"


def launch_device(devices: str | int) -> str:
    """The kind of device that every rank works on."""
    return "cuda" if devices != "cpu" and torch.cuda.is_available() else "cpu"


def _join_group(device: str) -> ProcessGroup:
    """Initialise `torch.distributed`; returns when all ranks have."""
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu", timeout=BROADCAST_TIMEOUT)
    return ProcessGroup(state.process_index, state.num_processes, str(state.device))


def _broadcast(content: Any = None) -> Any:
    """The content of rank 0, in every rank."""
    contents = [content]
    torch.distributed.broadcast_object_list(contents)
    return contents[0]


class AccelerateExecutor(LocalExecutor):
    """The executor of rank 0: one job after another, each in all ranks together."""

    def __init__(self, device: str) -> None:
        self.device, self.has_sent_plan = device, False

    def __enter__(self) -> AccelerateExecutor:
        self.process_group = _join_group(self.device)
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:  # else this process ends, and the launcher ends the others
            _broadcast(None)
            torch.distributed.destroy_process_group()

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Run the jobs; yields each with its result."""
        while self.jobs:
            job = self.jobs.popleft()
            if not self.has_sent_plan:
                _broadcast((self.worker.plan, self.worker.folder.opener()))
                self.has_sent_plan = True
            _broadcast(job)
            with use_group(self.process_group):
                result = job.run(self.worker)
            yield job, result


def run_worker_rank(devices: str | int) -> None:
    """Main loop of the other ranks: receives the plan, then one job after another, until there is none."""
    device = launch_device(devices)
    process_group = _join_group(device)
    first_message: tuple[Plan, Callable[[], RunFolder]] | None = _broadcast()
    if first_message is not None:
        plan, open_folder = first_message
        worker = Worker(plan, ReadOnlyRunFolder(open_folder()), RunContext(device, tracking=NullTracking(None)))
        while (job := _broadcast()) is not None:
            try:
                with use_group(process_group):
                    job.run(worker)
            except ClozifyError:  # rank 0 meets it too and reports it; the launcher then ends this process
                time.sleep(EXIT_SECONDS)
                raise
    torch.distributed.destroy_process_group()


class NullTracking(Tracking):
    """No progress bar and no trackers: rank 0 has them."""

    @contextmanager
    def training(self, name: str, steps: int) -> Iterator[Callable[[int, float | None], None]]:  # noqa: ARG002
        """Yield a function that ignores losses."""
        yield lambda step, loss: None


class ReadOnlyRunFolder(RunFolder):
    """A run's folder that is read but not written to: rank 0 writes the results."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.path, self.address, self.finished_jobs = folder, folder.path, folder.address, []
        self._intact = set()

    def job_path(self, kind: str, key: str) -> Path:
        """The folder of a job's results."""
        return self.folder.job_path(kind, key)

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """Yield a folder that is thrown away; but the token cache is written by the first rank that needs it."""
        if kind == "tokens":
            with self.folder.writing(kind, key) as tmp_path:
                yield tmp_path
            return
        scratch = Path(tempfile.mkdtemp(prefix="clozify-"))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
