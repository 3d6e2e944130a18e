"""The labelling of large unlabelled data in shards: the same scores, whatever is stopped or killed on the way."""

import json
import threading
import time
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from clozify.executors.local import LocalExecutor
from clozify.executors.ray import WORKER_ONLY_KINDS
from clozify.inference.training import train
from clozify.methods import score as score_rows
from clozify.pipeline import train as pet
from clozify.pipeline.sharded_scoring import ShardJob
from clozify.runs.object_store import ObjectStore
from clozify.runs.worker import Worker
from tests.integration.conftest import SETTINGS
from tests.integration.test_processes import one_thread, worker_processes  # noqa: F401
from tests.integration.test_train import scores

SHARDS = [*SETTINGS, "shard_rows=16"]  # 50 rows: four shards


@pytest.fixture
def split(monkeypatch):
    """This process works as if it were several; rows are looked at sixteen at a time."""
    monkeypatch.setattr(LocalExecutor, "workers", 2)
    monkeypatch.setattr(score_rows, "chunk_rows", lambda columns: 16)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    "more",
    [
        [],
        pytest.param(["adapter.method=lora"], marks=pytest.mark.slow),
        pytest.param(["adapter.method=lora", "adapter.members_at_once=2"], marks=pytest.mark.slow),
        ["scores_dtype=float16"],
    ],
    ids=str,
)
def test_shards_of_whole_chunks_give_the_same_scores_to_the_bit(run, files, monkeypatch, more):
    """A shard that is scored with another member's weights looks like any other."""
    alone = run("alone", settings=[*SETTINGS, *more, "shard_rows=0"])
    lines: list[str] = []
    shared = run("shared", settings=[*SHARDS, *more], log=lines.append)
    assert sum("labelled in" in line for line in lines) == 4 * 4
    assert shared["classifier"] == alone["classifier"]
    one, other = scores(files / "alone"), scores(files / "shared")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    messages = [json.loads(file.read_text()) for file in (files / "shared" / "members").glob("*/member.json")]
    assert len(messages) == 4
    assert all(member["seconds"] > member["training_seconds"] for member in messages)
    assert not [name for name in ("shards", "trained", "weights") if (files / "shared" / name).exists()]


