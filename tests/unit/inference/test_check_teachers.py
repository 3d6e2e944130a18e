"""What `clozify check` says about teachers besides patterns and rules."""

import pytest

from clozify.config.task import load_task
from clozify.inference.check_teachers import check_teachers

TASK = {"fields": ["text"], "patterns": ["{text} It was {mask}."], "labels": {"1": "bad", "2": "great"}}


def check_one(**entry):
    (result,) = check_teachers(load_task(TASK | {"teachers": [entry]}))
    return result


@pytest.mark.parametrize("kind", ["classifier", "nli", "model"])
def test_a_model_that_is_not_there_is_a_problem_that_names_the_teacher(kind):
    result = check_one(kind=kind, model="./nowhere", name="last year")
    (problem,) = result.problems
    assert problem.startswith("The teacher 'last year' cannot be used: The model folder './nowhere' does not exist")


def test_a_classifier_with_other_labels_is_a_problem(tiny_folder):
    (problem,) = check_one(kind="classifier", model=str(tiny_folder("bert"))).problems
    assert "stand for none of the task's labels" in problem


def test_a_language_model_is_accepted(tiny_folder):
    result = check_one(kind="model", model=str(tiny_folder("bert")))
    assert not result.problems
    assert not result.warnings


@pytest.mark.parametrize(
    ("variable", "entry", "is_missing"),
    [
        ("", {}, True),
        ("sk-1", {}, False),
        ("", {"base_url": "http://localhost:8000/v1"}, False),  # such a server mostly needs none
    ],
)
def test_a_missing_key_is_said_before_anything_is_trained(variable, entry, is_missing, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", variable)
    result = check_one(kind="openai", model="m", **entry)
    assert not result.problems
    assert any("the environment variable OPENAI_API_KEY is not set" in note for note in result.warnings) == is_missing
