"""NVIDIA's Multi-Process Service (MPS), which lets the kernels of several processes run on one GPU at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SHUTDOWN_SECONDS = 5  # that the service has to end


@contextmanager
def mps_service(enabled: bool = True) -> Iterator[dict[str, str]]:
    """Start the service, where it is installed and not yet running; without it processes take turns on a GPU.

    Yields the environment variables that make a process its client. This process must not become a client: the
    service ends only after its last client.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if not enabled or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # it would renumber the GPUs for the clients
        options: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        try:
            started = subprocess.run([control, "-d"], timeout=10 * SHUTDOWN_SECONDS, **options).returncode == 0
        except subprocess.TimeoutExpired:
            started = False
        try:
            yield variables if started else {}
        finally:
            quit_command = f"quit -t {SHUTDOWN_SECONDS}\n".encode()
            try:
                subprocess.run([control], input=quit_command, timeout=2 * SHUTDOWN_SECONDS, **options)
            except subprocess.TimeoutExpired:
                _kill(Path(folder) / "nvidia-cuda-mps-control.pid")


def _kill(pid_file: Path) -> None:
    """Kill a service that does not end, with the processes that it started."""
    import psutil

    with suppress(OSError, ValueError, psutil.Error):
        service = psutil.Process(int(pid_file.read_text(encoding="utf-8")))
        for process in [*service.children(recursive=True), service]:
            process.kill()
