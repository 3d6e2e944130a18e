"""Members trained by several processes at a time: the same run as with one, whoever dies on the way."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from clozify.errors import ClozifyError, RunError
from clozify.executors import local
from clozify.executors.local import choose_devices
from clozify.executors.processes import Processes
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import JobResult
from clozify.runs.worker import Worker
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


def helpers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "clozify.executors.processes" in child.cmdline()]


def test_two_processes_leave_the_same_run_as_one_though_one_is_killed(run, files):
    """A member that depends on who trained it, or is lost with its process, changes the ensemble without a word."""
    lines: list[str] = []
    killed = []

    def kill_one():
        while not killed:
            for helper in helpers_of(psutil.Process())[:1]:
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


def test_without_labelled_rows_the_untrained_pairs_are_shared_out_too(run, files):
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


class Unlucky:
    """Work that always fails."""

    name = "member 1/1"

    def run(self, _):
        raise ValueError("no luck")


class Deadly(Unlucky):
    """Work that ends its process."""

    def run(self, _):
        os._exit(3)


class Mendable(Unlucky):
    """Work that finds something the user can mend."""

    def run(self, _):
        raise ClozifyError("The loss is nan.")


@pytest.fixture
def worker(files, tiny_folder):
    from clozify.pipeline.train import prepare

    plan = prepare(files / "task.toml", files / "labeled.csv", model=str(tiny_folder("bert")), device="cpu")
    with RunFolder(files / "run") as folder:
        yield Worker(plan, folder, RunContext("cpu"))


@pytest.mark.parametrize(("work", "reason"), [(Unlucky, "ValueError: no luck"), (Deadly, "ended with 3")])
def test_work_that_fails_three_times_stops_the_run_with_its_log(worker, work, reason):
    with Processes(1) as processes, pytest.raises(RunError) as error:
        run_all(processes, worker, [work()])
    assert f"failed 3 times, at last with: {reason}" in str(error.value).replace("its process ", "")
    assert (worker.folder.path / "workers" / "0.txt").exists()


def test_a_process_that_is_replaced_leaves_its_gpu_to_its_successor(worker, monkeypatch):
    """On the next one's GPU it would be in its way, and its own would stand idle."""
    from clozify.executors import processes as module

    started = []
    popen = module.subprocess.Popen

    def start(*given, env, **more):
        started.append(env["CUDA_VISIBLE_DEVICES"])
        return popen(*given, env=env, **more)

    monkeypatch.setattr(module.subprocess, "Popen", start)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with Processes(3, gpus=3) as processes, pytest.raises(RunError):
        run_all(processes, worker, [Deadly()])  # all three tries are the first process's
    assert started == ["0", "0", "0"]


class Telling(Unlucky):
    """Work that says which process did it."""

    def run(self, _):
        return JobResult(str(os.getpid()))


def test_processes_for_gpus_are_started_when_a_run_begins_and_do_its_work(worker):
    """As many as will have work; though no GPU is here to be opened, which is for the work itself to meet."""
    with Processes(3, gpus=1) as processes:
        processes.start(worker, 2)
        early = {helper.process.pid for helper in processes.helpers.values() if helper}
        assert len(early) == 2
        for _ in range(2):
            processes.submit(Telling())
        assert {int(result.summary) for _, result in processes.as_completed()} <= early
        assert len(helpers_of(psutil.Process())) == 2
    assert not helpers_of(psutil.Process())
    assert [path.read_text() for path in (worker.folder.path / "workers").iterdir()] == ["", ""]


def test_processes_for_gpus_that_get_no_work_end_with_the_run(worker):
    """A run that was finished before, or that fails at once."""
    with Processes(2, gpus=1) as processes:
        processes.start(worker, 2)
    assert not helpers_of(psutil.Process())


def test_on_a_cpu_nobody_is_started_before_there_is_work(worker):
    """They would only take it from the run's own process."""
    with Processes(2) as processes:
        processes.start(worker, 2)
        assert not helpers_of(psutil.Process())


@pytest.mark.parametrize(("done", "expected"), [(False, [2]), (True, [])])
def test_a_run_says_how_much_work_will_come_unless_it_was_done_before(run, files, monkeypatch, done, expected):
    """Two pairs, one seed."""
    begun, start = [], Processes.start

    def count_jobs(self, worker, expected_jobs):
        begun.append(expected_jobs)
        start(self, worker, expected_jobs)

    monkeypatch.setattr(Processes, "start", count_jobs)
    settings = [*SETTINGS, "repetitions=1"]
    run("shared", at_once=2, settings=settings)
    if done:
        begun.clear()
        run("shared", at_once=2, settings=settings)
    assert begun == expected


def test_what_the_user_can_mend_is_said_at_once(worker):
    """Tried three times, a wrong learning rate would cost three trainings."""
    said: list[str] = []
    worker.context.log = said.append
    with Processes(1) as processes, pytest.raises(ClozifyError, match="The loss is nan"):
        run_all(processes, worker, [Mendable()])
    assert not said


