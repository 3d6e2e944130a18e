"""iPET as a person starts it, with a tiny model: generations, without labelled rows, resumed, cut short."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from clozify.errors import ClozifyError
from tests.integration.checks import assert_metrics_are_those_of_the_scores
from tests.integration.conftest import SETTINGS, TASK
from tests.integration.test_train import scores

IPET = [*SETTINGS, "ipet.d=2", "ipet.enough=35"]  # 10, 20, 40 rows


def test_generations_grow_by_d_and_each_is_told(run):
    metrics = run(method="ipet", settings=IPET)
    assert [messages["generation"] for messages in metrics["generations"]] == [0, 1, 2]
    assert [messages["training_rows"] for messages in metrics["generations"]] == [10, 20, 40]
    assert metrics["generations"][2]["accuracy"] == np.mean([m["accuracy"] for m in metrics["members"]["each"]])
    for messages in metrics["generations"][1:]:
        assert 0 <= messages["agreement"] <= 1
        assert 0 < messages["certainty_of_drawn"] <= 1
        assert messages["drawn"]["1"] == messages["drawn"]["2"]  # the ratio of T
        assert 0 <= messages["min"] <= messages["accuracy"] <= messages["max"] <= 1
    assert {"members", "ensemble", "classifier"} <= set(metrics)


def test_without_labelled_rows_the_untrained_pairs_are_the_first_generation(run, files):
    settings = [*SETTINGS, "ipet.d=2", "ipet.generations=2", "ipet.zero_shot_examples=5"]
    metrics = run(method="ipet", labeled=None, settings=settings)
    assert [messages["training_rows"] for messages in metrics["generations"]] == [0, 5, 10]
    assert metrics["generations"][1]["drawn"] == {"1": 3.0, "2": 2.0}
    weights = {member["weight"] for member in json.loads((files / "run" / "ensemble.json").read_text())["weights"]}
    assert weights == {1.0}
    untrained = list((files / "run" / "untrained").glob("*/unlabeled.npy"))
    assert len(untrained) == 2  # a pair is scored once, whatever the seeds


def test_without_labelled_rows_and_generations_the_untrained_pairs_label_the_rows(run, files):
    metrics = run(method="ipet", labeled=None, settings=[*SETTINGS, "ipet.generations=0"])
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")
    assert metrics["generations"][0]["accuracy"] == pytest.approx(metrics["unsupervised"]["accuracy"])
    with pytest.raises(ClozifyError, match="nothing is trained"):
        run("other", method="ipet", labeled=None, settings=[*SETTINGS, "ipet.generations=0", "distillation=false"])


def test_calibrated_untrained_pairs_are_kept_apart_from_raw_ones(run, files):
    """The raw scores of a run without the setting must not label the rows of one with it."""
    settings = [*SETTINGS, "ipet.generations=0"]
    raw = run(method="ipet", labeled=None, settings=settings)
    metrics = run(method="ipet", labeled=None, settings=[*settings, "ipet.calibrate=true"], replace=True)
    assert metrics["unsupervised"] == raw["unsupervised"]  # the paper's rows
    for before, after in zip(raw["generations"][0]["jobs"], metrics["generations"][0]["jobs"], strict=True):
        scores, calibrated = (np.load(files / "run" / job / "unlabeled.npy") for job in (before, after))
        q = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert np.allclose(calibrated, np.log(q / q.mean(axis=0)), atol=1e-5)
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")


def test_a_worse_generation_is_dropped_and_the_one_before_is_the_result(run, monkeypatch):
    monkeypatch.setattr("clozify.pipeline.generations.is_better", lambda *_: False)
    metrics = run(method="ipet", settings=[*IPET, "ipet.keep=better"])
    first, dropped = metrics["generations"]
    assert (first["kept"], dropped["kept"]) == (True, False)
    assert metrics["members"]["accuracy"] == first["accuracy"]
    assert [member["job"] for member in metrics["members"]["each"]] == first["jobs"]


def test_enough_labelled_rows_make_ipet_pet(run):
    lines = []
    metrics = run(method="ipet", settings=[*SETTINGS, "ipet.enough=10"], log=lines.append)
    assert len(metrics["generations"]) == 1
    again = []
    run(method="pet", log=again.append)
    assert sum("already done" in line for line in again) == 6  # members and classifiers


def test_generations_are_measured_alike_whatever_the_folder_held_before(run):
    """PET's members have all scored the unlabelled rows; of iPET's first generation only teachers are asked to."""
    settings = [*IPET, "ipet.teachers=0.25"]
    fresh = run("fresh", method="ipet", settings=settings)
    run("both", settings=settings)
    after_pet = run("both", method="ipet", settings=settings)
    for name in ("certainty", "agreement", "accuracy", "drawn"):
        assert [one.get(name) for one in after_pet["generations"]] == [one.get(name) for one in fresh["generations"]]
    jobs = [set(metrics["generations"][0]["jobs"]) for metrics in (fresh, after_pet)]
    assert jobs[0] != jobs[1]  # PET's members were used again


def test_one_pattern_with_one_seed_teaches_itself(run, files):
    """The authors' code has no teacher then, and fails."""
    (files / "task.toml").write_text(TASK.replace(', "Just {mask}! || {text}"', ""))
    metrics = run(method="ipet", settings=[*IPET, "repetitions=1"])
    assert len(metrics["generations"]) == 3


