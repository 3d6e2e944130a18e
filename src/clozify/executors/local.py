"""This machine's devices: how many processes work on them at a time.

In: `auto`, `cpu` or a number of GPUs, and how many models are trained at a time on each. Out: an executor. One model at
a time on one device is done in this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from clozify.errors import RunError
from clozify.executors.base import Executor, InProcess
from clozify.executors.processes import Processes

PATIENCE = 5  # seconds that NVIDIA's service has to end


@dataclass(frozen=True)
class Devices:
    """Where a run's models are trained."""

    kind: Literal["cpu", "cuda"]
    count: int  # GPUs; 1 for the CPU
    at_once: int  # models at a time on each


def choose_devices(devices: str | int = "auto", at_once: int | None = None) -> Devices:
    """The devices asked for, where there are so many."""
    there = torch.cuda.device_count()
    if at_once is not None and at_once < 1:
        raise RunError(f"--at-once is {at_once}; at least 1 model is trained at a time.")
    if devices == "cpu" or (devices == "auto" and not there):
        return Devices("cpu", 1, at_once or 1)
    if devices == "auto":
        return Devices("cuda", there, at_once or 1)
    if not str(devices).isdecimal() or int(devices) < 1:
        raise RunError(f"--devices is '{devices}'; it takes 'auto', 'cpu' or a number of GPUs.")
    if int(devices) > there:
        raise RunError(f"--devices asks for {devices} GPUs, and {there} are here; take 'auto' or 'cpu'.")
    return Devices("cuda", int(devices), at_once or 1)


@contextmanager
def executor_for(devices: Devices) -> Iterator[Executor]:
    """An executor for these devices; its processes end with the block."""
    if devices.count * devices.at_once == 1:
        yield InProcess()
        return
    gpus = devices.count if devices.kind == "cuda" else 0
    count = devices.count * devices.at_once
    with shared_gpu(gpus > 0) as variables, Processes(count, gpus, variables) as processes:
        yield processes


@contextmanager
def shared_gpu(wanted: bool = True) -> Iterator[dict[str, str]]:
    """NVIDIA's service that lets kernels of several processes run side by side, where it is there and not yet running.

    Yields the variables that make a process its client. This one must not become one: the service ends after its last
    client. Without it the processes take turns on a GPU.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # it would number the GPUs anew for its clients
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        try:
            there = subprocess.run([control, "-d"], timeout=10 * PATIENCE, **quiet).returncode == 0
        except subprocess.TimeoutExpired:
            there = False
        try:
            yield variables if there else {}
        finally:
            try:
                subprocess.run([control], input=f"quit -t {PATIENCE}\n".encode(), timeout=2 * PATIENCE, **quiet)
            except subprocess.TimeoutExpired:
                _kill(Path(folder) / "nvidia-cuda-mps-control.pid")


def _kill(pid_file: Path) -> None:
    """End a service that does not end by itself, with the processes that it started."""
    import psutil

    with suppress(OSError, ValueError, psutil.Error):
        service = psutil.Process(int(pid_file.read_text()))
        for process in [*service.children(recursive=True), service]:
            process.kill()
