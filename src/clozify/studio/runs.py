"""Training runs started from the studio: `clozify train` as a child process, monitored through the files it writes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from filelock import FileLock, Timeout

from clozify.errors import RunError, quoted
from clozify.studio.run_inputs import TASK_FILE, UNLABELED_FILE
from clozify.studio.state import save_text

RUNS_FOLDER = "runs"
FIXED_INPUTS = (TASK_FILE, UNLABELED_FILE)  # must be those of its start when a run is resumed; labels may be added


class StudioRun:
    """The run with a given number in a project, and its process if this studio started it."""

    def __init__(self, project: Path, number: int) -> None:
        self.number = number
        self.project = project
        self.path = project / RUNS_FOLDER / str(number)
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.arguments: list[str] = []  # of `clozify train`; empty: unknown
        self.expected_models = 0  # models that the run will train; 0: unknown
        self.input_hashes: dict[str, str] = {}  # of the fixed inputs, at the run's start; empty: unknown
        try:
            content = json.loads(self._arguments_file.read_text(encoding="utf-8"))
            self.arguments, self.expected_models = list(content["arguments"]), int(content["expected_models"])
            self.input_hashes = dict(content.get("input_hashes", {}))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not started yet, or by an older version

    def start(self, arguments: list[str], expected_models: int = 0) -> None:
        """Start `clozify train ARGUMENTS --output runs/NUMBER` in the project's folder."""
        self.path.parent.mkdir(exist_ok=True)
        self.input_hashes = {name: self._hash(name) for name in FIXED_INPUTS if name in arguments}
        content = {"arguments": arguments, "expected_models": expected_models, "input_hashes": self.input_hashes}
        save_text(self._arguments_file, json.dumps(content, ensure_ascii=False) + "\n")
        self.arguments, self.expected_models = arguments, expected_models
        self._launch()

    @property
    def _command(self) -> list[str]:
        return ["clozify", "train", *self.arguments, "--output", f"{RUNS_FOLDER}/{self.number}"]

    @property
    def command_line(self) -> str:
        """The same run on the command line, in the project's folder; empty: unknown."""
        return shlex.join(self._command) if self.arguments else ""

    def resume(self) -> None:
        """Continue where an earlier process was stopped, with the labels as they are now.

        Raises a `RunError` if the task or the unlabelled rows are others, such as those of a later run.
        """
        changed = [name for name, value in self.input_hashes.items() if self._hash(name) != value]
        if changed:
            raise RunError(
                f"Run {self.number} cannot be resumed, because {quoted(changed)} changed since it was started; start a "
                "new run."
            )
        self._launch("--replace")

    def _hash(self, name: str) -> str:
        """The hash of an input file; empty if there is none."""
        path = self.project / name
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""

    def _launch(self, *more: str) -> None:
        self.stopped = False
        with self._output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self._command, *more],
                cwd=self.project,
                env=os.environ | _absolute_python_path(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its worker processes can be stopped with it
            )

    @property
    def _arguments_file(self) -> Path:
        """The arguments, for a later studio that resumes the run."""
        return self.path.with_name(f"{self.number}.json")

    @property
    def _output_file(self) -> Path:
        """What the command prints."""
        return self.path.with_name(f"{self.number}.txt")

    @property
    def state(self) -> str:
        """`running`, `done`, `failed` or `stopped`."""
        if self.process is None:
            if self._is_locked():
                return "running"  # its studio was killed, and it goes on
            is_done = all((self.path / name).is_file() for name in ("metrics.json", "report.html"))
            return "done" if is_done else "stopped"
        if self.process.poll() is None:
            return "running"
        if self.process.returncode == 0:
            return "done"
        return "stopped" if self.stopped else "failed"

    def _is_locked(self) -> bool:
        """Whether a process is working on the run."""
        if not (self.path / ".lock").is_file():
            return False
        try:
            with FileLock(self.path / ".lock", blocking=False):
                return False
        except Timeout:
            return True

    def log_lines(self) -> list[str]:
        """The lines of the run's log, without their times."""
        try:
            log = (self.path / "log.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.partition(" ")[2] for line in log.splitlines()]

    def trained_models(self) -> int:
        """The number of finished ensemble members and classifiers."""
        return sum(
            not path.name.startswith(".")
            for folder in ("members", "classifiers")
            if (self.path / folder).is_dir()
            for path in (self.path / folder).iterdir()
        )

    def problems(self) -> list[str]:
        """The error messages of a failed run."""
        try:
            output = self._output_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        errors = [line.removeprefix("error: ") for line in output if line.startswith("error: ")]
        if self.process is not None and self.process.returncode is not None and self.process.returncode < 0:
            errors.append(f"The process was ended by the signal {-self.process.returncode}; resume the run.")
        return errors or output[-3:]

    @property
    def report(self) -> Path | None:
        """The run's report, once it is written."""
        path = self.path / "report.html"
        return path if path.is_file() else None

    def stop(self) -> None:
        """End the run's processes; the same command resumes it."""
        if self.process is None or self.process.poll() is not None:
            return
        self.stopped = True
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, signal_number)
                self.process.wait(timeout=5)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return


def _absolute_python_path() -> dict[str, str]:
    """PYTHONPATH with absolute paths, since the child process runs in another folder."""
    paths = os.environ.get("PYTHONPATH", "")
    if not paths:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in paths.split(os.pathsep))}


def list_runs(project: Path) -> list[StudioRun]:
    """The runs in a project's folder, in the order of their numbers."""
    folder = project / RUNS_FOLDER
    names = {path.name.partition(".")[0] for path in folder.iterdir()} if folder.is_dir() else set()
    return [StudioRun(project, number) for number in sorted(int(name) for name in names if name.isdigit())]