@pytest.mark.usefixtures("split")
def test_a_run_that_is_stopped_keeps_its_trained_members_and_its_shards(run, files, monkeypatch):
    alone = run("alone", settings=[*SETTINGS, "shard_rows=0"])
    do, done = ShardJob.run, []

    def stopped(self, worker):
        if len(done) == 6:
            raise KeyboardInterrupt
        done.append(self)
        return do(self, worker)

    monkeypatch.setattr(ShardJob, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        run("shared", settings=SHARDS)
    monkeypatch.setattr(ShardJob, "run", do)
    kept = {kind: len(list((files / "shared" / kind).iterdir())) for kind in ("members", "weights", "shards")}
    assert kept == {"members": 1, "weights": 3, "shards": 2}  # one member is whole, one half labelled
    lines: list[str] = []
    assert run("shared", settings=SHARDS, log=lines.append)["classifier"] == alone["classifier"]
    assert sum("already trained" in line for line in lines) == 3
    assert sum("labelled in" in line for line in lines) == 4 * 4 - 6
    one, other = scores(files / "alone"), scores(files / "shared")
    assert all(np.array_equal(one[name], other[name]) for name in one)


class OtherMachine(LocalExecutor):
    """Works like a machine that shares nothing with this one but the store."""

    workers = 2

    def start(self, worker, expected_jobs):
        super().start(Worker(worker.plan, worker.folder.opener(other_machine=True)(), worker.context), expected_jobs)
        self.main_folder = worker.folder

    def as_completed(self):
        folder = self.worker.folder
        for job, result in super().as_completed():
            kept = [path.name for path in folder.path.glob("*/*") if path.parent.name not in ("tokens", "soft")]
            assert not kept  # a worker's disk is no place for every member's weights
            for kind, key in folder.finished_jobs:  # as the run's own process fetches what workers tell it
                if kind not in WORKER_ONLY_KINDS:
                    self.main_folder.job_path(kind, key)
            yield job, result


def test_a_machine_that_shares_only_a_store_labels_shards_with_weights_from_there(run, files, monkeypatch):
    monkeypatch.setattr(score_rows, "chunk_rows", lambda columns: 16)
    alone = run("alone", settings=[*SETTINGS, "shard_rows=0"])
    monkeypatch.setattr(pet, "choose_executor", lambda *_: ("cpu", nullcontext(OtherMachine())))
    lines: list[str] = []
    address = f"file://{files}/store/run"
    shared = run_to(run, address, lines, settings=SHARDS)
    assert shared["classifier"] == alone["classifier"]
    assert sum("labelled in" in line for line in lines) == 4 * 4
    store = ObjectStore(address)
    for name, expected in scores(files / "alone").items():
        (files / "one.npy").write_bytes(store.read(name) or b"")
        assert np.array_equal(np.load(files / "one.npy"), expected)
    assert not [name for name in store.names() if name.startswith(("shards", "trained", "weights"))]


def run_to(run, address, lines, **more):
    """A run whose output is an address, not a folder of the test."""
    seen = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.integration.conftest.train", lambda output, **inputs: seen.update(inputs) or Mock())
        run()
    return train(output=address, log=lines.append, **(seen | more)).metrics.to_json()


def test_one_worker_or_small_unlabelled_data_or_members_that_are_kept_are_not_split(run, files, monkeypatch):
    """Writing weights for nobody costs gigabytes."""
    lines: list[str] = []
    run("one", settings=SHARDS, log=lines.append)
    monkeypatch.setattr(LocalExecutor, "workers", 2)
    run("small", settings=[*SETTINGS, "shard_rows=50"], log=lines.append)
    run("kept", settings=[*SHARDS, "distillation=false"], log=lines.append)
    assert not [line for line in lines if "labelled in" in line]


def large_unlabeled_data(files):
    """Rows enough that a shard of a thousand takes a moment; the settings that go with them."""
    texts = [f"{'a fine game ' * (n % 9)} number {n}" for n in range(8_000)]
    (files / "unlabeled.csv").write_text("\n".join(["text", *texts]) + "\n")
    return [*SETTINGS, "repetitions=1", "distill.max_steps=1"]


def once_trained(lines, members, do):
    """Hears a run's lines; when so many members are trained, and there are only shards to do, something is done."""

    def later():
        time.sleep(0.2)  # the last member is being labelled with
        do()

    def hear(line):
        lines.append(line)
        if "steps/s" in line and sum("steps/s" in heard for heard in lines) == members:
            threading.Thread(target=later, daemon=True).start()

    return hear


@pytest.mark.slow
def test_a_process_that_is_killed_over_a_shard_costs_that_shard_alone(run, files):
    lines: list[str] = []
    killed = []

    def kill_one():
        for helper in worker_processes(psutil.Process())[:1]:
            helper.kill()
            killed.append(helper.pid)

    settings = large_unlabeled_data(files)
    run("alone", settings=settings)
    hear = once_trained(lines, 2, kill_one)
    run("shared", at_once=2, log=hear, settings=[*settings, "shard_rows=1000"])
    failed = [line for line in lines if "failed" in line]
    assert len(killed) == len(failed) == 1
    assert "  failed: its process ended with -9 (1 of 3 tries)" in failed[0]
    assert "  rows " in failed[0]
    assert sum("labelled in" in line for line in lines) == 16
    assert sum("steps/s" in line for line in lines) == 2  # nobody trained anew
    one, other = scores(files / "alone"), scores(files / "shared")
    members = [name for name in one if name.startswith("members/")]
    assert len(members) == 4
    for name in members:  # other batches, so other last bits
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5)
