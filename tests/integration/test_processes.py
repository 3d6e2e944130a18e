"""Members trained by several processes at a time: the same run as with one, also when a process is killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from clozify.errors import ClozifyError, RunError
from clozify.executors.processes import ProcessExecutor
from clozify.runs.jobs import JobResult
from tests.integration.conftest import SETTINGS
from tests.integration.test_train import scores


@pytest.fixture(autouse=True)
def one_thread():
    """The last bits of a CPU's results depend on the number of threads, and each process gets its share of them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def worker_processes(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "clozify.executors.worker_process" in child.cmdline()]


@pytest.mark.slow
def test_two_processes_leave_the_same_run_as_one_though_one_is_killed(run, files):
    """A member that depends on who trained it, or is lost with its process, changes the ensemble without a word."""
    lines: list[str] = []
    killed = []

    def kill_one():
        while not killed:
            for helper in worker_processes(psutil.Process())[:1]:
                time.sleep(1)  # somewhere in its work, or still loading
                helper.kill()
                killed.append(helper.pid)
            time.sleep(0.05)

    more = {"method": "ipet", "settings": [*SETTINGS, "ipet.generations=1", "finetune.max_steps=3"]}
    alone = run("alone", **more)
    threading.Thread(target=kill_one, daemon=True).start()
    assert run("shared", at_once=2, log=lines.append, **more) == alone
    assert killed
    assert any("its process ended with -9 (1 of 3 tries)" in line for line in lines)
    one, other = scores(files / "alone"), scores(files / "shared")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert (files / "shared" / "classifier" / "config.json").exists()


@pytest.mark.slow
def test_without_labelled_rows_the_untrained_pairs_are_scored_by_all_processes(run, files):
    """A process that was at work on something else before must still label with the pretrained weights."""
    more = {"labeled": None, "method": "ipet", "settings": [*SETTINGS, "ipet.generations=1", "repetitions=1"]}
    alone = run("alone", **more)
    assert run("shared", at_once=2, **more) == alone
    one, other = scores(files / "alone"), scores(files / "shared")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


def run_all(executor, worker, jobs):
    """Each job and its result, as they are completed."""
    executor.start(worker, len(jobs))
    for job in jobs:
        executor.submit(job)
    return list(executor.as_completed())


class DyingJob:
    """Ends its process the first time, and raises from then on."""

    name = "member 1/1"

    def run(self, worker):
        if not (worker.folder.path / "tried").exists():
            (worker.folder.path / "tried").touch()
            os._exit(3)
        raise ValueError("no luck")


class KilledJob:
    """Is killed in the middle of its first run, as by the system when memory runs out."""

    name = "member 1/1"

    def run(self, worker):
        with worker.folder.writing("members", "key") as written:
            (written / "member.json").write_text(str(os.getpid()))
            if not (worker.folder.path / "tried").exists():
                (worker.folder.path / "tried").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return JobResult("trained")


class RefusedJob:
    """Raises something that the user can correct."""

    name = "member 1/1"

    def run(self, _):
        raise ClozifyError("The loss is nan.")


class PidJob:
    """Returns the process that ran it."""

    name = "member 1/1"

    def run(self, _):
        return JobResult(str(os.getpid()))


def test_a_worker_that_is_killed_is_replaced_and_leaves_no_half_a_job(worker):
    lines: list[str] = []
    worker.context.log = lines.append
    with ProcessExecutor(1) as executor:
        ((_, result),) = run_all(executor, worker, [KilledJob()])
        assert result.summary == "trained"
        (process,) = worker_processes(psutil.Process())
        assert (worker.folder.job_path("members", "key") / "member.json").read_text() == str(process.pid)
    assert lines == ["member 1/1  failed: its process ended with -9 (1 of 3 tries)"]
    assert not worker_processes(psutil.Process())


@pytest.mark.slow
def test_a_job_that_fails_three_times_ends_the_run_with_its_log(worker):
    lines: list[str] = []
    worker.context.log = lines.append
    with ProcessExecutor(1) as executor, pytest.raises(RunError) as error:
        run_all(executor, worker, [DyingJob()])
    reasons = ["its process ended with 3", "ValueError: no luck", "ValueError: no luck"]
    assert lines == [f"member 1/1  failed: {reason} ({n} of 3 tries)" for n, reason in enumerate(reasons, start=1)]
    log = worker.folder.path / "workers" / "0.txt"
    assert f"failed 3 times, the last time with: ValueError: no luck; see {log}" in str(error.value)
    assert log.read_text().count("Traceback") == 2


@pytest.mark.slow
def test_processes_for_gpus_are_started_with_the_run_and_run_its_jobs(worker):
    """As many as there will be jobs; a GPU that cannot be opened is left to the first job to report."""
    with ProcessExecutor(3, gpus=1) as executor:
        executor.start(worker, 2)
        early = {handle.process.pid for handle in executor.handles}
        assert len(early) == 2
        for _ in range(2):
            executor.submit(PidJob())
        assert {int(result.summary) for _, result in executor.as_completed()} <= early
        assert len(worker_processes(psutil.Process())) == 2
    assert not worker_processes(psutil.Process())
    assert [path.read_text() for path in (worker.folder.path / "workers").iterdir()] == ["", ""]


