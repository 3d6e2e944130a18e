"""A Ray cluster that shares a run's work.

In: pieces of work, and a cluster's address. Out: each one's results in the run's folder, which every machine sees, or
in a store. A worker is a Ray actor: it has the plan, loads the model once and takes one piece after another. One that
dies is replaced, wherever the cluster has room, and its piece is done again; a piece that fails three times stops the
run, which resumes. A worker gets work only once it is there, so that nothing waits for room that others hold.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clozify import __version__
from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.executors.base import Executor
from clozify.executors.job_queue import ATTEMPTS, JobQueue, Outcome, QueuedJob, Relay, run_job
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import Job, JobResult
from clozify.runs.object_store import is_remote
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker

LISTENING = 1.0  # seconds between two looks at the steps that workers have taken
FOR_WORKERS = ("tokens", "weights")  # kinds of jobs that only workers read
PATIENCE = 30.0  # seconds without any worker before people are told


class RayWorker:
    """What runs in a Ray actor; `steps` is called while `run` is at work."""

    def __init__(self, plan: Plan, device: str, join: Callable[[], RunFolder], sign: str | None, threads: int) -> None:
        self.threads = threads
        self.folder = join()
        self.sign = sign
        self.taken: list[tuple[str, int, float]] = []
        tracking = Relay(lambda *step: self.taken.append(step))
        self.worker = Worker(plan, self.folder, RunContext(device, tracking=tracking))

    def ready(self, version: str) -> str | None:
        """None, or why this machine cannot work on the run, which that version of clozify began."""
        host = socket.gethostname()
        if version != __version__:
            return f"The machine '{host}' of the cluster has clozify {__version__}, not {version}; install the same."
        if self.sign is not None and not (self.folder.path / self.sign).exists():
            return (
                f"The machine '{host}' of the cluster does not see the run's folder '{self.folder.path}'; let --output "
                "be in a folder that all machines share, or an address such as s3://bucket/run."
            )
        return None

    def run(self, job: Job) -> tuple[Outcome, list[tuple[str, str]]]:
        """Run a job; also the kinds and keys of the results that it wrote."""
        torch.set_num_threads(self.threads)
        self.folder.finished_jobs.clear()
        return run_job(self.worker, job), list(self.folder.finished_jobs)

    def steps(self) -> list[tuple[str, int, float]]:
        """The steps that were taken since the last call."""
        count = len(self.taken)
        found, self.taken[:count] = self.taken[:count], []
        return found


@dataclass(eq=False)
class _Hand:
    """A worker as the run's own process sees it."""

    actor: Any
    log: Path
    queued: QueuedJob | None = None  # the job that it runs
    there: bool = False  # it has answered


@dataclass(frozen=True)
class Share:
    """How much of a cluster a worker takes, and how many there are."""

    workers: int
    gpus: float  # of one worker
    cpus: float
    threads: int

    @property
    def device(self) -> str:
        """What models are trained on."""
        return "cuda" if self.gpus else "cpu"


