"""Rules and other teachers in PET, iPET, zero-shot, predictions and the server."""

import json

import numpy as np
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

import clozify
from clozify.cli import app
from clozify.inference.finished_run import FinishedRun
from clozify.methods.combination import TeacherWeight
from clozify.pipeline import generations, teachers
from clozify.serving.model import ServedModel
from clozify.teachers.base import Cost, votes
from tests.integration.conftest import SETTINGS

RULES = """
[[rules]]
label = "{label}"
any = ["the", "a", "it"]
name = "short words"
"""


class Constant:
    """A teacher that always votes for one label."""

    kind = "constant"

    def __init__(self, label, name="constant"):
        self.label, self.name, self.calls = label, name, 0

    def key(self):
        return {"label": self.label}

    def cost(self, rows):  # noqa: ARG002
        return Cost()

    def score(self, rows, context):  # noqa: ARG002
        self.calls += 1
        return votes(np.full(len(rows), self.label), len(rows.task.labels))


@pytest.fixture
def with_rule(files):
    """The task file with a rule for its first label."""
    path = files / "task.toml"
    label = clozify.load_task(path).labels[0]
    path.write_text(path.read_text() + RULES.format(label=label))
    return label


def test_metrics_and_soft_labels_are_those_of_all_teachers(start_run, files, with_rule):
    result = start_run(teachers=[Constant(1)])
    metrics = result.metrics
    assert [(teacher.name, teacher.kind) for teacher in metrics.teachers] == [
        ("patterns", "patterns"),
        ("short words", "rule"),
        ("constant", "constant"),
    ]
    assert all(teacher.gain is not None for teacher in metrics.teachers)
    assert metrics.teachers[2].coverage == 1.0
    assert "Teachers" in result.report.read_text()
    record = json.loads((files / "run" / "ensemble.json").read_text())
    combined = np.load(files / "run" / "combined" / record["combined"] / "unlabeled.npy")
    probabilities = np.stack(
        [result.labels.column(f"probability_{label}").to_numpy() for label in result.run.task.labels], axis=1
    )
    expected = np.exp(combined) / np.exp(combined).sum(axis=1, keepdims=True)  # at temperature 1
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_a_run_that_resumes_asks_no_teacher_again_and_trains_no_member_for_a_new_one(start_run, with_rule):
    messages, first, second = [], Constant(1), Constant(0, "another")
    start_run(teachers=[first])
    asked = first.calls
    start_run(teachers=[first, second], log=messages.append)
    assert first.calls == asked
    assert second.calls
    assert all("already done" in message for message in messages if message.startswith("member"))


def test_patterns_alone_keep_the_papers_scores(start_run, files):
    result = start_run()
    assert result.metrics.teachers is None
    record = json.loads((files / "run" / "ensemble.json").read_text())
    assert "teachers" not in record
    weights = np.array([entry["weight"] for entry in record["weights"]])
    scores = [np.load(files / "run" / "members" / entry["member"] / "unlabeled.npy") for entry in record["weights"]]
    mean = np.average(np.array(scores, dtype=np.float64), axis=0, weights=weights if weights.any() else None)
    expected = softmax(mean / 2, axis=1)  # at the paper's temperature 2
    for index, label in enumerate(result.run.task.labels):
        np.testing.assert_allclose(
            result.labels.column(f"probability_{label}").to_numpy(), expected[:, index], atol=1e-6
        )


