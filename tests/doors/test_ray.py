"""Members trained on a real Ray cluster: the same run as with one process, whoever dies on the way."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from clozify.bench import Bench
from clozify.errors import ClozifyError, RunError
from clozify.executors.ray import Ray, share_of
from clozify.run import RunFolder
from tests.doors.conftest import SETTINGS
from tests.doors.test_processes import Deadly, Mendable, Unlucky, one_thread  # noqa: F401
from tests.doors.test_train import scores

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'clozify[ray]'")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One cluster for all tests: two CPUs, so two workers at a time, each a process of its own."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def at_work() -> list[psutil.Process]:
    """The workers that are doing a piece of work now: Ray writes it into the process's title."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith("ray::Worker.do"):
            found.append(process)
    return found


def test_a_cluster_leaves_the_same_run_as_one_process_though_a_worker_is_killed(run, files):
    """A member that depends on where it was trained, or is lost with its worker, changes the ensemble silently."""
    lines: list[str] = []
    killed = []

    def kill_one():
        while not killed:
            for process in at_work()[:1]:
                process.kill()
                killed.append(process.pid)
            time.sleep(0.02)

    more = {"method": "ipet", "settings": [*SETTINGS, "ipet.generations=1", "finetune.max_steps=3"]}
    alone = run("alone", **more)
    threading.Thread(target=kill_one, daemon=True).start()
    assert run("shared", executor="ray", at_once=2, say=lines.append, **more) == alone
    assert killed
    assert any("failed: its worker died (1 of 3 tries)" in line for line in lines)
    one, other = scores(files / "alone"), scores(files / "shared")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert (files / "shared" / "classifier" / "config.json").exists()
    assert "Worker" in (files / "shared" / "workers" / "0.txt").read_text() or (
        "Worker" in (files / "shared" / "workers" / "1.txt").read_text()
    )


@pytest.fixture
def bench(files, tiny_folder):
    from clozify.pet import prepare

    plan = prepare(files / "task.toml", files / "labeled.csv", model=str(tiny_folder("bert")), device="cpu")
    with RunFolder(files / "run") as folder:
        yield Bench(plan, folder)


@pytest.mark.parametrize(
    ("work", "reason", "logged"),
    [(Unlucky, "ValueError: no luck", "Traceback"), (Deadly, "its worker died", "exit code")],
)
def test_work_that_fails_three_times_stops_the_run_with_its_log(bench, work, reason, logged):
    said: list[str] = []
    bench.plan.say = said.append
    with Ray(at_once=1) as cluster, pytest.raises(RunError) as error:
        list(cluster(bench, [work()]))
    assert len(said) == 3
    assert f"failed 3 times, at last with: {reason}; see {bench.folder.path}" in str(error.value)
    assert logged in (bench.folder.path / "workers" / "0.txt").read_text()
    assert not at_work()


def test_what_the_user_can_mend_is_said_at_once(bench):
    """Tried three times, a wrong learning rate would cost three trainings."""
    said: list[str] = []
    bench.plan.say = said.append
    with Ray(at_once=1) as cluster, pytest.raises(ClozifyError, match="The loss is nan"):
        list(cluster(bench, [Mendable()]))
    assert not said
