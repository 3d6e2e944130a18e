"""Runs that the page starts: `clozify train` in a process of its own, watched through the files it writes.

In: a project's folder and the options of a run. Out: the command, as a person would give it; how far the run is; what
it said. A run is an ordinary one: it goes on by itself where it was, and its folder is what `clozify train` writes.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = "runs"
SAID = ".txt"  # beside a run's folder: what the command printed, where nothing was logged


class Run:
    """One run, by its number; its process, if this page started it."""

    def __init__(self, project: Path, number: int) -> None:
        self.number = number
        self.project = project
        self.path = project / FOLDER / str(number)
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.expected = 0  # models to train, where that is known
        self.command_line = ""

    def start(self, arguments: list[str]) -> None:
        """Start `clozify train ARGUMENTS --output FOLDER` in the project's folder."""
        self.path.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "clozify", "train", *arguments, "--output", self._output]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                command,
                cwd=self.project,
                env=os.environ | _search_path(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its workers end with it
            )

    @property
    def _output(self) -> str:
        return f"{FOLDER}/{self.number}"

    @property
    def _said(self) -> Path:
        return self.path.with_name(f"{self.number}{SAID}")

    def command(self, arguments: list[str]) -> str:
        """The same run on the command line, in the project's folder."""
        return shlex.join(["clozify", "train", *arguments, "--output", self._output])

    @property
    def state(self) -> str:
        """`running`, `done`, `failed` or `stopped`."""
        if self.process is not None and self.process.poll() is None:
            return "running"
        if self.process is not None and self.process.returncode == 0:
            return "done"
        if self.stopped or self.process is None:
            return "done" if self.process is None and (self.path / "metrics.json").is_file() else "stopped"
        return "failed"

    def lines(self) -> list[str]:
        """What the run has said of its progress."""
        try:
            log = (self.path / "log.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.partition(" ")[2] for line in log.splitlines()]

    def trained(self) -> int:
        """How many models are trained: members and classifiers that are whole."""
        return sum(
            not place.name.startswith(".")
            for kind in ("members", "classifiers")
            if (self.path / kind).is_dir()
            for place in (self.path / kind).iterdir()
        )

    def problems(self) -> list[str]:
        """Why the command failed, in its own sentences."""
        try:
            said = self._said.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        return errors or said[-3:]

    @property
    def report(self) -> Path | None:
        """The run's page, once there is one."""
        page = self.path / "report.html"
        return page if page.is_file() else None

    def stop(self) -> None:
        """End the run; given again, its command goes on where it was."""
        if self.process is None or self.process.poll() is not None:
            return
        self.stopped = True
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(timeout=5)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return


def _search_path() -> dict[str, str]:
    """PYTHONPATH with whole paths: the command runs in another folder and must find the same clozify."""
    given = os.environ.get("PYTHONPATH", "")
    return (
        {"PYTHONPATH": os.pathsep.join(str(Path(part).resolve()) for part in given.split(os.pathsep))} if given else {}
    )


def runs_of(project: Path) -> list[Run]:
    """The runs that a project's folder holds, by their numbers."""
    folder = project / FOLDER
    numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return [Run(project, number) for number in sorted(numbers)]
