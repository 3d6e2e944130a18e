"""Runs a run's jobs in several processes of this machine, each of which loads the model once.

`concurrent.futures.ProcessPoolExecutor` does not serve: it ends when a process dies, and knows neither GPUs nor
workers that run out of memory. When the run's main process dies, its workers end too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from clozify.executors.job_queue import JobOutcome
from clozify.executors.worker_pool import WorkerHandle, WorkerPool
from clozify.runs.jobs import Job
from clozify.runs.worker import Worker
from clozify.utils.threads import openmp_variables

SHUTDOWN_SECONDS = 5.0  # that an idle process has to end by itself


@dataclass(eq=False, kw_only=True)
class _WorkerProcess(WorkerHandle):
    process: subprocess.Popen[bytes]
    connection: Connection
    has_plan: bool = False

    def stop(self) -> None:
        """End the process; an idle one ends by itself once the connection is closed, and frees its GPU in order."""
        self.connection.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SHUTDOWN_SECONDS if self.queued is None else 0)
        finally:
            self.process.kill()
            self.process.wait()


class ProcessExecutor(WorkerPool[_WorkerProcess]):
    """`count` processes, spread over `gpus` GPUs (0: on the CPU), with additional environment `variables`."""

    def __init__(self, count: int, gpus: int = 0, variables: Mapping[str, str] | None = None) -> None:
        super().__init__(count)
        self.gpus, self.variables = gpus, dict(variables or {})
        self.threads = max(1, torch.get_num_threads() // count)

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:  # all first, so that they end at the same time
            if handle.queued is not None:
                handle.process.kill()
            handle.connection.close()
        for handle in self.handles:
            handle.stop()

    def start(self, worker: Worker, expected_jobs: int) -> None:
        """Begin a run; processes for GPUs are started now, since imports and opening a GPU take seconds."""
        super().start(worker, expected_jobs)
        for slot in list(self.slots)[: expected_jobs if self.gpus else 0]:
            self.slots[slot] = self.start_worker(slot)

    def start_worker(self, slot: int) -> _WorkerProcess:
        """Start a process, which waits for the plan and for jobs."""
        connection, worker_connection = Pipe()
        log = self.worker.folder.path / "workers" / f"{slot}.txt"
        log.parent.mkdir(exist_ok=True)
        arguments = map(str, (worker_connection.fileno(), os.getpid(), self.gpus))
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "clozify.executors.worker_process", *arguments],
                pass_fds=[worker_connection.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(slot),
            )
        worker_connection.close()
        return _WorkerProcess(slot=slot, log=log, ready=True, process=process, connection=connection)

    def _environment(self, slot: int) -> dict[str, str]:
        environment = os.environ | openmp_variables() | self.variables
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["OMP_NUM_THREADS"] = str(self.threads)
        environment.pop("MKL_NUM_THREADS", None)  # PyTorch would use it instead
        if self.gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(self.gpus)))).split(",")
            environment["CUDA_VISIBLE_DEVICES"] = visible[slot % self.gpus]
        return environment

    def stop_worker(self, handle: _WorkerProcess) -> None:
        """End a process."""
        handle.stop()

    def send_job(self, handle: _WorkerProcess, job: Job) -> None:
        """Send a job, the first time after the plan."""
        if not handle.has_plan:
            _send(handle.connection, (self.worker.plan, self.worker.context.device, self.worker.folder.opener()))
            handle.has_plan = True
        _send(handle.connection, job)

    def wait_for_outcomes(self) -> list[tuple[_WorkerProcess, JobOutcome]]:
        """Wait for messages: outcomes of jobs, and losses for the trackers."""
        busy = {handle.connection: handle for handle in self.handles if handle.queued is not None}
        outcomes = []
        for connection in wait(list(busy)):
            assert isinstance(connection, Connection)
            handle = busy[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError):
                message = JobOutcome("failed", reason=f"its process ended with {handle.process.wait()}")
            if isinstance(message, JobOutcome):
                outcomes.append((handle, message))
            else:
                self.worker.context.tracking.log_loss(*message)
        return outcomes


def _send(connection: Connection, content: Any) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # a process that died is noticed by the next `recv`
        connection.send(content)
