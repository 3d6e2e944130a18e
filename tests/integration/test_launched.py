"""One model trained by two processes of Accelerate's launcher: the same run as with one, and one folder."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import clozify
from tests.integration.conftest import SETTINGS
from tests.integration.test_train import scores


@pytest.fixture
def still(tiny_folder, tmp_path):
    """A tiny model without dropout: with it, two processes draw otherwise than one."""
    folder = shutil.copytree(tiny_folder("bert"), tmp_path / "still")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


UNEVEN = ["finetune.gradient_accumulation_steps=3", "distill.per_gpu_train_batch_size=5"]
FEW = ["finetune.gradient_accumulation_steps=1", "distill.per_gpu_train_batch_size=1"]
FEW += ["finetune.per_gpu_train_batch_size=1", "distill.gradient_accumulation_steps=1"]


def launch(files, model, output, settings, *options) -> subprocess.Popen[str]:
    """The command as people give it, in two processes on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--main_process_port", port, "-m", "clozify", "train", files / "task.toml"]
    command += ["--recipe", "paper"]
    command += [
        "--labeled",
        files / "labeled.csv",
        "--test",
        files / "test.csv",
        "--unlabeled",
        files / "unlabeled.csv",
    ]
    command += ["--model", model, "--output", output, "--devices", "cpu", "--json", "--quiet", *options]
    command += [word for setting in settings for word in ("--set", setting)]
    path = os.pathsep.join([str(Path(clozify.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def ranks(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a launcher, by rank."""
    return sorted(psutil.Process(launcher.pid).children(), key=lambda process: process.environ()["RANK"])


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others_and_the_run_resumes(run, files, still):
    """Ranks that wait for a dead one would wait for days; what both have trained must be what one would have."""
    settings = [*SETTINGS, "finetune.max_steps=20"]
    launcher = launch(files, still, files / "both", settings)
    deadline = time.monotonic() + 200
    finished: list[Path] = []
    while not finished and time.monotonic() < deadline:
        finished = list((files / "both" / "members").glob("*/member.json"))
        time.sleep(0.01)
    processes = ranks(launcher)
    processes[1].kill()
    launcher.communicate(timeout=60)
    assert launcher.returncode != 0
    assert not psutil.wait_procs(processes, timeout=20)[1]
    lines: list[str] = []
    run("both", settings=settings, model=str(still), log=lines.append)
    assert sum("already done" in line for line in lines) >= 1
    run("alone", settings=settings, model=str(still))
    one, other = scores(files / "alone"), scores(files / "both")
    for name in [name for name in one if name.startswith("members/")]:
        np.testing.assert_allclose(other[name], one[name], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [UNEVEN, FEW], ids=["uneven", "few"])
def test_two_processes_of_the_launcher_leave_the_same_run_as_one(run, files, still, settings):
    """Gradients that are added wrongly train another model, and nothing looks odd."""
    settings = [*SETTINGS, *settings]  # shares that differ, or steps of which one process has no row
    alone = run("alone", settings=settings, model=str(still), dev=files / "test.csv", allow_overlap=True)
    launcher = launch(files, still, files / "both", settings, "--dev", files / "test.csv", "--allow-overlap")
    printed, errors = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, errors
    both = json.loads(printed)  # printed once
    assert both["members"]["accuracy"] == pytest.approx(alone["members"]["accuracy"])
    one, other = scores(files / "alone"), scores(files / "both")
    members = [name for name in one if name.startswith("members/")]
    assert len(members) == 8
    for name in members:
        np.testing.assert_allclose(other[name], one[name], atol=1e-4)
    for kind in ("members", "classifiers"):
        theirs = sorted((files / "both" / kind).glob("*/test.npy"))
        assert len(theirs) == len(list((files / "alone" / kind).glob("*/test.npy")))
    labels = [np.load(file) for file in sorted((files / "both" / "classifiers").glob("*/test.npy"))]
    before = [np.load(file) for file in sorted((files / "alone" / "classifiers").glob("*/test.npy"))]
    near = [min(np.abs(result - kept).max() for kept in before) for result in labels]  # keys hash the soft labels
    assert max(near) < 1e-4
    courses = [
        sorted(json.loads(file.read_text())["loss"] for file in (files / run_path / "members").glob("*/member.json"))
        for run_path in ("alone", "both")
    ]
    np.testing.assert_allclose(courses[0], courses[1], atol=1e-4)
    assert (files / "both" / "classifier" / "model.safetensors").exists()
