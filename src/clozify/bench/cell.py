"""A cell as a job of a run: starts the method in a process of its own and keeps what that measured."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from clozify.bench import rivals
from clozify.bench.draws import DATA, DRAWS, LABELED, TASK, TEST, TEST_LABELS, UNLABELED
from clozify.bench.environments import Environment
from clozify.bench.plan import CellSpec
from clozify.bench.results import CELLS, FAILED, LOG, PREDICTIONS, RESULT, CellResult, Measured, score
from clozify.bench.rivals.worker import Job, Rival
from clozify.config.task import load_task
from clozify.runs.jobs import JobResult
from clozify.runs.worker import Worker
from clozify.utils.threads import usable_processors

ENCODERS = "encoders"  # a kind of job in the bench's folder: the encoder as an ordinary folder
POLL_SECONDS = 0.2
DONE, BROKEN, STOPPED = "done", "failed", "stopped"
EXCEPTION = re.compile(r"[A-Za-z_.]*(Error|Exception|Failed|Exit)\b")
WORKER = Path(rivals.__file__).with_name("worker.py")


class OutOfTime(Exception):  # noqa: N818
    """The bench's time is over; the cell runs again with the next command."""


class CellFailed(Exception):  # noqa: N818
    """The method's process failed, in a sentence."""


@dataclass(frozen=True)
class CellOutcome:
    """The value of a cell's `JobResult`."""

    state: str  # DONE, BROKEN or STOPPED
    seconds: float = 0.0


