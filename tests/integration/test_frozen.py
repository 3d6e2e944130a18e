"""The method `frozen`: states are computed once a row and pattern, and only label vectors are fitted."""

import json

import numpy as np
import pandas as pd
import pytest

import clozify
from clozify.errors import DataError
from clozify.methods import frozen
from clozify.pipeline.cost import estimate
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.runs.metrics import Metrics


@pytest.fixture
def computed(monkeypatch):
    """The numbers of rows of all calls of the encoder."""
    counts = []
    original = frozen.compute_states

    def count(model, rows, *others):
        counts.append(len(rows))
        return original(model, rows, *others)

    monkeypatch.setattr("clozify.pipeline.state_cache.compute_states", count)
    return counts


def test_a_new_label_computes_no_state_again(run, files, computed):
    first = run(method="frozen")
    assert sum(computed) == 2 * 100  # every row once a pattern
    computed.clear()
    labeled, unlabeled = pd.read_csv(files / "labeled.csv"), pd.read_csv(files / "unlabeled.csv")
    moved = unlabeled[:1].assign(label=1)
    pd.concat([labeled, moved]).to_csv(files / "labeled.csv", index=False)
    unlabeled[1:].to_csv(files / "unlabeled.csv", index=False)
    second = run(method="frozen")
    assert not computed
    assert (first["rows"]["labeled"], second["rows"]["labeled"]) == (10, 11)
    assert first["run"] != second["run"]


def test_a_run_that_was_stopped_resumes_between_chunks(run, computed, monkeypatch):
    monkeypatch.setattr("clozify.pipeline.state_cache.CHUNK_ROWS", 20)
    keep = clozify.pipeline.state_cache.StateCache._keep

    def stop(self, *arguments):
        keep(self, *arguments)
        if len(computed) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("clozify.pipeline.state_cache.StateCache._keep", stop)
    with pytest.raises(KeyboardInterrupt):
        run(method="frozen")
    monkeypatch.setattr("clozify.pipeline.state_cache.StateCache._keep", keep)
    run(method="frozen")
    assert sum(computed) == 2 * 100


def test_a_finished_run_predicts_what_it_measured(run, files):
    metrics = run(method="frozen", settings=["max_seq_length=40", "frozen.unlabeled_rows=30"])
    assert metrics["rows"]["unlabeled"] == 30
    evaluation = clozify.evaluate(files / "run", files / "test.csv")
    assert evaluation.accuracy == pytest.approx(metrics["ensemble"]["accuracy"])
    members = json.loads((files / "run" / "ensemble.json").read_text())["weights"]
    saved = {path.name for path in (files / "run" / "members").glob("*/model/*.safetensors")}
    assert saved == {"scope.safetensors"}  # no weights, but reference rows of the out-of-scope score
    scores = [np.load(files / "run" / "members" / member["member"] / "test.npy") for member in members]
    weights = np.array([member["weight"] for member in members])
    expected = np.tensordot(weights / weights.sum(), scores, 1)
    probabilities = clozify.predict(files / "run", files / "test.csv").probabilities
    np.testing.assert_allclose(
        np.log(probabilities[:, 1] / probabilities[:, 0]), expected[:, 1] - expected[:, 0], atol=0.02
    )
    assert "PET with a frozen encoder" in clozify.load_run(files / "run").description
    assert (files / "run" / "report.html").is_file()
    assert clozify.suggest(files / "run", 3).members == 2
    assert Metrics.load(files / "run" / "metrics.json").classifier is None


def test_without_labels_the_result_is_the_centred_zero_shot_ensemble(run, files):
    metrics = run(method="frozen", labeled=None)
    scores = np.mean([np.load(path) for path in (files / "run" / "members").glob("*/unlabeled.npy")], axis=0)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-4)
    assert metrics["ensemble"]["accuracy"] >= 0


def test_its_soft_labels_can_train_a_classifier(run, files):
    metrics = run(
        method="frozen",
        settings=["max_seq_length=40", "repetitions=1", "frozen.distillation=true", "distill.max_steps=2"],
    )
    assert metrics["classifier"]["accuracy"] >= 0
    assert clozify.load_run(files / "run").classifier is not None


def test_the_estimator_takes_it(files, tiny_folder):
    rows = pd.read_csv(files / "labeled.csv")
    estimator = clozify.PetClassifier(files / "task.toml", model=str(tiny_folder("bert")), method="frozen")
    estimator.fit(rows["text"].tolist(), rows["label"])
    assert estimator.predict(rows["text"].tolist()).tolist() == rows["label"].tolist()


def test_its_plan_counts_rows_and_no_steps(files, tiny_folder):
    data = {"unlabeled": files / "unlabeled.csv", "model": str(tiny_folder("bert")), "settings": ["max_seq_length=40"]}
    plan = prepare(TrainInputs(files / "task.toml", files / "labeled.csv", method="frozen", **data), "cpu")
    cost = estimate(plan, RunContext("cpu"))
    assert (cost.members, cost.steps_a_member, cost.rows_to_score_a_member, cost.classifiers) == (2, 0, 60, 0)


def test_without_any_rows_it_says_what_is_missing(files):
    with pytest.raises(DataError, match="'frozen' needs unlabelled rows"):
        prepare(TrainInputs(files / "task.toml", method="frozen"), "cpu")
