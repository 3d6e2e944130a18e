"""Runs that are killed at random moments and started again end as if nothing had happened.

CLOZIFY_KILL_ROUNDS sets how often each is killed (default 20), CLOZIFY_KILL_SEED repeats the moments of a run that is
printed with a failure.
"""

import os
import random
import signal
import threading
import time
import traceback

import pytest
from tqdm import tqdm

import clozify
from tests.integration.conftest import SETTINGS

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("CLOZIFY_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("CLOZIFY_KILL_SEED", time.time_ns() % 100_000))
LONGEST = 600  # seconds of a run
COMPARED = ("*.npy", "*.safetensors", "metrics.json", "ensemble.json", "labels.parquet", "task.toml", "config.json")


def start(function) -> int:
    """Call a function in a forked process, which saves the seconds that imports take; returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        tqdm.set_lock(threading.RLock())  # its own is shared by all processes, and stays locked by one that is killed
        function()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait(pid: int) -> int:
    """A process's exit status; one that hangs is killed."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the process did not end within {LONGEST} s")


def contents(folder) -> dict[str, bytes]:
    """What must be the same: scores, weights and metrics."""
    paths = sorted(path for pattern in COMPARED for path in folder.rglob(pattern))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def check_kills(function, tmp_path):
    """Kill `function(folder)` at random moments, each time in a new folder, and call it again there."""
    print(f"CLOZIFY_KILL_SEED={SEED}")
    rng, started = random.Random(SEED), time.monotonic()
    assert wait(start(lambda: function(tmp_path / "undisturbed"))) == 0
    duration = time.monotonic() - started
    expected = contents(tmp_path / "undisturbed")
    assert expected
    interrupted = 0
    for number in range(ROUNDS):
        folder, moment = tmp_path / str(number), rng.uniform(0, duration)
        pid = start(lambda folder=folder: function(folder))
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        interrupted += os.WIFSIGNALED(status)
        status = wait(start(lambda folder=folder: function(folder)))
        assert status == 0, f"killed after {moment:.3f} s"
        resumed = contents(folder)
        differing = [name for name in expected | resumed if expected.get(name) != resumed.get(name)]
        assert not differing, f"killed after {moment:.3f} of {duration:.3f} s"
        assert not list(folder.rglob(".*.part")), f"killed after {moment:.3f} s"
    assert interrupted >= ROUNDS // 4  # moments after the end would test nothing


@pytest.mark.parametrize("method", ["pet", "ipet", "frozen"])
def test_a_killed_training_ends_with_the_same_results(files, tiny_folder, tmp_path, method):
    model = str(tiny_folder("bert"))
    settings = [*SETTINGS, "repetitions=1", "ipet.d=2", "ipet.enough=35"]

    def train(folder):
        data = {"unlabeled": files / "unlabeled.csv", "test": files / "test.csv", "recipe": "paper"}
        clozify.train(
            files / "task.toml", files / "labeled.csv", folder, method=method, model=model, settings=settings, **data
        )

    check_kills(train, tmp_path / "runs")


def test_a_killed_pretraining_ends_with_the_same_weights(files, tiny_folder, tmp_path):
    settings = ["pretrain.max_steps=12", "pretrain.block_size=16"]

    def pretrain(folder):
        clozify.pretrain(
            files / "unlabeled.csv",
            folder,
            files / "task.toml",
            model=str(tiny_folder("bert")),
            settings=settings,
            save_every=3,
        )

    check_kills(pretrain, tmp_path / "models")