@dataclass(frozen=True)
class CellJob:
    """One method on one draw; run a second time, it leaves the same predictions."""

    key: str
    spec: CellSpec
    name: str
    draw_key: str
    labeled_rows: int
    unlabeled_rows: int
    notes: tuple[str, ...]  # on the draw's rows
    environment: Environment
    encoder_key: str | None  # of the encoder's folder, where the method asks for one
    deadline: float | None = None  # seconds since the epoch
    timeout: float | None = None  # seconds
    at_once: int = 1

    @property
    def rival(self) -> Rival:
        """The method."""
        return rivals.RIVALS[self.spec.method]

    def run(self, worker: Worker) -> JobResult:
        """Train and predict in another process; writes the result, or the failure."""
        folder, device = worker.folder, worker.context.device
        began = time.monotonic()
        try:
            if self.deadline is not None and time.time() > self.deadline:
                raise OutOfTime
            with ExitStack() as stack, tempfile.TemporaryDirectory() as work:
                data, draw = (
                    stack.enter_context(folder.reading(kind, key))
                    for kind, key in ((DATA, self.spec.data_key), (DRAWS, self.draw_key))
                )
                encoder = None
                if self.encoder_key is not None:
                    encoder = stack.enter_context(folder.reading(ENCODERS, self.encoder_key))
                results = Path(work) / "results"
                job = self._job(data, draw, encoder, device, Path(work))
                failure = ""
                try:
                    measured = self._run_process(job, Path(work), began)
                except CellFailed as error:
                    measured, failure = None, str(error)
                result = self._result(data, results, measured, failure, device, time.monotonic() - began)
                with folder.writing(FAILED if failure else CELLS, self.key) as path:
                    (path / RESULT).write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
                    (path / LOG).write_bytes((results / LOG).read_bytes())
                    if not failure:
                        (path / PREDICTIONS).write_bytes((results / PREDICTIONS).read_bytes())
        except OutOfTime:
            return JobResult("stopped: the time is over", CellOutcome(STOPPED))
        if failure:
            return JobResult(f"failed: {failure}", CellOutcome(BROKEN, result.seconds))
        folder.remove(f"{FAILED}/{self.key}")
        assert result.measured is not None
        assert result.accuracy is not None
        seconds = result.measured.training_seconds
        return JobResult(
            f"accuracy {100 * result.accuracy:.1f}, trained in {seconds:,.1f} s", CellOutcome(DONE, result.seconds)
        )

    def _job(self, data: Path, draw: Path, encoder: Path | None, device: str, work: Path) -> Job:
        (work / "results").mkdir()
        (work / "model").mkdir()
        task = load_task(data / TASK)
        unlabeled = draw / UNLABELED
        return Job(
            module=str(Path(getattr(self.rival, "__file__", "")).resolve()),
            fields=task.fields,
            labels=task.labels,
            label=task.label,
            labeled=str((draw / LABELED).resolve()),
            unlabeled=str(unlabeled.resolve()) if self.rival.UNLABELED and unlabeled.is_file() else None,
            test=str((data / TEST).resolve()),
            task=str((data / TASK).resolve()),
            model=self.spec.model,
            encoder="" if encoder is None else str(encoder.resolve()),
            device=device,
            seed=self.spec.seed,
            max_length=self.spec.max_length,
            output=str(work / "results"),
            work=str(work / "model"),
            recipe=self.spec.recipe or "auto",
            settings=list(self.spec.settings),
            options=dict(self.spec.options),
        )

    def _run_process(self, job: Job, work: Path, began: float) -> Measured:
        """Run the method's process; raises `CellFailed` or `OutOfTime`."""
        if self.environment.failure:
            (work / "results" / LOG).write_text(self.environment.failure + "\n", encoding="utf-8")
            raise CellFailed(self.environment.failure)
        (work / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
        variables = self.environment.variables() | {"TMPDIR": str(work)}
        if job.device == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        command = [self.environment.python, "-P", str(WORKER), str(work / "job.json"), str(os.getpid())]
        with (work / "results" / LOG).open("wb") as log:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=variables, cwd=work
                )
            except OSError as error:  # an environment that could not be made
                raise CellFailed(f"its Python '{command[0]}' could not be started: {error.strerror}") from None
            try:
                while process.poll() is None:
                    if self.deadline is not None and time.time() > self.deadline:
                        raise OutOfTime
                    if self.timeout is not None and time.monotonic() - began > self.timeout:
                        raise CellFailed(f"it took longer than {self.timeout / 60:g} minutes")
                    time.sleep(POLL_SECONDS)
            finally:
                process.kill()
                process.wait()
        measured = work / "results" / "measured.json"
        if process.returncode < 0:
            raise CellFailed(_signal_name(-process.returncode))
        if process.returncode or not measured.is_file():
            raise CellFailed(_last_line(work / "results" / LOG) or f"its process ended with {process.returncode}")
        return Measured.model_validate_json(measured.read_bytes())

    def _result(
        self, data: Path, results: Path, measured: Measured | None, failure: str, device: str, seconds: float
    ) -> CellResult:
        labels = np.load(data / TEST_LABELS)
        count = len(load_task(data / TASK).labels)
        scores: tuple[float | None, float | None] = (None, None)
        if measured is not None:
            scores = score(labels, np.load(results / PREDICTIONS), count)
        return CellResult(
            key=self.key,
            spec=self.spec,
            title=self.rival.TITLE,
            settings=self.rival.SETTINGS,
            machine=machine_name(device),
            device=device,
            at_once=self.at_once,
            labeled_rows=self.labeled_rows,
            unlabeled_rows=self.unlabeled_rows if self.rival.UNLABELED else 0,
            notes=list(self.notes),
            test_rows=len(labels),
            labels=count,
            measured=measured,
            accuracy=scores[0],
            macro_f1=scores[1],
            failure=failure,
            seconds=seconds,
        )


def machine_name(device: str) -> str:
    """The processor or GPU, and the number of processors that may be used."""
    if device == "cuda" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {usable_processors()} processors"
    return f"{_processor()}, {usable_processors()} processors"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.processor() or platform.machine()


def _signal_name(number: int) -> str:
    """Which signal ended a process, in a sentence."""
    try:
        name = signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        name = f"signal {number}"
    return f"its process was ended by {name}" + ", probably out of memory" * (name == "SIGKILL")


def _last_line(log: Path) -> str:
    """The exception that a Python program ended with, or else the last line of its log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if EXCEPTION.match(line)]
    return (errors or lines)[-1][:300].rstrip(".") if lines else ""
