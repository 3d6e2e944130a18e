"""Training with a development file, the authors' recipe, trackers, and on a full disk; with a tiny model."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from clozify.config.recipe import load_recipe
from clozify.errors import ClozifyError
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.training.loop import Monitor, TrainingSetup, train
from tests.integration.checks import assert_metrics_are_those_of_the_scores
from tests.integration.conftest import SETTINGS


def test_the_authors_recipe_runs_from_end_to_end_and_predicts_as_it_trained(run, files):
    from clozify.inference.finished_run import evaluate

    settings = [*SETTINGS, "finetune.learning_rate=1e-3"]
    metrics = run(recipe="original-code", settings=settings)
    assert metrics["rows"] == {"labeled": 10, "unlabeled": 50, "test": 40}
    seeds = {member["seed"] for member in metrics["members"]["each"]}
    assert len(seeds) == 4  # each member its own
    alone = run("alone", recipe="original-code", settings=settings, unlabeled=None)
    assert evaluate(files / "alone", files / "test.csv").confusion == alone["ensemble"]["confusion"]


def test_every_backslash_becomes_a_space_where_the_recipe_says_so(files):
    pd.DataFrame({"label": [1, 2], "text": ["a\\b", "c"]}).to_csv(files / "odd.csv", index=False)
    ours = prepare(TrainInputs(files / "task.toml", files / "odd.csv"))
    theirs = prepare(TrainInputs(files / "task.toml", files / "odd.csv", recipe="original-code"))
    assert ours.labeled.texts("text") == ["a\\b", "c"]
    assert theirs.labeled.texts("text") == ["a b", "c"]
    assert prepare(TrainInputs(files / "task.toml", ours.labeled, recipe="original-code")).labeled.texts("text") == [
        "a b",
        "c",
    ]


def test_random_examples_are_drawn_by_the_recipes_seed(files):
    def drawn(*settings):
        return prepare(
            TrainInputs(files / "task.toml", files / "labeled.csv", examples=4, settings=settings)
        ).labeled.ids()

    assert drawn() == [0, 1, 2, 3]
    assert drawn("selection=random") == drawn("selection=random")
    assert drawn("selection=random") != drawn("selection=random", "seed=1")


def test_development_rows_stop_training_and_choose_the_classifier(run, files):
    """A choice by the test rows would make every number too good."""
    settings = [*SETTINGS, "dev.every=2", "dev.patience=1", "distill.max_steps=20"]
    metrics = run(settings=settings, dev=files / "test.csv", test=files / "labeled.csv")
    looks = [
        json.loads(path.read_text())["dev"] for path in (files / "run").glob("*/*/*.json") if "dev" in path.read_text()
    ]
    assert looks
    assert all(1 <= len(look) <= 10 for look in looks)
    assert any(len(look) < 10 for look in looks)  # stopped early
    best = metrics["classifier"]
    assert best["kept"] == int(np.argmax(best["dev_each"]))
    assert metrics["rows"]["dev"] == 40
    pd.read_csv(files / "unlabeled.csv").assign(label="").to_csv(files / "no-labels.csv", index=False)
    with pytest.raises(ClozifyError, match="No row of the development data"):
        run("other", dev=files / "no-labels.csv")


def test_the_best_weights_on_the_development_rows_are_the_ones_kept():
    import torch
    from accelerate import Accelerator

    module = torch.nn.Linear(1, 1)
    scores = iter([0.1, 0.9, 0.3, 0.2, 0.1])
    seen = []

    def look():
        seen.append(module.weight.item())
        return next(scores)

    recipe = load_recipe("paper", ["dev.every=1", "dev.patience=2", "supervised.max_steps=5"])
    monitor = Monitor(dev_score=look, dev=recipe.dev)
    setup = TrainingSetup(recipe.supervised, np.random.default_rng(0), Accelerator(cpu=True), monitor)
    train(module, lambda step: module(torch.ones(1, 1)).sum(), setup, 10)
    assert len(seen) == 4  # two looks without a gain
    assert module.weight.item() == seen[1]


def test_a_balanced_loss_counts_every_label_the_same(run, files):
    """Nine rows of one label and one of another would else teach the first alone."""
    from clozify.training.loop import class_weights

    labels = np.array([0] * 9 + [1], dtype=np.int16)
    weights = class_weights(labels, 2).numpy()
    assert weights[labels][:9].sum() == pytest.approx(weights[labels][9:].sum())
    rows = pd.concat([pd.read_csv(files / "labeled.csv"), pd.read_csv(files / "test.csv")])
    rows[(rows.label == 1) | (rows.index < 10)].to_csv(files / "lopsided.csv", index=False)
    inputs = {"labeled": files / "lopsided.csv", "unlabeled": None, "test": files / "unlabeled-with-labels.csv"}
    pd.read_csv(files / "unlabeled.csv").assign(label=2).to_csv(inputs["test"], index=False)
    for_the_rare = {}
    for balance in ("false", "true"):
        settings = [*SETTINGS, f"balance={balance}", "repetitions=1", "finetune_without_lm.learning_rate=1e-3"]
        run(balance, **inputs, settings=settings)
        scores = np.stack([np.load(path) for path in (files / balance / "members").glob("*/test.npy")])
        for_the_rare[balance] = float((scores[..., 1] - scores[..., 0]).mean())
    assert for_the_rare["true"] > for_the_rare["false"] + 0.1


def test_a_tracker_gets_every_trainings_loss_and_the_numbers(run, files):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = run(trackers=["tensorboard"])
    (folder,) = {path.parent for path in (files / "run" / "trackers" / "run").glob("events*")}
    events = EventAccumulator(str(folder)).Reload()
    tags = events.Tags()["scalars"]
    assert sum("member" in tag and tag.endswith("/loss") for tag in tags) == 4
    assert sum("classifier" in tag and tag.endswith("/loss") for tag in tags) == 2
    (accuracy,) = events.Scalars("classifier.accuracy")
    assert accuracy.value == pytest.approx(metrics["classifier"]["accuracy"])
    steps = [events.Scalars(tag)[-1].step for tag in tags if tag.endswith("/loss")]
    assert sorted(steps) == steps  # one axis for the whole run
    assert len(set(steps)) == 6


def test_a_tracker_that_is_missing_or_unknown_is_an_error_before_anything_is_spent(run, files, monkeypatch):
    with pytest.raises(ClozifyError, match=r"no tracker 'tensorbord' .did you mean 'tensorboard'"):
        run(trackers=["tensorbord"])
    with pytest.raises(ClozifyError, match="'aim' is not installed; install it with: pip install aim"):
        run(trackers=["aim"])
    assert not (files / "run").exists()


def test_a_full_disk_stops_with_a_sentence_and_a_folder_that_resumes(run, files, monkeypatch):
    saved, space = np.save, 1  # one a member: its scores of the test rows

    def save(*inputs):
        nonlocal space
        space -= 1
        if space < 0:
            raise OSError("5180 requested and 2016 written")  # NumPy's own words, without the system's number
        saved(*inputs)

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(ClozifyError, match="no space left on the disk for the run .* the run resumes"):
        run()
    assert not list((files / "run").rglob("*.part"))
    monkeypatch.setattr(np, "save", saved)
    lines = []
    run(log=lines.append)
    assert sum("already done" in line for line in lines) == 1


def test_a_run_without_unlabelled_data_forgets_the_classifier_of_one_that_had_unlabelled_data(run, files):
    """Else predictions would come from a classifier that this run did not train."""
    from clozify.inference.finished_run import FinishedRun

    run()
    run(unlabeled=None)
    assert FinishedRun(files / "run").classifier is None
    assert not (files / "run" / "labels.parquet").exists()


def test_the_command_line_takes_a_development_file_and_trackers(files, tiny_folder, monkeypatch, capsys):
    from clozify import cli

    monkeypatch.chdir(files)
    command = (
        "clozify train task.toml --labeled labeled.csv --unlabeled unlabeled.csv --dev test.csv --output run --quiet"
    )
    command += " --recipe paper"
    command += f" --recipe original-code --tracker tensorboard --json --model {tiny_folder('bert')}"
    command += "".join(f" --set {setting}" for setting in SETTINGS)
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["rows"]["dev"] == 40


def test_no_labelled_rows_where_some_are_needed_is_an_error_and_no_endless_loop(run, files):
    for method in ("pet", "supervised"):
        with pytest.raises(ClozifyError, match="needs labelled rows, and 0 were asked for"):
            run(method=method, examples=0)
    assert not (files / "run").exists()


def test_a_run_killed_before_its_first_job_goes_on(run, files):
    """A folder with a log alone must not count as somebody else's."""
    (files / "run").mkdir()
    (files / "run" / "log.txt").write_text("started\n")
    (files / "run" / ".run.json.part").write_text("{")
    run()
    assert_metrics_are_those_of_the_scores(files / "run", files / "test.csv")


