"""Threads follow the processors that a process may use; how they wait follows the load; nothing stays changed."""

import os

import pytest
import torch

from clozify.utils import threads
from clozify.utils.threads import openmp_environment, openmp_variables, threads_within_quota, usable_processors


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight idle processors, and no variable of the user's."""
    for name in (*threads.NUMBER_VARIABLES, *threads.WAIT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 0.0, 0.0))


@pytest.mark.parametrize(
    ("content", "expected"), [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("", 8)]
)
def test_a_containers_quota_limits_the_processors(tmp_path, content, expected):
    """PyTorch would start 64 threads for two processors' time."""
    (tmp_path / "cpu.max").write_text(content)
    assert usable_processors(tmp_path) == expected


def test_the_quota_of_older_control_groups_counts(tmp_path):
    assert usable_processors(tmp_path) == 8
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_processors(tmp_path) == 3
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_processors(tmp_path) == 8


def test_threads_wait_passively_on_a_busy_machine_alone(monkeypatch):
    """Spinning threads keep the one that they wait for from running: a step took up to 19 times as long."""
    assert "OMP_WAIT_POLICY" not in openmp_variables()
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    assert openmp_variables()["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")  # the user's choice
    assert "OMP_WAIT_POLICY" not in openmp_variables()


def test_the_load_never_changes_the_number_of_threads(monkeypatch):
    """Results depend on it in the last bits: a run resumed at a busy hour would differ."""
    assert "OMP_NUM_THREADS" not in openmp_variables()  # PyTorch's own number: one for each core
    monkeypatch.setattr(threads, "_cpu_quota", lambda cgroup: 1.5)
    assert openmp_variables()["OMP_NUM_THREADS"] == "2"
    monkeypatch.setattr(os, "getloadavg", lambda: (60.0, 0.0, 0.0))
    assert openmp_variables()["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in openmp_variables()


def test_the_environment_is_as_before_after_the_command(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (60.0, 0.0, 0.0))
    before = dict(os.environ)
    with openmp_environment():
        assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert dict(os.environ) == before


def test_a_training_keeps_to_the_quota_says_so_and_restores_the_programs_threads(monkeypatch):
    counts, lines = [16], []
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    with threads_within_quota(lines.append):
        assert counts[-1] == 8
    assert counts[-1] == 16
    assert lines == ["8 threads on 8 processors"]
    counts.append(3)  # by the program itself
    with threads_within_quota(lines.append):
        assert counts[-1] == 3
    monkeypatch.setattr(os, "getloadavg", lambda: (60.0, 0.0, 0.0))
    with threads_within_quota(lines.append):
        assert "load average 60.0" in lines[-1]
        assert "OMP_WAIT_POLICY" in lines[-1]
