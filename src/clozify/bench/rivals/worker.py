"""Runs one cell of the bench in a process of its own: trains a method, times it, and writes its predictions.

Started by path, `python -P worker.py JOB.json`, in the environment of the method. It must import nothing of clozify:
environments of rivals do not have it. The method's module is loaded by its path, too.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

WARM_UP_ROWS = 16  # predicted before the time of prediction is taken
PARENT_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """What a method gets: files with rows, an encoder and settings. The test rows have no labels."""

    module: str  # the path of the method's module
    fields: list[str]
    labels: list[str]
    label: str  # the column with the labels' names
    labeled: str  # JSON lines with the fields and the label
    unlabeled: str | None  # JSON lines with the fields; None for methods that cannot use them
    test: str  # JSON lines with the fields
    task: str  # the task file
    model: str  # the encoder: a name or a folder
    encoder: str  # the encoder as an ordinary folder of Transformers, where the method asks for one
    device: str  # "cpu" or "cuda"
    seed: int
    max_length: int
    output: str  # the folder for the results
    work: str  # a folder for the trained model, removed afterwards
    recipe: str = "auto"
    settings: list[str] = field(default_factory=list)  # of the recipe
    options: dict[str, str] = field(default_factory=dict)  # of the method, such as the name of an NLI model

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of `labeled`, `unlabeled` or `test`."""
        path = getattr(self, name)
        if path is None:
            return []
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]

    def texts(self, name: str) -> list[str]:
        """Each row's fields, joined by spaces."""
        return [" ".join(row[name] for name in self.fields).strip() for row in self.rows(name)]

    @property
    def label_indices(self) -> list[int]:
        """The labels of the labelled rows."""
        index = {label: number for number, label in enumerate(self.labels)}
        return [index[row[self.label]] for row in self.rows("labeled")]


class Model(Protocol):
    """A trained model, loaded and ready to predict."""

    @property
    def kept(self) -> Sequence[Path]:
        """The files and folders that have to be kept to predict."""

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows, as indices."""


class Rival(Protocol):
    """A module of this folder: a method, with the settings that the page of a bench lists."""

    @property
    def NAME(self) -> str:  # noqa: N802
        """Its name in `--methods`."""

    @property
    def TITLE(self) -> str:  # noqa: N802
        """Its name in tables."""

    @property
    def SETTINGS(self) -> str:  # noqa: N802
        """The settings that it is run with, in a sentence."""

    @property
    def VERSION(self) -> int:  # noqa: N802
        """Raised with every change of the module that changes its results."""

    @property
    def REQUIREMENTS(self) -> tuple[str, ...]:  # noqa: N802
        """What its own environment has installed; empty where it runs in clozify's."""

    @property
    def PACKAGES(self) -> tuple[str, ...]:  # noqa: N802
        """The packages whose versions are reported."""

    @property
    def ENCODER(self) -> str:  # noqa: N802
        """ "model" where it loads the bench's encoder by name, "folder" by folder, "none" where it has no encoder."""

    @property
    def UNLABELED(self) -> bool:  # noqa: N802
        """Whether it uses unlabelled rows."""

    @property
    def MAX_LENGTH(self) -> bool:  # noqa: N802
        """Whether it reads as many tokens of a row as the bench says; else it has a length of its own, or none."""

    @property
    def NEEDS(self) -> str:  # noqa: N802
        """The option of `clozify bench` that it cannot run without; empty where there is none."""

    def train(self, job: Job) -> Model:
        """Train on the job's rows; everything that prediction needs is on disk and in memory afterwards."""

    def load_libraries(self) -> None:
        """Import what `train` needs, which is not timed."""


def read_job(path: Path) -> Job:
    """The job of a file."""
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def load_rival(path: str) -> Rival:
    """The module of a method, by its path: by name, `setfit.py` would hide the package that it uses."""
    spec = util.spec_from_file_location(f"clozify_rival_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rival: Any = module
    return rival  # type: ignore[no-any-return]


def peak_memory() -> dict[str, int]:
    """The peak memory of this process in bytes, and on a GPU the peak of its tensors there."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the parent's memory, too, from before this program replaced it
        (line,) = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")]
        result = {"memory_bytes": int(line.split()[1]) * 1024}
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        result = {"memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        result["gpu_bytes"] = int(torch.cuda.max_memory_allocated())
    return result


def size_on_disk(paths: Sequence[Path]) -> int:
    """The bytes of files and of everything in folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())


def seconds_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds that a function takes, and its result, which is on the CPU: a GPU's work is included."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def seed_libraries(seed: int) -> None:
    """Seed the generators of Python, NumPy and, where it is imported, PyTorch."""
    import random

    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of Python and of packages that are installed."""
    result = {"python": platform.python_version()}
    for package in packages:
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return result


def run(job: Job) -> dict[str, Any]:
    """Train and predict; returns what was measured, the predictions are in `predictions.npy`."""
    rival = load_rival(job.module)
    rival.load_libraries()
    seed_libraries(job.seed)
    training_seconds, model = seconds_of(lambda: rival.train(job))
    rows = len(job.rows("test"))
    model.predict(min(WARM_UP_ROWS, rows))
    prediction_seconds, predicted = seconds_of(lambda: model.predict(rows))
    predicted = np.asarray(predicted, dtype=np.int64)
    if predicted.shape != (rows,):
        raise ValueError(f"{rows} predictions were expected, not an array of the shape {predicted.shape}")
    np.save(Path(job.output) / "predictions.npy", predicted)
    torch = sys.modules.get("torch")
    return {
        "training_seconds": training_seconds,
        "prediction_seconds": prediction_seconds,
        **peak_memory(),
        "size_bytes": size_on_disk(model.kept),
        "threads": 1 if torch is None else torch.get_num_threads(),
        "versions": versions(rival.PACKAGES),
    }


def exit_with_parent(parent: int, folder: Path) -> None:
    """End this process when the one that started it has died, for the cell may be started again.

    The cell's folder, which nobody else can remove then, is removed. Interrupts are left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run the job of a file; the second argument is the id of the process that started this one."""
    job = read_job(Path(arguments[0]))
    exit_with_parent(int(arguments[1]), Path(arguments[0]).parent)
    result = run(job)
    (Path(job.output) / "measured.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
