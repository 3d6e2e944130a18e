"""`--student static`: a run whose classifier is static, and what is done with it."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

import clozify
from clozify.config.task import load_task
from clozify.errors import ClozifyError, ExportError, ModelError, RunError
from clozify.methods.static_student import fit_static
from clozify.models.static_classifier import StaticClassifier, load_static_classifier
from clozify.pipeline.cost import estimate
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.serving.model import ServedModel
from tests.integration.conftest import SETTINGS, TASK
from tests.integration.serving import post, running

TORCH_FREE = """
import sys
from clozify.cli import main
sys.argv = ["clozify", *sys.argv[1:]]
main()
assert not {"torch", "transformers"} & set(sys.modules), "imported"
"""


@pytest.fixture
def static_folder(files):
    """The folder of a static classifier that tells rows about games and data from others."""
    (files / "small.toml").write_text(TASK)
    texts = ["a fine game", "the data base", "a slow tool", "mail for all"] * 10
    fit = fit_static({"text": texts}, np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]] * 10), np.arange(4))
    StaticClassifier(fit.weights, load_task(files / "small.toml")).save(files / "static")
    return files / "static"


def test_a_static_student_becomes_the_classifier_of_the_run(run, files):
    settings = [*SETTINGS, "unlabeled_rows=20", "estimate.folds=2"]
    metrics = run(student="static", settings=settings)
    folder = files / "run"
    assert metrics["rows"]["unlabeled"] == 20  # that members label
    (job,) = metrics["static"]["jobs"]
    scores = np.load(folder / "classifiers" / job / "test.npy")
    truth = pd.read_csv(files / "test.csv")["label"].to_numpy() - 1
    assert metrics["static"]["accuracy"] == pytest.approx((scores.argmax(axis=1) == truth).mean())
    assert metrics["static"]["unlabeled_rows"] == 50
    assert {path.name for path in (folder / "classifier").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "reliability.json",
        "task.toml",
    }
    assert {path.stat().st_mode & 0o444 for path in (folder / "classifier").iterdir()} == {0o444}
    result = clozify.load_run(folder)
    assert result.description == f"the static classifier trained by PET in {folder}"
    expected = softmax(scores.astype(np.float64) / metrics["estimate"]["temperature"], axis=1)
    assert result.predict(files / "test.csv").probabilities == pytest.approx(expected, abs=2e-3)
    assert result.evaluate(files / "test.csv").accuracy == metrics["static"]["accuracy"]
    assert "static classifier" in (folder / "report.html").read_text()
    assert clozify.suggest(folder, 3).rows
    label_job = next((folder / "static_labels").iterdir()).name

    assert run(student="static", settings=settings) == metrics  # which does nothing again
    fewer = run(student="static", settings=[*settings, "static.unlabeled_rows=30"])
    assert fewer["static"]["unlabeled_rows"] == 30
    assert fewer["classifier"] == metrics["classifier"]
    assert label_job in [path.name for path in (folder / "static_labels").iterdir()]
    assert "30 of 50 unlabelled rows are labelled for the static classifier" in " ".join(fewer["warnings"])
    without = run(settings=settings)
    assert "static" not in without
    assert clozify.load_run(folder).description == f"the classifier trained by PET in {folder}"


def test_the_soft_labels_are_the_classifiers_answers_on_all_unlabelled_rows(run, files):
    run(student="static", settings=[*SETTINGS, "unlabeled_rows=20"])
    folder = files / "run"
    labels = np.load(next((folder / "static_labels").iterdir()) / "unlabeled.npy")
    (teacher, *_) = json.loads((folder / "metrics.json").read_text())["classifier"]["jobs"]
    answers = clozify.predict(folder / "classifiers" / teacher / "model", files / "unlabeled.csv").probabilities
    assert softmax(labels.astype(np.float64), axis=1) == pytest.approx(answers, abs=1e-4)


def test_several_labels_a_row_have_the_thresholds_of_the_classifier(run, files):
    task = TASK.replace('fields = ["text"]', 'fields = ["text"]\nmultilabel = true')
    (files / "several.toml").write_text(task)
    metrics = run(
        task=files / "several.toml", student="static", test=None, settings=[*SETTINGS, "multilabel.threshold=0.4"]
    )
    result = clozify.load_run(files / "run")
    assert result.is_static
    assert result.decision.by_label() == pytest.approx(metrics["thresholds"])
    assert len(result.predict(["a fine game", "mail"]).label_sets) == 2


def test_predicting_imports_neither_pytorch_nor_transformers(static_folder, files):
    def call(*arguments):
        command = [sys.executable, "-c", TORCH_FREE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    for arguments in (
        ["predict", str(static_folder), "--data", str(files / "test.csv"), "--output", str(files / "out.csv")],
        ["evaluate", str(static_folder), "--data", str(files / "test.csv")],
    ):
        result = call(*arguments)
        assert (result.returncode, "imported" in result.stderr) == (0, False), result.stderr
    assert len(pd.read_csv(files / "out.csv")) == 40


def test_a_static_classifiers_folder_predicts_explains_and_is_compared(static_folder, files):
    predictions = clozify.predict(static_folder, ["a fine game", "a slow tool", ""], min_confidence=0.6)
    assert predictions.labels == ["1", "2", None]
    (row,) = clozify.explain(static_folder, ["the slow game"]).rows
    effects = {word.text: word.effect for word in row.words}
    assert effects["game"] * effects["slow"] < 0
    unlabeled = files / "unlabeled.csv"
    assert not clozify.drift(static_folder, unlabeled, reference=unlabeled).drift


def test_a_static_classifier_is_served(static_folder):
    with running(ServedModel(static_folder)) as server:
        answers = post(server.port, {"texts": ["a fine game", "a slow tool"]})[1]["predictions"]
        assert post(server.port, path="/health")[1]["model"] == "a static classifier"
    assert [answer["label"] for answer in answers] == ["1", "2"]


def test_what_a_static_classifier_cannot_do_is_refused(static_folder, files):
    with pytest.raises(ExportError, match="is static.*copy its folder"):
        clozify.export(static_folder)
    with pytest.raises(RunError, match="is static; abstain by its confidence"):
        clozify.predict(static_folder, ["a"], reject_out_of_scope=True)
    with pytest.raises(ModelError, match="no layers to run in int8"):
        clozify.load_run(static_folder, precision="int8").predict(["a"])
    (static_folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="damaged"):
        clozify.predict(static_folder, ["a"])
    (static_folder / "task.toml").write_text(TASK.replace("1 =", "3 ="))
    with pytest.raises(ClozifyError, match="do not belong together"):
        load_static_classifier(static_folder)


def test_a_plan_counts_the_rows_that_the_classifier_labels(files, tiny_folder):
    inputs = {"labeled": files / "labeled.csv", "unlabeled": files / "unlabeled.csv", "recipe": "paper"}
    inputs |= {"settings": SETTINGS, "model": str(tiny_folder("bert")), "student": "static"}
    cost = estimate(prepare(TrainInputs(files / "task.toml", **inputs), "cpu"), RunContext("cpu"))
    assert cost.rows_to_label == 50
