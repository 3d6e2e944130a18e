"""Runs the command line in forked processes: the libraries are imported once, and a command starts in milliseconds."""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

MODULES = (
    "clozify.cli clozify.inference.export clozify.inference.finished_run clozify.inference.suggest "
    "clozify.inference.training clozify.inference.zero_shot clozify.report.write clozify.cli.tables "
    "transformers.models.bert.modeling_bert datasets pandas sklearn.feature_extraction.text"
).split()


@dataclass(frozen=True)
class Outcome:
    """How a command ended; the status is negative for a signal and None after a timeout."""

    status: int | None
    out: str
    err: str
    seconds: float


class ForkServer:
    """A process that has imported everything, computes nothing itself, and forks for each command."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        own = {"HF_DATASETS_CACHE": str(folder / "datasets"), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **own, **variables}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *words: object, timeout: float = 120) -> Outcome:
        """Run `clozify WORDS...`."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            request = {"words": [str(word) for word in words], "folder": scratch, "timeout": timeout}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            texts = [(Path(scratch) / name).read_text("utf-8", "replace") for name in ("out", "err")]
        return Outcome(answer["status"], *texts, answer["seconds"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def _child(words: list[str], folder: Path) -> None:
    os.setsid()
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        sys.argv = ["clozify", *words]
        sys.modules["clozify.cli"].main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, timeout: float) -> int | None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for module in MODULES:
        __import__(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _child(request["words"], Path(request["folder"]))
        status = _wait(pid, request["timeout"])
        answers.write(json.dumps({"status": status, "seconds": time.monotonic() - began}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