def test_the_processes_end_when_the_run_s_own_process_is_killed(files, tiny_folder):
    """Left alone they would write into a folder that somebody else has taken up."""
    code = (
        "import sys; from clozify.pipeline.train import train; task, labeled, pile, model, output = sys.argv[1:]; "
        "train(task, labeled, output, at_once=2, unlabeled=pile, model=model, settings=['finetune.max_steps=9999'])"
    )
    given = [files / "task.toml", files / "labeled.csv", files / "pile.csv", tiny_folder("bert"), files / "run"]
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, given)])
    helpers: list[psutil.Process] = []
    until = time.monotonic() + 100
    while len(helpers) < 2 and time.monotonic() < until:
        helpers = helpers_of(psutil.Process(process.pid))
        time.sleep(0.1)
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(helpers, timeout=20)
    assert len(gone) == 2
    assert not alive


def test_devices_that_are_not_there_are_refused(run):
    assert choose_devices("cpu").at_once == 1
    for asked, sentence in (("99", "asks for 99 GPUs"), ("all", "is 'all'"), ("0", "is '0'")):
        with pytest.raises(RunError, match=sentence):
            choose_devices(asked)
    with pytest.raises(RunError, match="at least 1"):
        choose_devices("cpu", 0)


def test_trackers_hear_of_steps_that_other_processes_take(run, files):
    """A tracker without the members' losses looks as if nothing was trained."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(at_once=2, method="supervised", unlabeled=None, trackers=["tensorboard"])
    events = {path.parent for path in (files / "run" / "trackers").rglob("events.out.tfevents.*")}
    tags = [tag for place in events for tag in EventAccumulator(str(place)).Reload().Tags()["scalars"]]
    assert len([tag for tag in tags if tag.endswith("/loss")]) == 2  # one a training


def test_auto_measures_one_model_in_a_process_of_its_own_and_says_what_it_chose(run, files, tiny_folder, monkeypatch):
    """Measured in the run's own process, the memory of the trial would be gone for what follows."""
    import torch

    from clozify.pipeline import concurrency as room

    lines: list[str] = []
    assert run("auto", at_once="auto", log=lines.append) == run("alone")
    (told,) = [line for line in lines if line.startswith("at once: ")]
    assert "at once: 1 on each machine; one takes 0." in told  # one thread in this test
    assert told.endswith("what decides is the number of threads, 1")
    found: list[room.Measured] = []
    fitting = room.fitting
    monkeypatch.setattr(room, "fitting", lambda measured, models: found.append(measured) or fitting(measured, models))
    torch.set_num_threads(2)
    assert main(monkeypatch, files, "--plan", "--at-once", "auto", "--model", tiny_folder("bert"))["at_once"] == 1
    assert found[0].threads == 2
    assert 100 << 20 < found[0].need < 4 << 30 < found[0].free


def main(monkeypatch, files, *more):
    """What the command prints."""
    import io
    import json
    from contextlib import redirect_stdout

    from clozify import cli

    given = ["clozify", "train", files / "task.toml", "--labeled", files / "labeled.csv", "--output", files / "planned"]
    printed = io.StringIO()
    monkeypatch.setattr(sys, "argv", [*map(str, given), "--json", *map(str, more)])
    with redirect_stdout(printed), pytest.raises(SystemExit):
        cli.main()
    return json.loads(printed.getvalue())


CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then
  echo started $CUDA_VISIBLE_DEVICES >> {log}
  sleep 1000 & echo $! > $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
else
  read line; echo $line >> {log}; {then}
fi
"""


@pytest.mark.parametrize(
    "then", ["kill $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid)", "exec sleep 1000"]
)
def test_nvidias_service_is_for_the_helpers_alone_and_cannot_hold_a_run_up(tmp_path, monkeypatch, then):
    """It ends after its last client: a run that was one itself would wait for its own end."""
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text(CONTROL.format(log=log, then=then))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(local, "PATIENCE", 1)
    began = time.monotonic()
    with local.shared_gpu() as variables:
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


def test_helpers_get_the_variables_meant_for_them(run, monkeypatch):
    """Without them they would take turns on a GPU, and nobody would notice but by the clock."""
    seen = []
    started = subprocess.Popen

    def start(*command, **how):
        seen.append(how.get("env") or {})
        return started(*command, **how)

    def two(devices):
        return Processes(2, variables={"CLOZIFY_FOR_HELPERS": "yes"})

    monkeypatch.setattr("clozify.executors.processes.subprocess.Popen", start)
    monkeypatch.setattr("clozify.executors.select.executor_for", two)
    run("shared", at_once=2)
    assert [environment.get("CLOZIFY_FOR_HELPERS") for environment in seen if "CLOZIFY_FOR_HELPERS" in environment]
    assert "CLOZIFY_FOR_HELPERS" not in os.environ
