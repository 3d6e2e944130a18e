"""A run in progress: what the steps of the pipeline take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from clozify.executors.base import Executor
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import Job, JobResult
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker
from clozify.teachers.base import Teacher
from clozify.utils.progress import progress


@dataclass(frozen=True)
class Run:
    """The state of a run in its main process, and the executor of its jobs, which was started."""

    worker: Worker
    executor: Executor
    prefix: str = ""  # where the folder has the method's results: "" or "methods/METHOD/"
    teachers: tuple[Teacher, ...] = ()  # besides the patterns; they stay in this process
    model: str | None = None  # another language model than the one that the executor's workers started with

    def with_model(self, model: str) -> Run:
        """The same run with members of another language model, without its other teachers."""
        return replace(self, worker=self.worker.for_model(model), model=model, teachers=())

    @property
    def plan(self) -> Plan:
        """What the run works on."""
        return self.worker.plan

    @property
    def folder(self) -> RunFolder:
        """Where its results are kept."""
        return self.worker.folder

    @property
    def results(self) -> Path:
        """The folder of the method's results."""
        return self.folder.path / self.prefix

    @property
    def context(self) -> RunContext:
        """Its device, log, trackers and warnings."""
        return self.worker.context

    def run_jobs(
        self,
        jobs: Sequence[Job],
        description: str,
        on_done: Callable[[Job, JobResult], Sequence[Job]] = lambda job, result: (),
    ) -> None:
        """Run jobs, and those that `on_done` returns for each of them; logs every summary and the time left."""
        started, submitted, names = time.monotonic(), len(jobs), {job.name for job in jobs}
        for job in jobs:
            self.executor.submit(job)
        with self._progress(description, len(jobs)) as advance:
            for completed, (job, result) in enumerate(self.executor.as_completed(), start=1):
                for following in on_done(job, result):
                    self.executor.submit(following)
                    submitted += 1
                advance(job.name in names)
                left = (submitted - completed) * (time.monotonic() - started) / completed
                self.context.log(f"{job.name}  {result.summary}  about {left / 60:,.0f} min left for {description}")

    def _progress(self, description: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """The progress of jobs in other processes; a job in this process shows its own."""
        if self.executor.workers > 1 and total:
            return progress(description, total, "jobs")
        return nullcontext(lambda count: None)
