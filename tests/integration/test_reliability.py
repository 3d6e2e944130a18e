"""A run estimates its accuracy without test rows, and calibrates its result by the same labelled rows."""

import json

import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.pipeline.folds import estimate_folds
from clozify.runs.reliability import load_reliability

from .conftest import SETTINGS

ESTIMATE = [*SETTINGS, "estimate.folds=2"]


def held_out_truth(files):
    lines = (files / "labeled.csv").read_text().splitlines()[1:]
    return [int(line[0]) - 1 for line in lines]


def test_every_labelled_row_is_scored_by_members_that_did_not_see_it(start_run, files):
    metrics = start_run(settings=ESTIMATE).metrics
    reliability = load_reliability(files / "run")
    assert reliability is not None
    assert (reliability.rows, reliability.folds) == (10, 2)
    assert reliability.low <= reliability.accuracy <= reliability.high
    assert metrics.estimate == reliability.summary
    held_out = [np.load(path) for path in (files / "run" / "members").glob("*/held_out.npy")]
    assert sorted(len(scores) for scores in held_out) == [5, 5, 5, 5]  # two pairs, two folds
    assert len(reliability.confidence) == len(reliability.true_probability) == 10
    assert load_reliability(files / "run" / "classifier") == reliability
    assert clozify.load_run(files / "run").reliability == reliability


def test_the_classifiers_logits_are_divided_by_the_temperature_for_transformers_too(start_run, files):
    from transformers import pipeline

    start_run(settings=[*ESTIMATE, "distill.learning_rate=0.01"])
    reliability = load_reliability(files / "run")
    assert reliability.temperature != 1.0
    (job,) = [path.parent for path in (files / "run" / "classifiers").glob("*/model")]
    expected = softmax(np.load(job / "test.npy") / reliability.temperature, axis=1)
    texts = [line.split(",")[1] for line in (files / "test.csv").read_text().splitlines()[1:]]
    classify = pipeline("text-classification", str(files / "run" / "classifier"), top_k=None)
    answers = [{answer["label"]: answer["score"] for answer in answer} for answer in classify(texts)]
    np.testing.assert_allclose([[answer["1"], answer["2"]] for answer in answers], expected, atol=1e-4)
    predicted = clozify.load_run(files / "run", precision="float32").predict(texts).probabilities
    np.testing.assert_allclose(predicted, expected, atol=1e-4)


def test_an_ensemble_is_calibrated_too(start_run, files):
    start_run(settings=ESTIMATE, unlabeled=None)
    run, reliability = clozify.load_run(files / "run"), load_reliability(files / "run")
    content = json.loads((files / "run" / "ensemble.json").read_text())
    assert content["temperature"] == pytest.approx(reliability.temperature)
    assert run.decision.temperature == content["temperature"]
    scores = [np.load(files / "run" / "members" / m["member"] / "test.npy") for m in content["weights"]]
    weights = np.array([m["weight"] for m in content["weights"]])
    expected = softmax(np.tensordot(weights / weights.sum(), scores, 1) / content["temperature"], axis=1)
    np.testing.assert_allclose(run.predict(files / "test.csv").probabilities, expected, atol=1e-3)


@pytest.mark.parametrize("method", ["ipet", "frozen", "supervised"])
def test_other_methods_estimate_their_accuracy_too(start_run, files, method):
    unlabeled = None if method == "supervised" else files / "unlabeled.csv"
    metrics = start_run(method=method, unlabeled=unlabeled, settings=[*ESTIMATE, "ipet.generations=1"]).metrics
    assert metrics.estimate is not None
    assert metrics.estimate.rows == 10
    assert load_reliability(files / "run").summary == metrics.estimate


def test_with_rules_the_held_out_scores_have_their_votes(start_run, files):
    @clozify.rule
    def always_great(row):
        return "2"

    start_run(settings=ESTIMATE, output="plain")
    start_run(settings=ESTIMATE, output="with-rule", teachers=[always_great])
    plain, with_rule = (load_reliability(files / name) for name in ("plain", "with-rule"))
    truth = held_out_truth(files)
    assert plain.rows == with_rule.rows == len(truth)
    assert plain.true_probability != with_rule.true_probability


def test_a_resumed_run_trains_no_fold_again_and_gives_the_same_record(start_run, files):
    start_run(settings=ESTIMATE)
    before, log = load_reliability(files / "run"), []
    start_run(settings=ESTIMATE, log=log.append)
    assert load_reliability(files / "run") == before
    assert sum("estimate, member" in line and "already done" in line for line in log) == 4


def test_without_an_estimate_nothing_is_left_of_an_earlier_one(start_run, files):
    start_run(settings=ESTIMATE)
    metrics = start_run(settings=SETTINGS).metrics
    assert metrics.estimate is None
    assert not (files / "run" / "reliability.json").exists()
    assert not (files / "run" / "classifier" / "reliability.json").exists()
    assert clozify.load_run(files / "run").reliability is None


def test_with_fewer_than_ten_rows_nothing_is_estimated(start_run, files):
    lines = (files / "labeled.csv").read_text().splitlines()
    (files / "labeled.csv").write_text("\n".join(lines[:9]) + "\n")
    assert start_run(settings=ESTIMATE).metrics.estimate is None


def test_the_command_prints_the_estimate_and_the_page_shows_it(files, tiny_folder):
    settings = [part for setting in ESTIMATE for part in ("--set", setting)]
    command = ["train", files / "task.toml", "--labeled", files / "labeled.csv", "--unlabeled", files / "unlabeled.csv"]
    command += ["--output", files / "run", "--model", tiny_folder("bert"), "--recipe", "paper", *settings]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 0, result.output
    assert "Estimated accuracy, from the 10 labelled rows alone" in result.stdout
    assert "Estimate without test rows" in (files / "run" / "report.html").read_text()
    assert (
        "Its accuracy was estimated on its 10 labelled rows" in (files / "run" / "classifier" / "README.md").read_text()
    )
    plan = CliRunner().invoke(app, [str(part) for part in [*command, "--plan"]])
    assert "4 models more, each without a part of the labelled rows" in plan.stdout.replace("\n", " ")
    result = CliRunner().invoke(app, [str(part) for part in [*command, "--no-estimate", "--replace"]])
    assert "Estimated accuracy" not in result.stdout


def test_folds_spread_every_label(files, tiny_folder):
    from clozify.pipeline.prepare import TrainInputs, prepare

    plan = prepare(
        TrainInputs(files / "task.toml", files / "labeled.csv", model=str(tiny_folder("bert")), settings=ESTIMATE,
                    recipe="paper"),
        "cpu",
    )  # fmt: skip
    for fold in estimate_folds(plan):
        held_out, training = fold.held_out(plan), fold.training(plan)
        assert sorted([*held_out, *training]) == list(range(10))
        assert abs(np.bincount(plan.labeled.labels[held_out], minlength=2) - 2.5).max() <= 0.5