def share_of(nodes: Sequence[dict[str, float]], devices: str | int = "auto", at_once: int | None = None) -> Share:
    """What each worker takes of a cluster, whose machines have so many `CPU` and `GPU`.

    `at_once` workers share a GPU, or a machine where there are no GPUs. All have as many threads as the smallest of the
    machines has for each, since the last bits of a CPU's results depend on their number.
    """
    if at_once is not None and at_once < 1:
        raise RunError(f"--at-once is {at_once}; at least 1 model is trained at a time.")
    at_once = at_once or 1
    gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if devices not in ("auto", "cpu"):
        if not str(devices).isdecimal() or int(devices) < 1:
            raise RunError(f"--devices is '{devices}'; it takes 'auto', 'cpu' or a number of GPUs.")
        if int(devices) > gpus:
            raise RunError(f"--devices asks for {devices} GPUs, and the cluster has {gpus}; take 'auto' or 'cpu'.")
        gpus = int(devices)
    if devices != "cpu" and gpus:
        threads = min(int(node.get("CPU", 1) // (node["GPU"] * at_once)) for node in nodes if node.get("GPU"))
        return Share(gpus * at_once, 1 / at_once, 0, max(1, threads))
    cpus = [node["CPU"] for node in nodes if node.get("CPU")]
    if not cpus:
        raise RunError("The cluster has neither a GPU nor a CPU to work with.")
    return Share(len(cpus) * at_once, 0, min(cpus) / at_once, max(1, int(min(cpus) // at_once)))


class Ray(Executor):
    """An executor on a cluster; without an address, the one that Ray finds here, or one that is started here."""

    def __init__(
        self,
        address: str | None = None,
        devices: str | int = "auto",
        at_once: int | None = None,
        workers: int | None = None,
    ) -> None:
        self.address, self.devices, self.at_once = address, devices, at_once
        self.most = workers  # however large the cluster is
        self.hands: list[_Hand | None] = []
        self.bad_starts = 0
        self.sign = f"workers/.{uuid.uuid4().hex}"  # a file by which a machine knows the run's folder
        self.signed: Path | None = None
        self.sent: Any = None  # the plan

    @property
    def workers(self) -> int:
        """How many workers there are, or will be when the cluster has room."""
        return len(self.hands)

    def __enter__(self) -> Ray:
        try:
            import ray
        except ImportError:
            raise RunError("The executor 'ray' is not installed; install it with: pip install 'clozify[ray]'") from None
        if self.address is not None and self.address.startswith("ray://"):
            raise RunError(
                f"The address '{self.address}' is for Ray's client; start the command on a machine of the cluster, "
                "with --address auto."
            )
        self.own = not ray.is_initialized()
        if self.own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            try:
                ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, ValueError) as error:
                raise RunError(f"There is no Ray cluster at '{self.address}': {_first(error)}") from None
        ray.util.register_serializer(Rows, serializer=packed, deserializer=unpacked)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        try:
            self.share = share_of(nodes, self.devices, self.at_once)
        except RunError:
            self.__exit__()
            raise
        self.hands = [None] * min(self.share.workers, self.most or self.share.workers)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        for hand in self.hands:
            if hand is not None:
                with suppress(ray.exceptions.RayError):
                    ray.kill(hand.actor)
        if self.signed is not None:
            self.signed.unlink(missing_ok=True)
        ray.util.deregister_serializer(Rows)
        if self.own:
            ray.shutdown()

    def start(self, worker: Worker, expected_jobs: int) -> None:  # noqa: ARG002
        """Begin a run; actors are started when there are jobs."""
        self.worker, self.queue = worker, JobQueue(worker.context.log)
        self.asked: dict[Any, _Hand] = {}  # pending reference -> its worker

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.queue.submit(job)

    def as_completed(self) -> Iterator[tuple[Job, JobResult]]:
        """Distribute the jobs; yields each with its result as it ends."""
        import ray

        quiet = 0.0
        while self.queue.pending:
            self._distribute()
            answered, _ = ray.wait(list(self.asked), timeout=LISTENING)
            self._listen()
            quiet = self._told_of_waiting(quiet)
            for reference in answered:
                hand = self.asked.pop(reference)
                queued, hand.queued = hand.queued, None
                outcome, written = self._heard(reference)
                if outcome.error is not None:  # something that the user can correct
                    raise outcome.error
                if outcome.kind != "done":
                    self._failed(hand, queued, outcome)
                elif queued is None or outcome.result is None:
                    hand.there, self.bad_starts = True, 0
                else:
                    for kind, key in written:
                        if kind not in FOR_WORKERS:
                            self.worker.folder.job(kind, key)  # fetched, where it is not here
                    self.queue.complete()
                    yield queued.job, outcome.result

    def _distribute(self) -> None:
        """Start workers and send jobs to those that wait for one."""
        for number, hand in enumerate(self.hands):
            if hand is None and number < self.queue.pending:
                hand = self.hands[number] = self._start(number)
            if hand is not None and not hand.there and hand not in self.asked.values():
                self.asked[hand.actor.ready.remote(__version__)] = hand
            elif hand is not None and hand.there and hand.queued is None:
                hand.queued = self.queue.next()
                if hand.queued is not None:
                    self.asked[hand.actor.run.remote(hand.queued.job)] = hand

    def _heard(self, reference: Any) -> tuple[Outcome, list[tuple[str, str]]]:
        """What a worker has answered; also where it has died."""
        import ray

        try:
            found = ray.get(reference)
        except ray.exceptions.RayError as error:
            return Outcome("failed", reason="its worker died", traceback=f"{error}\n"), []
        if found is None:
            return Outcome("done"), []
        if isinstance(found, str):
            return Outcome("error", error=RunError(found)), []
        answered: tuple[Outcome, list[tuple[str, str]]] = found
        return answered

    def _failed(self, hand: _Hand, queued: QueuedJob | None, outcome: Outcome) -> None:
        """A worker that is not to be trusted any more goes; its piece is done by another."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(hand.actor)
        hand.log.parent.mkdir(exist_ok=True)
        with hand.log.open("a", encoding="utf-8") as log:
            log.write(outcome.traceback)
        self.hands.remove(hand)
        shown = f"{self.worker.folder.address}/workers/{hand.log.name}"
        if outcome.kind == "memory" and self.hands and queued is not None:  # fewer at a time may fit
            self.queue.retry_with_fewer_workers(queued, len(self.hands))
            return
        self.hands.append(None)
        if queued is not None:
            self.queue.retry(queued, outcome.reason, shown)
            return
        self.bad_starts += 1
        if self.bad_starts == ATTEMPTS:
            raise RunError(
                f"{ATTEMPTS} workers in a row could not be started on the cluster, at last with: "
                f"{outcome.traceback.strip().splitlines()[-1]}; see {shown}. Every machine needs clozify {__version__} "
                "and the model."
            )

    def _start(self, number: int) -> _Hand:
        """A worker that will be there when the cluster has room; the plan is sent once."""
        import ray

        folder = self.worker.folder
        shared = not is_remote(folder.address)
        if self.sent is None:
            self.sent = ray.put(self.worker.plan)
            if shared:
                self.signed = folder.path / self.sign
                self.signed.parent.mkdir(exist_ok=True)
                self.signed.touch()
        actor = ray.remote(RayWorker).options(
            num_cpus=self.share.cpus, num_gpus=self.share.gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
        )
        join = folder.opener(other_machine=True)
        hand = actor.remote(self.sent, self.share.device, join, self.sign if shared else None, self.share.threads)
        return _Hand(hand, folder.path / "workers" / f"{number}.txt")

    def _listen(self) -> None:
        """Tell the trackers what steps the workers have taken."""
        import ray

        if self.worker.context.trackers:
            for hand in self.hands:
                if hand is not None and hand.there:
                    with suppress(ray.exceptions.RayError):  # it died: its answer will tell
                        for step in ray.get(hand.actor.steps.remote()):
                            self.worker.context.tracking.log_loss(*step)

    def _told_of_waiting(self, quiet: float) -> float:
        """Seconds without any worker; people are told once."""
        if any(hand is not None and hand.there for hand in self.hands):
            return 0.0
        if quiet < PATIENCE <= quiet + LISTENING:
            self.worker.context.log("waiting for room on the cluster")
        return quiet + LISTENING


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def packed(rows: Rows) -> dict[str, Any]:
    """Everything of the rows, in memory; what they were selected from stays behind."""
    known = {name: value for name, value in rows.__getstate__().items() if name not in ("_dataset", "_whole")}
    if rows._whole is not None and "labels" in vars(rows._whole[0]):  # one naming of the labels for the whole file
        known["labels"] = rows.labels
    known["_row_numbers"] = rows.row_numbers()
    return known | {"table": rows.table(), "info": rows._dataset.info}


def unpacked(parcel: dict[str, Any]) -> Rows:
    """The rows again."""
    from datasets import Dataset
    from datasets.table import InMemoryTable

    rows = Rows.__new__(Rows)
    known = dict(parcel)
    table, info = known.pop("table"), known.pop("info")
    vars(rows).update(known, _dataset=Dataset(InMemoryTable(table), info=info).with_format("arrow"), _whole=None)
    return rows
