"""Members trained on a real Ray cluster: the same run as with one process, also when a worker is killed."""

import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from clozify import __version__
from clozify.errors import ClozifyError, RunError
from clozify.executors.ray import RayExecutor, WorkerActor
from tests.integration.conftest import SETTINGS
from tests.integration.test_bench import data, options  # noqa: F401
from tests.integration.test_processes import DyingJob, KilledJob, RefusedJob, one_thread, run_all  # noqa: F401
from tests.integration.test_shards import large_unlabeled_data, once_trained, run_to
from tests.integration.test_train import scores

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'clozify[ray]'")


@pytest.fixture(scope="module")
def store_port():
    """A free port for a local S3 server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def cluster(store_port):
    """One cluster for all tests: two CPUs, so two workers at a time, each a process of its own."""
    variables = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{store_port}", "AWS_DEFAULT_REGION": "us-east-1"}
    variables |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)  # the cluster's processes inherit them
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture(scope="module")
def bucket(cluster, store_port):
    """The address of a bucket of a local S3 server, or None where the packages for it are not installed."""
    if not all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask")):
        yield None
        return
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=store_port, verbose=False)
    server.start()
    fsspec.filesystem("s3").mkdir("clozify-test")
    yield "s3://clozify-test"
    server.stop()


def at_work() -> list[psutil.Process]:
    """The workers that run a job now: Ray writes it into the process's title."""
    results = []
    for process in psutil.Process().children(recursive=True):  # Ray's own processes are ours
        with suppress(psutil.NoSuchProcess, IndexError):
            if process.cmdline()[0].startswith("ray::WorkerActor.run"):
                results.append(process)
    return results


def without_waiting(lines):
    """What was logged, without that a busy machine's cluster took a while to start."""
    return [line for line in lines if not line.startswith("waiting for free resources")]


def test_a_worker_that_is_killed_is_replaced_and_leaves_no_half_a_job(worker):
    lines: list[str] = []
    worker.context.log = lines.append
    with RayExecutor(at_once=2) as executor:
        ((_, result),) = run_all(executor, worker, [KilledJob()])
    assert result.summary == "trained"
    assert (worker.folder.job_path("members", "key") / "member.json").exists()
    assert without_waiting(lines) == ["member 1/1  failed: its worker died (1 of 3 tries)"]
    assert "The actor died" in (worker.folder.path / "workers" / "0.txt").read_text()


@pytest.mark.slow
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
    assert run("shared", executor="ray", at_once=2, log=lines.append, **more) == alone
    assert killed
    assert any("failed: its worker died (1 of 3 tries)" in line for line in lines)
    one, other = scores(files / "alone"), scores(files / "shared")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert (files / "shared" / "classifier" / "config.json").exists()
    logs = [log.read_text() for log in (files / "shared" / "workers").iterdir()]
    assert len(logs) == 1
    assert f"Worker PID: {killed[0]}" in logs[0] or f"pid: {killed[0]}" in logs[0]


@pytest.mark.slow
def test_large_unlabelled_data_is_labelled_in_shards_and_one_whose_worker_is_killed_is_done_again_alone(run, files):
    """A shard that is lost, or joined in the wrong place, gives thousands of rows another row's label."""
    lines: list[str] = []
    killed = []

    def kill_one():
        while not killed:
            for process in at_work()[:1]:
                process.kill()
                killed.append(process.pid)

    settings = large_unlabeled_data(files)
    alone = run("alone", settings=settings)
    hear = once_trained(lines, 2, kill_one)
    shared = run("shared", executor="ray", at_once=2, log=hear, settings=[*settings, "shard_rows=1000"])
    failed = [line for line in lines if "failed" in line]
    assert len(failed) == 1
    assert "  failed: its worker died (1 of 3 tries)" in failed[0]
    assert "  rows " in failed[0]
    assert sum("labelled in" in line for line in lines) == 16
    assert sum("steps/s" in line for line in lines) == 2  # nobody trained anew
    assert shared["members"] == alone["members"]
    one, other = scores(files / "alone"), scores(files / "shared")
    members = [name for name in one if name.startswith("members/")]
    assert len(members) == 4
    for name in members:  # other batches, so other last bits
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5)
    assert not [name for name in ("shards", "trained", "weights") if (files / "shared" / name).exists()]


