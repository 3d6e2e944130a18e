"""Several processes of this machine that share a run's work.

In: pieces of work. Out: each one's results in the run's folder. Every process loads the model once and takes one piece
after another. A process that dies is replaced and its piece is given out again; a piece that fails three times stops
the run, which resumes. When the run's own process dies, its helpers die with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch

from clozify.executors.base import Executor
from clozify.executors.job_queue import JobQueue, Outcome, QueuedJob, Relay, run_job
from clozify.runs.context import RunContext
from clozify.runs.jobs import Job, JobResult
from clozify.runs.worker import Worker

PATIENCE = 5.0  # seconds that a process without work has to end


@dataclass
class _Helper:
    """A process that works, what it is working on, and where it writes its log."""

    number: int  # its place among the helpers, which decides its GPU and its log
    process: subprocess.Popen[bytes]
    line: Connection
    log: Path
    queued: QueuedJob | None = None  # the job that it runs
    has_plan: bool = False

    def stop(self) -> None:
        self.line.close()  # one that waits for work ends by itself now, and lets go of its GPU in order
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE if self.queued is None else 0)
        finally:
            self.process.kill()
            self.process.wait()


class Processes(Executor):
    """An executor with so many processes, spread over so many GPUs (0: on the CPU); `variables` are for them alone."""

    def __init__(self, count: int, gpus: int = 0, variables: Mapping[str, str] | None = None) -> None:
        self.gpus, self.variables = gpus, dict(variables or {})
        self.threads = max(1, torch.get_num_threads() // count)
        self.helpers: dict[int, _Helper | None] = dict.fromkeys(range(count))  # by their numbers

    @property
    def workers(self) -> int:
        """How many processes there are."""
        return len(self.helpers)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        there = [helper for helper in self.helpers.values() if helper is not None]
        for helper in there:  # first all, so that they end side by side
            if helper.queued is not None:
                helper.process.kill()
            helper.line.close()
        for helper in there:
            helper.stop()

    def start(self, worker: Worker, expected_jobs: int) -> None:
        """Begin a run; processes for GPUs are started now, since imports and opening a GPU take a while."""
        self.worker, self.queue = worker, JobQueue(worker.context.log)
        for number in list(self.helpers)[: expected_jobs if self.gpus else 0]:
            self.helpers[number] = self._start_helper(number)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.queue.submit(job)

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Distribute the jobs; yields each with its result as it ends."""
        while self.queue.pending:
            self._distribute()
            for helper in self._heard():
                queued = helper.queued
                assert queued is not None
                try:
                    heard = helper.line.recv()
                except (EOFError, OSError):
                    heard = Outcome("failed", reason=f"its process ended with {helper.process.wait()}")
                if not isinstance(heard, Outcome):
                    self.worker.context.tracking.log_loss(*heard)
                    continue
                helper.queued = None
                if heard.result is not None:
                    self.queue.complete()
                    yield queued.job, heard.result
                else:
                    self._handle_failure(helper, queued, heard)

    def _distribute(self) -> None:
        """Send jobs to idle processes."""
        for number, helper in self.helpers.items():
            if helper is not None and helper.queued is not None:
                continue
            queued = self.queue.next()
            if queued is None:
                return
            helper = self.helpers[number] = helper or self._start_helper(number)
            if not helper.has_plan:
                _send(helper.line, (self.worker.plan, self.worker.context.device, self.worker.folder.opener()))
            helper.has_plan, helper.queued = True, queued
            _send(helper.line, queued.job)

    def _handle_failure(self, helper: _Helper, queued: QueuedJob, outcome: Outcome) -> None:
        """Raise what the user can correct; else the process is replaced and its job queued again."""
        if outcome.error is not None:
            raise outcome.error
        helper.stop()
        if outcome.kind == "memory" and len(self.helpers) > 1:  # fewer at a time may fit
            del self.helpers[helper.number]
            self.queue.retry_with_fewer_workers(queued, len(self.helpers))
            return
        self.helpers[helper.number] = None
        self.queue.retry(queued, outcome.reason, f"{self.worker.folder.address}/workers/{helper.log.name}")

    def _heard(self) -> list[_Helper]:
        """The helpers that have something to say, once there is one."""
        busy = {helper.line: helper for helper in self.helpers.values() if helper and helper.queued is not None}
        return [busy[line] for line in wait(list(busy)) if isinstance(line, Connection)]

    def _start_helper(self, number: int) -> _Helper:
        """A process that gets ready, and waits for the plan and for work."""
        ours, theirs = Pipe()
        log = self.worker.folder.path / "workers" / f"{number}.txt"
        log.parent.mkdir(exist_ok=True)
        environment = (
            os.environ
            | self.variables
            | {
                "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
                "OMP_NUM_THREADS": str(self.threads),
            }
        )
        if self.gpus:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self.gpus)))).split(",")
            environment["CUDA_VISIBLE_DEVICES"] = seen[number % self.gpus]
        numbers = map(str, (theirs.fileno(), os.getpid(), self.gpus))
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "clozify.executors.processes", *numbers],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        theirs.close()
        return _Helper(number, process, ours, log)


def _send(line: Connection, content: Any) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it died: reading from it will tell
        line.send(content)


def get_ready(gpus: int) -> None:
    """What a helper can do before it knows the plan: import what any work needs, and open its GPU."""
    import datasets  # noqa: F401
    from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: F401

    if gpus:
        with suppress(Exception):  # the first piece of work will meet it too, and answer
            torch.zeros(1, device="cuda")


def work(line: Connection, parent: int, gpus: int) -> None:
    """The life of a helper: take a plan, then one piece of work after another, until nobody sends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run's own process ends us
    ended = threading.Event()

    def with_parent() -> None:
        while os.getppid() == parent:
            if ended.wait(0.5):
                return
        os._exit(1)  # at once: somebody may start the run again

    threading.Thread(target=with_parent, daemon=True).start()
    get_ready(gpus)
    worker: Worker | None = None
    while True:
        try:
            heard = line.recv()
        except EOFError:
            ended.set()
            return
        if worker is None:
            plan, device, join = heard
            worker = Worker(plan, join(), RunContext(device, tracking=Relay(lambda *step: line.send(step))))
            continue
        outcome = run_job(worker, heard)
        print(outcome.traceback, end="", file=sys.stderr, flush=True)
        line.send(outcome)


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])), *map(int, sys.argv[2:]))