def test_ipet_draws_rows_by_all_teachers(start_run, monkeypatch):
    @clozify.rule
    def parity(row):
        return str(1 + int(row["text"].split()[-1]) % 2)

    def last_alone(votes):  # whatever the tiny members say, the rule decides
        return [TeacherWeight(0.9, 1.0, float(teacher is votes[-1]), 1.0) for teacher in votes]

    monkeypatch.setattr(teachers, "fit_weights", last_alone)
    drawn, train_members = {}, generations.train_members

    def spy(run, specs, stage):
        drawn[stage] = [(run.plan.unlabeled, spec.drawn) for spec in specs]
        return train_members(run, specs, stage)

    monkeypatch.setattr(generations, "train_members", spy)
    start_run(method="ipet", settings=[*SETTINGS, "ipet.generations=1"], teachers=[parity])
    assert len(drawn["generation 1"]) == 4
    for unlabeled, of_member in drawn["generation 1"]:
        texts = unlabeled.texts("text")
        assert len(of_member.rows) == 40
        assert of_member.labels.tolist() == [int(texts[row].split()[-1]) % 2 for row in of_member.rows]


def test_an_ensemble_predicts_and_serves_with_the_votes_of_its_rules(start_run, files, with_rule):
    result = start_run(unlabeled=None)
    finished = FinishedRun(files / "run")
    rows = ["the text", "words"]
    expected = result.predict(rows).probabilities
    record = json.loads((files / "run" / "ensemble.json").read_text())
    assert [teacher["kind"] for teacher in record["teachers"]] == ["patterns", "rule"]
    served = ServedModel(files / "run")
    fields = dict.fromkeys(finished.task.fields, rows)
    np.testing.assert_allclose(served.decision.probabilities(served.scores(fields)), expected, atol=1e-6)


def test_an_ensemble_says_which_teachers_voted_in_training_only(start_run, files):
    @clozify.rule
    def never(row):
        return None

    start_run(unlabeled=None, teachers=[never, Constant(0)])
    finished = FinishedRun(files / "run")
    assert any("'never' and 'constant' voted in training only" in note for note in finished.notes)
    assert len(finished.predict(["a text"])) == 1


def test_zero_shot_joins_rules_with_the_patterns(files, with_rule, tiny_folder):
    result = clozify.zero_shot(files / "task.toml", files / "test.csv", model=str(tiny_folder("bert")))
    assert [teacher.name for teacher in result.teachers] == ["patterns", "short words"]
    assert result.to_json()["teachers"][1]["coverage"] == result.teachers[1].coverage


def test_a_teacher_without_a_vote_is_named(start_run, files, with_rule, tiny_folder):
    path = files / "task.toml"
    path.write_text(path.read_text().replace('["the", "a", "it"]', '["nowhere"]'))
    result = clozify.zero_shot(path, files / "test.csv", model=str(tiny_folder("bert")))
    assert any("'short words' votes on none of these rows" in warning for warning in result.warnings)
    warnings = start_run().metrics.warnings
    assert any("'short words' votes on none of the unlabelled rows" in warning for warning in warnings)


def test_zero_shot_with_rules_needs_no_labels(files, with_rule, tiny_folder):
    result = clozify.zero_shot(files / "task.toml", files / "unlabeled.csv", model=str(tiny_folder("bert")))
    assert [teacher.accuracy for teacher in result.teachers] == [None, None]


def test_supervised_training_says_that_rules_do_not_vote(start_run, with_rule):
    metrics = start_run(method="supervised").metrics
    assert any("rules and other teachers do not vote" in warning for warning in metrics.warnings)


def test_an_object_that_is_no_teacher_is_an_error(start_run):
    with pytest.raises(clozify.ClozifyError, match="not of the type int"):
        start_run(teachers=[3])


def test_two_teachers_of_one_name_are_an_error(start_run):
    with pytest.raises(clozify.ClozifyError, match="Two teachers are called 'constant'"):
        start_run(teachers=[Constant(0), Constant(1)])


def test_the_command_shows_the_teachers(files, with_rule, tiny_folder):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    result = CliRunner().invoke(
        app,
        [
            *("train", str(files / "task.toml"), "--labeled", str(files / "labeled.csv")),
            *("--unlabeled", str(files / "unlabeled.csv"), "--test", str(files / "test.csv")),
            *("--model", str(tiny_folder("bert")), "--recipe", "paper", "--output", str(files / "run"), *settings),
        ],
    )
    assert result.exit_code == 0, result.output
    assert "short words" in result.output