def test_unlabelled_data_that_is_too_small_caps_the_sets_and_says_so(run):
    metrics = run(method="ipet", settings=[*SETTINGS, "ipet.generations=2"])  # 250 rows wanted, 50 there
    assert metrics["generations"][-1]["training_rows"] == 60
    assert any("too few for generation 2" in warning for warning in metrics["warnings"])


def test_skipped_generations_let_the_first_label_for_the_last(run):
    metrics = run(method="ipet", settings=[*IPET, "ipet.skip_generations=true", "ipet.enough=80"])
    assert [messages["generation"] for messages in metrics["generations"]] == [0, 1, 3]


def test_without_distillation_the_last_generation_is_the_result(run, files):
    from clozify.inference.finished_run import evaluate

    metrics = run(method="ipet", settings=[*IPET, "distillation=false"])
    assert "classifier" not in metrics
    assert evaluate(files / "run", files / "test.csv").confusion == metrics["ensemble"]["confusion"]


def test_what_ipet_needs_is_said_before_anything_is_spent(run, files):
    with pytest.raises(ClozifyError, match="'ipet' needs unlabelled"):
        run(method="ipet", unlabeled=None)
    with pytest.raises(ClozifyError, match="'pet' needs labelled rows .* there is ipet"):
        run(labeled=None)
    assert not (files / "run").exists()


@pytest.mark.slow
def test_a_generation_that_was_killed_goes_on_with_the_same_draws(run, files, tiny_folder):
    run("whole", method="ipet", settings=IPET)
    command = "-m clozify train task.toml --labeled labeled.csv --unlabeled unlabeled.csv --test test.csv --method ipet"
    command += f" --recipe paper --output killed --model {tiny_folder('bert')}" + "".join(
        f" --set {setting}" for setting in IPET
    )
    killed = files / "killed"
    process = subprocess.Popen([sys.executable, *command.split()], cwd=files, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len([p for p in killed.glob("members/*") if not p.name.startswith(".")]) < 6:  # half-way in generation 1
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run([sys.executable, *command.split()], cwd=files, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    first, second = scores(files / "whole"), scores(killed)
    assert first.keys() == second.keys()
    other = [name for name in first if not np.array_equal(first[name], second[name])]
    assert not other, [(name, np.abs(first[name] - second[name]).max()) for name in other]


def test_a_label_that_no_labelled_row_has_is_drawn_for_and_named(run, files):
    """d^j times no row is no row: the label would vanish from every later generation without a word."""
    labeled = pd.read_csv(files / "labeled.csv")
    labeled[labeled["label"] == 1].to_csv(files / "labeled.csv", index=False)
    metrics = run(method="ipet", settings=[*SETTINGS, "repetitions=1", "ipet.generations=1"])
    assert any("1 of 2 labels have no labelled row ('2')" in warning for warning in metrics["warnings"])
    first, second = metrics["generations"]
    assert first.get("drawn") is None
    assert second["drawn"] == {"1": 20.0, "2": 4.0}