@pytest.mark.slow
def test_the_sample_data_gives_the_same_scores_on_a_cluster_as_here(files, monkeypatch, capsys):
    """The promise itself, with the built-in model and the command that people give."""
    import pandas as pd

    from clozify import cli
    from clozify.config.task import load_task
    from clozify.data.readers import SAMPLE

    for name, every in (("unlabeled", 200), ("test", 50)):
        pd.read_csv(SAMPLE / f"{name}.csv.gz")[::every].to_csv(files / f"{name}.csv", index=False)
    task = load_task("debian")
    task.with_changes(patterns=task.patterns[:2]).save(files / "debian.toml")
    command = ["clozify", "train", str(files / "debian.toml"), "--labeled", "builtin:labeled", "--examples", "14"]
    command += ["--model", "builtin:mini"]
    command += ["--unlabeled", str(files / "unlabeled.csv"), "--test", str(files / "test.csv"), "--recipe", "quick"]
    command += ["--json", "--quiet"]
    steps = [f"{part}.max_steps=1" for part in ("finetune", "finetune_without_lm", "distill")]
    for setting in ("repetitions=1", "max_seq_length=48", *steps):
        command += ["--set", setting]
    messages = []
    for run_path, more in (("here", []), ("there", ["--executor", "ray", "--at-once", "2"])):
        monkeypatch.setattr(sys, "argv", [*command, "--output", str(files / run_path), *more])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        messages.append(json.loads(capsys.readouterr().out))
    assert messages[0] == messages[1]
    one, other = scores(files / "here"), scores(files / "there")
    assert one.keys() == other.keys()
    assert len(one) == 5  # two members with unlabelled data and test rows, one classifier
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_bench_predicts_the_same_on_a_cluster_though_a_worker_is_killed(data, tiny_folder, monkeypatch):  # noqa: F811
    """A cell that is lost with its worker, or has another draw's rows, changes the comparison silently."""
    from clozify.bench.run import run_bench

    lines: list[str] = []
    killed = []

    def kill_one():
        while not killed:
            for process in at_work()[:1]:
                process.kill()
                killed.append(process.pid)
            time.sleep(0.02)

    (data / "mine.toml").write_text("max_seq_length = 32\n")
    monkeypatch.chdir(data)  # the cluster's processes are elsewhere
    cells = {"methods": ["tfidf", "zero-shot"], "draws": 2, "recipe": "mine.toml"}
    cells["model"] = str(tiny_folder("bert"))
    here = run_bench(options(data, output=data / "here", **cells))
    threading.Thread(target=kill_one, daemon=True).start()
    there = run_bench(options(data, output=data / "there", executor="ray", at_once=2, log=lines.append, **cells))
    assert killed
    assert any("failed: its worker died (1 of 3 tries)" in line for line in lines)
    assert (here.done, there.done, there.failed) == (4, 4, 0)
    predictions = [
        {path.parent.name: np.load(path) for path in (data / name / "cells").glob("*/predictions.npy")}
        for name in ("here", "there")
    ]
    assert predictions[0].keys() == predictions[1].keys()
    assert len(predictions[0]) == 4
    assert all(np.array_equal(predictions[0][key], labels) for key, labels in predictions[1].items())


@pytest.mark.slow
def test_a_job_that_fails_three_times_ends_the_run_with_its_log(worker):
    lines: list[str] = []
    worker.context.log = lines.append
    with RayExecutor(at_once=1) as executor, pytest.raises(RunError) as error:
        run_all(executor, worker, [DyingJob()])
    reasons = ["its worker died", "ValueError: no luck", "ValueError: no luck"]
    failures = [line for line in lines if "failed" in line]  # a busy machine may also be slow to start workers
    assert failures == [f"member 1/1  failed: {reason} ({n} of 3 tries)" for n, reason in enumerate(reasons, start=1)]
    log = worker.folder.path / "workers" / "0.txt"
    assert f"failed 3 times, the last time with: ValueError: no luck; see {log}" in str(error.value)
    assert "The actor died" in log.read_text()
    assert log.read_text().count("Traceback") == 2
    assert not at_work()