@pytest.mark.slow
def test_processes_for_gpus_that_get_no_job_end_with_the_run(worker):
    """A run that was finished before, or that fails at once."""
    with ProcessExecutor(2, gpus=1) as executor:
        executor.start(worker, 2)
    assert not worker_processes(psutil.Process())


def test_on_a_cpu_no_process_is_started_before_there_is_a_job(worker):
    """They would compete with the main process for its processor."""
    with ProcessExecutor(2) as executor:
        executor.start(worker, 2)
        assert not worker_processes(psutil.Process())


@pytest.mark.slow
@pytest.mark.parametrize(("done", "expected"), [(False, [2]), (True, [0])])
def test_a_run_states_how_many_jobs_to_expect_and_none_when_all_are_finished(run, files, monkeypatch, done, expected):
    """Two pairs, one seed."""
    stated, start = [], ProcessExecutor.start

    def count_jobs(self, worker, expected_jobs):
        stated.append(expected_jobs)
        start(self, worker, expected_jobs)

    monkeypatch.setattr(ProcessExecutor, "start", count_jobs)
    settings = [*SETTINGS, "repetitions=1"]
    run("shared", at_once=2, settings=settings)
    if done:
        stated.clear()
        run("shared", at_once=2, settings=settings)
    assert stated == expected


@pytest.mark.slow
def test_an_error_that_the_user_can_correct_is_raised_at_once(worker):
    """Tried three times, a wrong learning rate would cost three trainings."""
    lines: list[str] = []
    worker.context.log = lines.append
    with ProcessExecutor(1) as executor, pytest.raises(ClozifyError, match="The loss is nan"):
        run_all(executor, worker, [RefusedJob()])
    assert not lines


@pytest.mark.slow
def test_the_workers_end_when_the_main_process_is_killed(files, tiny_folder):
    """They would go on writing to a folder that a new process may have locked."""
    code = (
        "import sys; from clozify import train; task, labeled, rows, model, output = sys.argv[1:]; "
        "train(task, labeled, output, at_once=2, unlabeled=rows, model=model, recipe='paper', "
        "settings=['finetune.max_steps=9999'])"
    )
    inputs = [files / "task.toml", files / "labeled.csv", files / "unlabeled.csv", tiny_folder("bert"), files / "run"]
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, inputs)])
    helpers: list[psutil.Process] = []
    until = time.monotonic() + 100
    while len(helpers) < 2 and time.monotonic() < until:
        helpers = worker_processes(psutil.Process(process.pid))
        time.sleep(0.1)
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(helpers, timeout=20)
    assert len(gone) == 2
    assert not alive


@pytest.mark.slow
def test_trackers_log_the_losses_of_workers(run, files):
    """A tracker without the members' losses looks as if nothing was trained."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(at_once=2, method="supervised", unlabeled=None, trackers=["tensorboard"])
    events = {path.parent for path in (files / "run" / "trackers").rglob("events.out.tfevents.*")}
    tags = [tag for run_path in events for tag in EventAccumulator(str(run_path)).Reload().Tags()["scalars"]]
    assert len([tag for tag in tags if tag.endswith("/loss")]) == 2  # one a training


@pytest.mark.slow
def test_auto_measures_one_model_in_a_process_of_its_own_and_says_what_it_chose(run, files, tiny_folder, monkeypatch):
    """Measured in the run's own process, the memory of the trial would be gone for what follows."""
    import torch

    from clozify.pipeline import concurrency

    lines: list[str] = []
    assert run("auto", at_once="auto", log=lines.append) == run("alone")
    (line,) = [line for line in lines if line.startswith("at once: ")]
    assert "at once: 1 on each machine; one takes 0." in line  # one thread in this test
    assert line.endswith("the limit is the number of threads, 1")
    measurements: list[concurrency.MemoryUse] = []
    fit_models = concurrency.fit_models
    monkeypatch.setattr(
        concurrency, "fit_models", lambda memory, models: measurements.append(memory) or fit_models(memory, models)
    )
    torch.set_num_threads(2)
    assert main(monkeypatch, files, "--plan", "--at-once", "auto", "--model", tiny_folder("bert"))["at_once"] == 1
    assert measurements[0].threads == 2
    assert 100 << 20 < measurements[0].peak < 4 << 30 < measurements[0].free


def main(monkeypatch, files, *more):
    """What the command prints."""
    import io
    import json
    from contextlib import redirect_stdout

    from clozify import cli

    inputs = [
        "clozify",
        "train",
        files / "task.toml",
        "--labeled",
        files / "labeled.csv",
        "--output",
        files / "planned",
        "--recipe",
        "paper",
    ]
    printed = io.StringIO()
    monkeypatch.setattr(sys, "argv", [*map(str, inputs), "--json", *map(str, more)])
    with redirect_stdout(printed), pytest.raises(SystemExit):
        cli.main()
    return json.loads(printed.getvalue())