def test_labels_that_were_corrected_change_every_number(run, files):
    before = run()
    frame = pd.read_csv(files / "test.csv")
    frame.assign(label=3 - frame["label"]).to_csv(files / "test.csv", index=False)
    after = run()
    for name in ("unsupervised", "ensemble", "classifier"):
        assert after[name]["accuracy"] == pytest.approx(1 - before[name]["accuracy"])


def test_a_task_that_gets_aliases_reaches_the_classifier_without_new_training(run, files):
    from clozify.inference.finished_run import evaluate

    run()
    pd.read_csv(files / "test.csv").replace({"label": {1: 0, 2: 1}}).to_csv(files / "named.csv", index=False)
    text = (files / "task.toml").read_text()
    (files / "task.toml").write_text(text.replace('name = "stars"', 'name = "stars"\naliases = [["0", "1"]]'))
    lines = []
    run(log=lines.append)
    assert sum("already done" in line for line in lines) == 6
    assert evaluate(files / "run", files / "named.csv").rows == 40


def test_the_command_line_shows_a_run_that_had_development_but_no_test_rows(files, tiny_folder, monkeypatch, capsys):
    from clozify import cli

    monkeypatch.chdir(files)
    command = (
        "clozify train task.toml --labeled labeled.csv --unlabeled unlabeled.csv --dev test.csv --output run --quiet"
    )
    command += " --recipe paper"
    command += f" --model {tiny_folder('bert')}" + "".join(f" --set {setting}" for setting in SETTINGS)
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "On the development rows" in capsys.readouterr().out


def test_a_plan_times_few_steps_whatever_decides_their_number(files, tiny_folder):
    from clozify.pipeline.cost import estimate

    settings = [*SETTINGS, "finetune.num_train_epochs=3000", "distill.exact_steps=false"]
    inputs = {"unlabeled": files / "unlabeled.csv", "model": str(tiny_folder("bert"))}
    cost = estimate(
        prepare(TrainInputs(files / "task.toml", files / "labeled.csv", recipe="paper", settings=settings, **inputs)),
        RunContext("cpu"),
    )
    assert cost.steps_a_member == 7500  # and not taken for the estimate
    assert cost.seconds > 0
    assert (
        estimate(
            prepare(TrainInputs(files / "task.toml", method="ipet", recipe="paper", settings=settings, **inputs)),
            RunContext("cpu"),
        ).members
        == 16
    )


def test_a_task_that_is_changed_forgets_what_was_worked_out_from_the_old_one(files):
    from clozify.config.task import load_task

    task = load_task(files / "task.toml")
    assert len(task.pairs) == 2
    assert len(task.with_changes(patterns=task.patterns[:1]).pairs) == 1
