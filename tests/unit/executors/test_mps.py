"""NVIDIA's Multi-Process Service is started for the workers, and ended whatever it does."""

import os
import time
from pathlib import Path

import psutil
import pytest

from clozify.executors import mps

CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then
  echo started $CUDA_VISIBLE_DEVICES >> {log}
  sleep 1000 & echo $! > $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
else
  read line; echo $line >> {log}; {on_quit}
fi
"""


@pytest.mark.parametrize(
    "on_quit",
    [
        "kill $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid)",
        pytest.param("exec sleep 1000", marks=pytest.mark.slow),
    ],
    ids=["ends", "hangs"],
)
def test_the_service_is_for_the_workers_alone_and_cannot_delay_a_run(tmp_path, monkeypatch, on_quit):
    """It ends after its last client: a run that was one itself would wait for its own end."""
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(CONTROL.format(log=log, on_quit=on_quit))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "SHUTDOWN_SECONDS", 1)
    began = time.monotonic()
    with mps.mps_service() as variables:
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
        folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
        service = psutil.Process(int((folder / "nvidia-cuda-mps-control.pid").read_text()))
    assert time.monotonic() - began < 30
    assert log.read_text().splitlines() == ["started", "quit -t 1"]
    assert not folder.exists()
    deadline = time.monotonic() + 10
    while service.is_running() and service.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the service runs on"
        time.sleep(0.01)


def test_without_the_service_workers_get_no_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps.mps_service() as variables:
        assert variables == {}
