"""Processes that Accelerate's launcher has started, which train one model together.

In: pieces of work, in the first process. Out: each one's results in the run's folder, written by the first process. It
runs the command, and sends each piece to the others, which do the same on their share of the rows (`company.py`). The
launcher ends all of them when one fails; the run resumes.
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
from clozify.executors.base import InProcess
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import Job, JobResult
from clozify.runs.plan import Plan
from clozify.runs.tracking import Tracking
from clozify.runs.worker import Worker
from clozify.utils.process_group import ProcessGroup, use_group

PATIENCE = timedelta(days=7)  # the others wait as long while the first process works alone


def launched() -> int:
    """How many processes the launcher has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def is_follower() -> bool:
    """Whether this is one of the others: it does what the first process sends, and nothing else."""
    return launched() > 1 and os.environ.get("RANK", "0") != "0"


def device_of(devices: str | int) -> str:
    """What each process works on."""
    return "cuda" if devices != "cpu" and torch.cuda.is_available() else "cpu"


def _meet(device: str) -> ProcessGroup:
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu", timeout=PATIENCE)
    return ProcessGroup(state.process_index, state.num_processes, str(state.device))


def _pass_on(content: Any = None) -> Any:
    """What the first process says, in every process."""
    told = [content]
    torch.distributed.broadcast_object_list(told)
    return told[0]


class Launched(InProcess):
    """The executor of the first process: every piece of work is done by all of them together."""

    workers = 1  # one piece at a time

    def __init__(self, device: str) -> None:
        self.device, self.sent = device, False

    def __enter__(self) -> Launched:
        self.current_group = _meet(self.device)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # else this process ends, and the launcher ends the others
            _pass_on(None)
            torch.distributed.destroy_process_group()

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Run one job after another, each in all processes together."""
        while self.jobs:
            job = self.jobs.popleft()
            if not self.sent:
                _pass_on((self.worker.plan, self.worker.folder.opener()))
                self.sent = True
            _pass_on(job)
            with use_group(self.current_group):
                result = job.run(self.worker)
            yield job, result


def follow(devices: str | int) -> None:
    """Run what the first process sends: a plan, then one job after another, until there is none."""
    device = device_of(devices)
    group = _meet(device)
    start: tuple[Plan, Callable[[], RunFolder]] | None = _pass_on()
    if start is not None:
        plan, join = start
        worker = Worker(plan, Beside(join()), RunContext(device, tracking=Silent(None)))
        while (job := _pass_on()) is not None:
            try:
                with use_group(group):
                    job.run(worker)
            except ClozifyError:  # the first process meets it too and reports it; the launcher then ends this one
                time.sleep(60)
                raise
    torch.distributed.destroy_process_group()


class Silent(Tracking):
    """No bar and no trackers: the first process has them."""

    @contextmanager
    def training(self, name: str, steps: int) -> Iterator[Callable[[int, float], None]]:  # noqa: ARG002
        """Tell nobody."""
        yield lambda step, loss: None


class Beside(RunFolder):
    """The run's folder for a process that reads in it but leaves no results: the first process writes them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.path, self.address, self.finished_jobs = folder, folder.path, folder.address, []

    def job(self, kind: str, key: str) -> Path:
        """Where a job's results are."""
        return self.folder.job(kind, key)

    @contextmanager
    def writing(self, kind: str, key: str) -> Iterator[Path]:
        """A folder that is thrown away; but a large pile's tokens are written by whoever comes first."""
        if kind == "tokens":
            with self.folder.writing(kind, key) as beside:
                yield beside
            return
        scratch = Path(tempfile.mkdtemp(prefix="clozify-"))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
