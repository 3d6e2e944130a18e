"""A task with groups of labels: both levels in predictions, answers of the server, metrics and the report."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.serving.model import ServedModel
from tests.integration.conftest import TASK
from tests.integration.serving import post, running, save_classifier

GROUPED = TASK + '3 = "okay"\n4 = "good"\n[groups]\nlow = ["1", "3"]\nhigh = ["2"]\n'
TEXTS = ["a fine game", "slow tool", "mail for all", "data base", "the music player"]
NAMES = ["low", "high", "4"]
GROUP_OF = {"1": "low", "3": "low", "2": "high", "4": "4"}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return save_classifier(tiny_folder("bert"), GROUPED, tmp_path / "classifier")


def test_predictions_carry_the_labels_group_and_the_sums_of_probabilities(folder):
    predictions = clozify.load_run(folder).predict(TEXTS)
    assert predictions.groups == [GROUP_OF[label] for label in predictions.labels]
    p = predictions.probabilities
    assert np.allclose(predictions.group_probabilities, np.stack([p[:, 0] + p[:, 2], p[:, 1], p[:, 3]], axis=1))
    assert predictions.rows.task.label_groups.names == NAMES


def test_the_command_prints_and_writes_both_levels(folder, tmp_path):
    def invoke(*words):
        result = CliRunner().invoke(app, ["predict", str(folder), *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    line = json.loads(invoke("--text", TEXTS[0], "--top", "2"))
    assert line["prediction_group"] == GROUP_OF[line["prediction"]]
    assert list(line["group_probabilities"]) == NAMES
    assert len(line["probabilities"]) == 2
    pd.DataFrame({"text": TEXTS}).to_csv(tmp_path / "rows.csv", index=False)
    invoke("--data", str(tmp_path / "rows.csv"), "--output", str(tmp_path / "out.csv"))
    frame = pd.read_csv(tmp_path / "out.csv", dtype={"prediction": str, "prediction_group": str})
    expected = clozify.load_run(folder).predict(TEXTS)
    assert frame["prediction_group"].tolist() == expected.groups
    columns = [f"probability_{label}" for label in "1234"]
    assert np.array_equal(frame[columns].to_numpy(np.float32), expected.probabilities.astype(np.float32))


def test_the_server_answers_with_both_levels_as_its_schema_says(folder):
    with running(ServedModel(folder)) as server:
        status, answer, _ = post(server.port, {"texts": TEXTS})
        schema = post(server.port, path="/openapi.json")[1]
    assert status == 200
    expected = clozify.load_run(folder).predict(TEXTS)
    assert [prediction["group"] for prediction in answer["predictions"]] == expected.groups
    sums = [list(prediction["group_probabilities"].values()) for prediction in answer["predictions"]]
    assert np.allclose(sums, expected.group_probabilities, atol=1e-5)
    content = schema["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    item = content["properties"]["predictions"]["items"]
    assert item["required"] == ["label", "group", "probabilities", "group_probabilities"]
    assert item["properties"]["group"]["enum"] == NAMES


def test_an_evaluation_counts_the_errors_that_leave_the_group(folder):
    labels = ["1", "2", "3", "4", "1"]
    finished = clozify.load_run(folder)
    predicted = finished.predict(TEXTS).labels
    groups = finished.evaluate(TEXTS, labels).groups
    wrong = [(a, b) for a, b in zip(labels, predicted, strict=True) if a != b]
    assert groups.errors == len(wrong)
    assert groups.errors_across == sum(GROUP_OF[a] != GROUP_OF[b] for a, b in wrong)
    assert groups.accuracy == pytest.approx(1 - groups.errors_across / 5)


def test_a_run_measures_both_levels_and_groups_are_no_input_of_its_models(run, files):
    plain = run()
    (files / "task.toml").write_text(TASK + '[groups]\nall = ["1", "2"]\n')
    lines = []
    grouped = run(log=lines.append)
    assert sum("already done" in line for line in lines) == 6  # four members, two classifiers
    for part in ("ensemble", "classifier"):
        assert "groups" not in plain[part]
        assert grouped[part]["groups"]["accuracy"] == 1
        assert grouped[part]["groups"]["errors_across"] == 0
        assert {name: grouped[part][name] for name in plain[part]} == plain[part]
    assert 'id="groups"' in (files / "run" / "report.html").read_text()
    assert clozify.load_run(files / "run").predict(["mail"]).groups == ["all"]


def test_zero_shot_predictions_have_groups(tiny, files):
    (files / "task.toml").write_text(TASK + '[groups]\nall = ["1", "2"]\n')
    result = clozify.zero_shot(files / "task.toml", files / "test.csv", tiny("bert"), files / "out.csv")
    assert set(result.groups) == {"all"}
    assert result.group_accuracy == result.to_json()["group_accuracy"] == 1
    assert pd.read_csv(files / "out.csv")["group_probability_all"].to_numpy() == pytest.approx(1)
