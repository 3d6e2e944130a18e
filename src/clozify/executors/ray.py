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
from clozify.executors.job_queue import ATTEMPTS, Answer, Ledger, Relay, answer, sendable
from clozify.runs.folder import RunFolder
from clozify.runs.object_store import is_remote
from clozify.runs.plan import Plan
from clozify.runs.worker import Executor, Work, WorkerContext

LISTENING = 1.0  # seconds between two looks at the steps that workers have taken
FOR_WORKERS = ("tokens", "weights")  # kinds of jobs that only workers read
PATIENCE = 30.0  # seconds without any worker before people are told


class Worker:
    """What runs in a Ray actor; `steps` is called while `do` is at work."""

    def __init__(self, plan: Plan, join: Callable[[], RunFolder], sign: str | None, threads: int) -> None:
        self.threads = threads
        self.folder = join()
        self.sign = sign
        self.taken: list[tuple[str, int, float]] = []
        plan.__dict__["tracking"] = Relay(lambda *step: self.taken.append(step))
        self.bench = WorkerContext(plan, self.folder)

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

    def do(self, piece: Work) -> tuple[Answer, list[tuple[str, str]]]:
        """Do a piece of work; also which jobs it finished."""
        torch.set_num_threads(self.threads)
        self.folder.finished_jobs.clear()
        return answer(self.bench, piece), list(self.folder.finished_jobs)

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
    place: int | None = None  # the piece it is working on
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

    def __call__(self, bench: WorkerContext, works: Sequence[Work]) -> Iterator[tuple[int, str]]:
        """Do all of it; yields the place of each piece as it ends and what to say of it."""
        import ray

        ledger = Ledger(works, bench.plan.say)
        asked: dict[Any, _Hand] = {}  # by what each worker will answer
        quiet = 0.0
        while ledger.left:
            for number, hand in enumerate(self.hands):
                if hand is None and number < ledger.left:
                    hand = self.hands[number] = self._start(bench, number)
                if hand is not None and not hand.there and hand not in asked.values():
                    asked[hand.actor.ready.remote(__version__)] = hand
                elif hand is not None and hand.there and hand.place is None and ledger.waiting:
                    hand.place = ledger.waiting.pop()
                    asked[hand.actor.do.remote(works[hand.place])] = hand
            answered, _ = ray.wait(list(asked), timeout=LISTENING)
            self._listen(bench)
            quiet = self._told_of_waiting(bench, quiet)
            for reference in answered:
                hand = asked.pop(reference)
                place, hand.place = hand.place, None
                found, written = self._heard(reference)
                if found.error is not None:  # something that the user can mend
                    raise found.error
                if place is None and found.kind == "done":
                    hand.there, self.bad_starts = True, 0
                elif found.kind == "done":
                    assert place is not None
                    for kind, key in written:
                        if kind not in FOR_WORKERS:
                            bench.folder.job(kind, key)  # fetched, where it is not here
                    ledger.done += 1
                    yield place, found.said
                    ledger.look()
                else:
                    self._failed(bench, ledger, hand, place, found)

    def _heard(self, reference: Any) -> tuple[Answer, list[tuple[str, str]]]:
        """What a worker has answered; also where it has died."""
        import ray

        try:
            found = ray.get(reference)
        except ray.exceptions.RayError as error:
            return Answer("failed", "its worker died", story=f"{error}\n"), []
        if found is None:
            return Answer("done"), []
        if isinstance(found, str):
            return Answer("error", error=RunError(found)), []
        answered: tuple[Answer, list[tuple[str, str]]] = found
        return answered

    def _failed(self, bench: WorkerContext, ledger: Ledger, hand: _Hand, place: int | None, found: Answer) -> None:
        """A worker that is not to be trusted any more goes; its piece is done by another."""
        import ray

        with suppress(ray.exceptions.RayError):
            ray.kill(hand.actor)
        hand.log.parent.mkdir(exist_ok=True)
        with hand.log.open("a", encoding="utf-8") as log:
            log.write(found.story)
        self.hands.remove(hand)
        shown = f"{bench.folder.address}/workers/{hand.log.name}"
        if found.kind == "memory" and self.hands and place is not None:  # fewer at a time will do
            ledger.without_memory(place, len(self.hands))
            return
        self.hands.append(None)
        if place is not None:
            ledger.failed(place, found.said, shown)
            return
        self.bad_starts += 1
        if self.bad_starts == ATTEMPTS:
            raise RunError(
                f"{ATTEMPTS} workers in a row could not be started on the cluster, at last with: "
                f"{found.story.strip().splitlines()[-1]}; see {shown}. Every machine needs clozify {__version__} "
                "and the model."
            )

    def _start(self, bench: WorkerContext, number: int) -> _Hand:
        """A worker that will be there when the cluster has room; the plan is sent once."""
        import ray

        shared = not is_remote(bench.folder.address)
        if self.sent is None:
            self.sent = ray.put(_plan_for(self.share.device, bench.plan))
            if shared:
                self.signed = bench.folder.path / self.sign
                self.signed.parent.mkdir(exist_ok=True)
                self.signed.touch()
        actor = ray.remote(Worker).options(
            num_cpus=self.share.cpus, num_gpus=self.share.gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
        )
        join = bench.folder.opener(other_machine=True)
        hand = actor.remote(self.sent, join, self.sign if shared else None, self.share.threads)
        return _Hand(hand, bench.folder.path / "workers" / f"{number}.txt")

    def _listen(self, bench: WorkerContext) -> None:
        """Tell the trackers what steps the workers have taken."""
        import ray

        if bench.plan.trackers:
            for hand in self.hands:
                if hand is not None and hand.there:
                    with suppress(ray.exceptions.RayError):  # it died: its answer will tell
                        for step in ray.get(hand.actor.steps.remote()):
                            bench.plan.tracking.log_loss(*step)

    def _told_of_waiting(self, bench: WorkerContext, quiet: float) -> float:
        """Seconds without any worker; people are told once."""
        if any(hand is not None and hand.there for hand in self.hands):
            return 0.0
        if quiet < PATIENCE <= quiet + LISTENING:
            bench.plan.say("waiting for room on the cluster")
        return quiet + LISTENING


def _plan_for(device: str, plan: Plan) -> Plan:
    found = sendable(plan)
    found.device = device
    return found


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
