"""Runs a run's jobs on a Ray cluster.

A worker is a Ray actor: it has the plan and loads the model once. Results go to the run's folder, which all machines
share, or to an object store. An actor gets a job only once it has started, so no job waits for resources that other
programs hold.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clozify import __version__
from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.executors.devices import choose_devices
from clozify.executors.job_queue import ATTEMPTS, JobOutcome, RelayTracking, run_job
from clozify.executors.worker_pool import WorkerHandle, WorkerPool
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import Job
from clozify.runs.object_store import is_remote
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker

POLL_SECONDS = 1.0  # between two requests for the workers' losses
NOTICE_SECONDS = 30.0  # without any worker, before the log says that the run waits
WORKER_ONLY_KINDS = ("tokens", "weights")  # results that the main process does not read


class WorkerActor:
    """What runs in a Ray actor; `losses` is called while `run` works."""

    def __init__(
        self,
        plan: Plan,
        device: str,
        open_folder: Callable[[], RunFolder],
        probe_file: str | None,
        threads: int,
    ) -> None:
        self.folder, self.probe_file, self.threads = open_folder(), probe_file, threads
        self.new_losses: list[tuple[str, int, float]] = []
        tracking = RelayTracking(lambda *step: self.new_losses.append(step))
        self.worker = Worker(plan, self.folder, RunContext(device, tracking=tracking))

    def check(self, version: str) -> str | None:
        """Why this machine cannot work on the run of that version of clozify; None where it can."""
        host = socket.gethostname()
        if version != __version__:
            return f"The machine '{host}' of the cluster has clozify {__version__}, not {version}; install the same."
        if self.probe_file is not None and not (self.folder.path / self.probe_file).exists():
            return (
                f"The machine '{host}' of the cluster does not see the run's folder '{self.folder.path}'; let --output "
                "be in a folder that all machines share, or an address such as s3://bucket/run."
            )
        return None

    def run(self, job: Job) -> tuple[JobOutcome, list[tuple[str, str]]]:
        """Run a job; returns its outcome, and the kind and key of everything that it wrote."""
        torch.set_num_threads(self.threads)
        self.folder.finished_jobs.clear()
        return run_job(self.worker, job), list(self.folder.finished_jobs)

    def losses(self) -> list[tuple[str, int, float]]:
        """The losses that were logged since the last call."""
        count = len(self.new_losses)
        losses, self.new_losses[:count] = self.new_losses[:count], []
        return losses


@dataclass(eq=False, kw_only=True)
class _RayWorker(WorkerHandle):
    actor: Any


@dataclass(frozen=True)
class WorkerResources:
    """How many workers a cluster runs, and the resources of each."""

    workers: int
    gpus: float
    cpus: float
    threads: int

    @property
    def device(self) -> str:
        """What models are trained on."""
        return "cuda" if self.gpus else "cpu"


def worker_resources(
    nodes: Sequence[dict[str, float]], devices: str | int = "auto", at_once: int | None = None
) -> WorkerResources:
    """The resources of each worker on a cluster; `nodes` are the `CPU` and `GPU` of its machines.

    `at_once` workers share a GPU, or a machine where there are no GPUs. All workers use the same
    number of threads, as many as the smallest machine can give each: results on a CPU depend on it in the last bits.
    """
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    chosen = choose_devices(devices, at_once, gpus, "the cluster")
    at_once = chosen.at_once
    if chosen.gpus:
        threads = min(int(node.get("CPU", 1) // (node["GPU"] * at_once)) for node in nodes if node.get("GPU"))
        return WorkerResources(chosen.gpus * at_once, 1 / at_once, 0, max(1, threads))
    cpus = [node["CPU"] for node in nodes if node.get("CPU")]
    if not cpus:
        raise RunError("The cluster has neither a GPU nor a CPU to work with.")
    return WorkerResources(len(cpus) * at_once, 0, min(cpus) / at_once, max(1, int(min(cpus) // at_once)))


class RayExecutor(WorkerPool[_RayWorker]):
    """Workers on a cluster; without an address, on the one that Ray finds here, or one that is started here."""

    def __init__(
        self,
        address: str | None = None,
        devices: str | int = "auto",
        at_once: int | None = None,
        max_workers: int | None = None,
    ) -> None:
        super().__init__(0)
        self.address, self.devices, self.at_once, self.max_workers = address, devices, at_once, max_workers
        self.calls: dict[Any, _RayWorker] = {}  # reference to a call's result -> its worker
        self.failed_starts = 0  # in a row
        self.seconds_without_worker = 0.0
        self.probe_file = f"workers/.{uuid.uuid4().hex}"  # a machine that shares the run's folder sees it
        self.probe_path: Path | None = None
        self.plan_reference: Any = None

    def __enter__(self) -> RayExecutor:
        try:
            import ray
        except ImportError:
            raise RunError("The executor 'ray' is not installed; install it with: pip install 'clozify[ray]'") from None
        if self.address is not None and self.address.startswith("ray://"):
            raise RunError(
                f"The address '{self.address}' is for Ray's client; start the command on a machine of the cluster, "
                "with --address auto."
            )
        self.has_connected = not ray.is_initialized()
        if self.has_connected:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise RunError(f"There is no Ray cluster at '{self.address}': {reason}") from None
        ray.util.register_serializer(Rows, serializer=Rows.in_memory_state, deserializer=Rows.from_state)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        try:
            self.resources = worker_resources(nodes, self.devices, self.at_once)
        except RunError:
            self.__exit__()
            raise
        count = min(self.resources.workers, self.max_workers or self.resources.workers)
        self.slots = dict.fromkeys(range(count))
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for handle in self.handles:
            self.stop_worker(handle)
        if self.probe_path is not None:
            self.probe_path.unlink(missing_ok=True)
        ray.util.deregister_serializer(Rows)
        if self.has_connected:
            ray.shutdown()

    def start_worker(self, slot: int) -> _RayWorker:
        """Start an actor, which begins when the cluster has free resources; the plan is uploaded once."""
        import ray

        folder, resources = self.worker.folder, self.resources
        is_shared = not is_remote(folder.address)
        if self.plan_reference is None:
            self.plan_reference = ray.put(self.worker.plan)
            if is_shared:
                self.probe_path = folder.path / self.probe_file
                self.probe_path.parent.mkdir(exist_ok=True)
                self.probe_path.touch()
        actor: Any = (
            ray.remote(WorkerActor)
            .options(
                num_cpus=resources.cpus, num_gpus=resources.gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
            )
            .remote(
                self.plan_reference,
                resources.device,
                folder.opener(other_machine=True),
                self.probe_file if is_shared else None,
                resources.threads,
            )
        )
        log = folder.path / "workers" / f"{slot}.txt"
        handle = _RayWorker(slot=slot, log=log, ready=False, actor=actor)
        self.calls[actor.check.remote(__version__)] = handle
        return handle

    def stop_worker(self, handle: _RayWorker) -> None:
        """Kill an actor."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(handle.actor)

    def send_job(self, handle: _RayWorker, job: Job) -> None:
        """Send a job."""
        self.calls[handle.actor.run.remote(job)] = handle

    def wait_for_outcomes(self) -> list[tuple[_RayWorker, JobOutcome]]:
        """Wait for workers that have started or completed a job; passes their losses to the trackers."""
        import ray

        references, _ = ray.wait(list(self.calls), timeout=POLL_SECONDS)
        self._log_losses()
        self._log_waiting()
        outcomes = []
        for reference in references:
            handle = self.calls.pop(reference)
            if handle.queued is None:
                self._finish_start(handle, reference)
            else:
                outcomes.append((handle, self._job_outcome(handle, reference)))
        return outcomes

    def _finish_start(self, handle: _RayWorker, reference: Any) -> None:
        """Mark a worker as ready, or remove it where it could not start."""
        import ray

        try:
            problem = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._write_log(handle, f"{error}\n")
            self.stop_worker(handle)
            self.slots[handle.slot] = None
            self.failed_starts += 1
            if self.failed_starts == ATTEMPTS:
                raise RunError(
                    f"{ATTEMPTS} workers in a row could not be started on the cluster, the last one because of: "
                    f"{str(error).strip().splitlines()[-1]}; see {self.shown_log(handle)}. Every machine needs "
                    f"clozify {__version__} and the model."
                ) from None
            return
        if problem is not None:
            raise RunError(problem)
        handle.ready, self.failed_starts = True, 0

    def _job_outcome(self, handle: _RayWorker, reference: Any) -> JobOutcome:
        """The outcome of a completed call; results that the main process reads are downloaded from a store."""
        import ray

        outcome: JobOutcome
        try:
            outcome, finished_jobs = ray.get(reference)
        except ray.exceptions.RayError as error:
            outcome, finished_jobs = JobOutcome("failed", reason="its worker died", traceback=f"{error}\n"), []
        self._write_log(handle, outcome.traceback)
        for kind, key in finished_jobs if outcome.kind == "done" else []:
            if kind not in WORKER_ONLY_KINDS:
                self.worker.folder.job_path(kind, key)  # downloads it from an object store
        return outcome

    def _write_log(self, handle: _RayWorker, text: str) -> None:
        if text:
            handle.log.parent.mkdir(exist_ok=True)
            with handle.log.open("a", encoding="utf-8") as log:
                log.write(text)

    def _log_losses(self) -> None:
        """Pass the workers' losses to the trackers."""
        import ray

        if self.worker.context.trackers:
            for handle in self.handles:
                if handle.ready:
                    with suppress(ray.exceptions.RayError):  # it died: the call of its job fails too
                        for step in ray.get(handle.actor.losses.remote()):
                            self.worker.context.tracking.log_loss(*step)

    def _log_waiting(self) -> None:
        """Log once that no worker has started yet."""
        if any(handle.ready for handle in self.handles):
            self.seconds_without_worker = 0.0
            return
        before, self.seconds_without_worker = self.seconds_without_worker, self.seconds_without_worker + POLL_SECONDS
        if before < NOTICE_SECONDS <= self.seconds_without_worker:
            self.worker.context.log("waiting for free resources on the cluster")
