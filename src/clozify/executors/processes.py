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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch

from clozify.executors.job_queue import Answer, Ledger, Relay, answer, sendable
from clozify.runs.worker import Work, WorkerContext

PATIENCE = 5.0  # seconds that a process without work has to end


@dataclass
class _Helper:
    """A process that works, what it is working on, and where it writes its log."""

    number: int  # its place among the helpers, which decides its GPU and its log
    process: subprocess.Popen[bytes]
    line: Connection
    log: Path
    place: int | None = None
    told: bool = False  # the plan

    def stop(self) -> None:
        self.line.close()  # one that waits for work ends by itself now, and lets go of its GPU in order
        try:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE if self.place is None else 0)
        finally:
            self.process.kill()
            self.process.wait()


class Processes:
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
            if helper.place is not None:
                helper.process.kill()
            helper.line.close()
        for helper in there:
            helper.stop()

    def begin(self, bench: WorkerContext, pieces: int) -> None:
        """Start processes for GPUs: it takes a while to import everything and to open one. On a CPU nothing is won."""
        for number in list(self.helpers)[: pieces if self.gpus else 0]:
            self.helpers[number] = self._start(bench, number)

    def __call__(self, bench: WorkerContext, works: Sequence[Work]) -> Iterator[tuple[int, str]]:
        """Do all of it; yields the place of each piece as it ends and what to say of it."""
        ledger = Ledger(works, bench.plan.say)
        while ledger.left:
            for number, helper in self.helpers.items():
                if ledger.waiting and (helper is None or helper.place is None):
                    helper = self.helpers[number] = helper or self._start(bench, number)
                    if not helper.told:
                        _send(helper.line, (sendable(bench.plan), bench.folder.opener()))
                    helper.told, helper.place = True, ledger.waiting.pop()
                    _send(helper.line, works[helper.place])
            for helper in self._heard():
                assert helper.place is not None
                try:
                    heard = helper.line.recv()
                except (EOFError, OSError):
                    heard = Answer("failed", f"its process ended with {helper.process.wait()}")
                if not isinstance(heard, Answer):
                    bench.plan.tracking.log_loss(*heard)
                    continue
                place, helper.place = helper.place, None
                if heard.kind == "done":
                    ledger.done += 1
                    yield place, heard.said
                    ledger.look()
                    continue
                if heard.error is not None:  # something that the user can mend
                    raise heard.error
                helper.stop()
                if heard.kind == "memory" and len(self.helpers) > 1:  # fewer at a time will do
                    del self.helpers[helper.number]
                    ledger.without_memory(place, len(self.helpers))
                    continue
                self.helpers[helper.number] = None
                ledger.failed(place, heard.said, f"{bench.folder.address}/workers/{helper.log.name}")

    def _heard(self) -> list[_Helper]:
        """The helpers that have something to say, once there is one."""
        busy = {helper.line: helper for helper in self.helpers.values() if helper and helper.place is not None}
        return [busy[line] for line in wait(list(busy)) if isinstance(line, Connection)]

    def _start(self, bench: WorkerContext, number: int) -> _Helper:
        """A process that gets ready, and waits for the plan and for work."""
        ours, theirs = Pipe()
        log = bench.folder.path / "workers" / f"{number}.txt"
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
    bench: WorkerContext | None = None
    while True:
        try:
            heard = line.recv()
        except EOFError:
            ended.set()
            return
        if bench is None:
            plan, join = heard
            plan.__dict__["tracking"] = Relay(lambda *step: line.send(step))
            bench = WorkerContext(plan, join())
            continue
        found = answer(bench, heard)
        print(found.story, end="", file=sys.stderr, flush=True)
        line.send(found)


if __name__ == "__main__":
    work(Connection(int(sys.argv[1])), *map(int, sys.argv[2:]))
