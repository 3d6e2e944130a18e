"""What a worker process is started with; starting one takes seconds and is tested in tests/integration."""

import os
import subprocess
import sys

import pytest

from clozify.executors.processes import ProcessExecutor


@pytest.fixture(autouse=True)
def no_visible_devices(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_workers_are_spread_over_the_gpus_by_their_slots():
    """A worker that is replaced leaves its GPU to its successor, which has its slot."""
    executor = ProcessExecutor(4, gpus=2)
    assert [executor._environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in executor.slots] == ["0", "1", "0", "1"]


def test_only_the_gpus_that_this_process_may_use_are_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    executor = ProcessExecutor(2, gpus=2)
    assert [executor._environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in executor.slots] == ["5", "7"]


def test_workers_get_their_threads_and_the_variables_meant_for_them_alone(monkeypatch):
    """Without those of NVIDIA's service they would take turns on a GPU, and only the clock would show it."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    environment = ProcessExecutor(3, variables={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"})._environment(0)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in environment  # each worker would use all 7
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert "CUDA_VISIBLE_DEVICES" not in environment  # on a CPU
    assert set(environment["PYTHONPATH"].split(os.pathsep)) == {path for path in sys.path if path}


@pytest.mark.slow
def test_the_modules_of_jobs_import_neither_scikit_learn_nor_the_statistics_of_scipy():
    """A worker imports them while its GPU waits."""
    modules = "clozify.executors.worker_process, clozify.pipeline.members, clozify.pipeline.final_classifier"
    command = f"import sys, {modules}; print([name for name in ('sklearn', 'scipy.stats') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