@pytest.mark.slow
def test_an_error_that_the_user_can_correct_is_raised_at_once(worker):
    """Tried three times, a wrong learning rate would cost three trainings."""
    lines: list[str] = []
    worker.context.log = lines.append
    with RayExecutor(at_once=1) as executor, pytest.raises(ClozifyError, match="The loss is nan"):
        run_all(executor, worker, [RefusedJob()])
    assert not without_waiting(lines)


@pytest.mark.slow
def test_trackers_log_the_losses_of_workers(run, files):
    """A tracker without the members' losses looks as if nothing was trained."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines: list[str] = []
    more = {"method": "supervised", "unlabeled": None, "trackers": ["tensorboard"], "log": lines.append}
    run(executor="ray", at_once="auto", **more)  # one worker of the cluster measures what a model takes
    assert [line for line in lines if line.startswith("at once: 1 on each machine; one takes 0.")]
    events = {path.parent for path in (files / "run" / "trackers").rglob("events.out.tfevents.*")}
    tags = [tag for run_path in events for tag in EventAccumulator(str(run_path)).Reload().Tags()["scalars"]]
    assert len([tag for tag in tags if tag.endswith("/loss")]) == 2  # one a training


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_folder_or_has_another_version_is_named(worker):
    """It would write its results to a disk that nobody reads."""
    actor = WorkerActor(worker.plan, "cpu", worker.folder.opener(other_machine=True), "workers/.probe", 1)
    assert "does not see the run's folder" in (actor.check(__version__) or "")
    assert "not 0.0.1; install the same" in (actor.check("0.0.1") or "")
    (worker.folder.path / "workers").mkdir()
    (worker.folder.path / "workers" / ".probe").touch()
    assert actor.check(__version__) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_run_in_a_store_that_is_killed_resumes_and_its_classifier_predicts(run, files, cluster, bucket, kind):
    """Half a member in the store would count as one; a run that only its own machine can read is lost with it."""
    if kind == "s3" and bucket is None:
        pytest.skip("s3fs and moto are not installed: pip install s3fs 'moto[server]'")
    from clozify.inference.finished_run import evaluate, predict
    from clozify.runs.object_store import ObjectStore

    address = f"{bucket}/runs/one" if kind == "s3" else f"file://{files}/store/one"
    alone = run("alone")
    options = ["clozify", "train", files / "task.toml", "--labeled", files / "labeled.csv", "--output", address]
    options += ["--unlabeled", files / "unlabeled.csv", "--test", files / "test.csv", "--model", alone["model"]]
    options += ["--recipe", "paper"]
    options += [word for setting in SETTINGS for word in ("--set", setting)]
    options += ["--executor", "ray", "--address", cluster, "--at-once", "2"]  # so one thread each, as alone
    code = "import sys; from clozify.cli import main; sys.argv = sys.argv[1:]; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, options)])
    store, whole = ObjectStore(address), []
    until = time.monotonic() + 150
    while not whole and time.monotonic() < until:
        whole = [name for name in store.names() if name.startswith("members/") and name.endswith("/whole.json")]
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert whole
    lines: list[str] = []
    metrics = run_to(run, address, lines, executor="ray", at_once=2)
    assert metrics == alone
    assert sum("already done" in line for line in lines) >= 1
    assert sum("already done" in line for line in lines) < 6
    assert lines[-1].endswith(f"the run is in {address}")
    for name, expected in scores(files / "alone").items():
        (files / "one.npy").write_bytes(store.read(name) or b"")
        assert np.array_equal(np.load(files / "one.npy"), expected)
    assert not [name for name in store.names() if name.startswith("lock") or name.endswith(".part")]
    assert {"run.json", "metrics.json", "ensemble.json", "labels.parquet", "log.txt"} <= set(store.names())
    one = predict(address, files / "test.csv").probabilities
    other = predict(files / "alone", files / "test.csv").probabilities
    assert np.array_equal(one, other)
    assert evaluate(f"{address}/classifier", files / "test.csv").rows == 40
