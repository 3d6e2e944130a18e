"""One model trained by two processes of Accelerate's launcher: the same run as with one, and one folder."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clozify
from clozify.errors import RunError
from clozify.executors.accelerate_launch import Beside
from clozify.executors.select import choose_executor
from clozify.runs.folder import RunFolder
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


def launch(files, settings, *more) -> subprocess.CompletedProcess[str]:
    """The command as people give it, in two processes on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    asked += ["--num_machines", "1", "--main_process_port", port, "-m", "clozify", "train", files / "task.toml"]
    asked += ["--labeled", files / "labeled.csv", "--test", files / "test.csv", "--devices", "cpu", *more]
    asked += [word for setting in settings for word in ("--set", setting)]
    path = os.pathsep.join([str(Path(clozify.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        list(map(str, asked)), capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=300
    )


@pytest.mark.parametrize("settings", [UNEVEN, pytest.param(FEW, marks=pytest.mark.slow)], ids=["uneven", "few"])
def test_two_processes_of_the_launcher_leave_the_same_run_as_one(run, files, still, settings):
    """Gradients that are added wrongly train another model, and nothing looks odd."""
    settings = [*SETTINGS, *settings]  # shares that differ, or steps of which one process has no row
    alone = run("alone", settings=settings, model=str(still), dev=files / "test.csv", allow_overlap=True)
    more = ["--unlabeled", files / "pile.csv", "--model", still, "--output", files / "both", "--json", "--quiet"]
    done = launch(files, settings, *more, "--dev", files / "test.csv", "--allow-overlap")
    assert done.returncode == 0, done.stderr
    both = json.loads(done.stdout)  # printed once
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
    near = [min(np.abs(found - kept).max() for kept in before) for found in labels]  # keys hash the soft labels
    assert max(near) < 1e-4
    courses = [
        sorted(json.loads(file.read_text())["loss"] for file in (files / place / "members").glob("*/member.json"))
        for place in ("alone", "both")
    ]
    np.testing.assert_allclose(courses[0], courses[1], atol=1e-4)
    assert (files / "both" / "classifier" / "model.safetensors").exists()


def test_the_launcher_excludes_other_ways_to_run(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for asked in ({"name": "ray"}, {"at_once": 2}, {"devices": "2"}):
        with pytest.raises(RunError, match="has started 2 processes"):
            choose_executor(**asked)


def test_a_process_that_helps_reads_the_run_but_leaves_nothing_in_it(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        with folder.writing("soft", "a") as beside:
            (beside / "one").touch()
        helper = Beside(folder)
        assert (helper.job("soft", "a") / "one").exists()
        for kind in ("members", "tokens"):
            with helper.writing(kind, "b") as beside:
                (beside / "two").touch()
        assert not beside.exists()
        assert not helper.job("members", "b").exists()
        assert helper.job("tokens", "b").exists()  # whoever comes first writes them
