"""Classifiers of Transformers and scikit-learn as teachers of a run."""

import shutil

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import clozify
from clozify.errors import TaskError
from clozify.models.classifier_folder import rename_labels

TEACHERS = """
[[teachers]]
kind = "classifier"
model = "{classifier}"
name = "last year"

[[teachers]]
kind = "nli"
model = "{nli}"
name = "inference"
"""


def test_a_runs_classifier_an_nli_model_and_an_estimator_teach_the_next_run(start_run, files):
    classifier = start_run("first").classifier
    nli = files / "nli"
    shutil.copytree(classifier, nli)
    rename_labels(nli, ["entailment", "not_entailment"])
    task = files / "task.toml"
    task.write_text(task.read_text() + TEACHERS.format(classifier=classifier, nli=nli))
    estimator = make_pipeline(TfidfVectorizer(), LogisticRegression())

    metrics = start_run("second", teachers=[estimator]).metrics
    assert [(teacher.name, teacher.kind) for teacher in metrics.teachers] == [
        ("patterns", "patterns"),
        ("last year", "classifier"),
        ("inference", "nli"),
        ("LogisticRegression", "estimator"),
    ]
    assert all(teacher.coverage == 1.0 for teacher in metrics.teachers)
    lines = []
    start_run("second", teachers=[estimator], log=lines.append, replace=False)
    assert "teacher LogisticRegression  already done" in lines

    fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a tool", "a game"], ["1", "2"])
    result = clozify.zero_shot(task, files / "test.csv", model=metrics.model, teachers=[fitted])
    assert [votes.name for votes in result.teachers] == ["patterns", "last year", "inference", "LogisticRegression"]


def test_a_classifier_whose_labels_mean_nothing_to_the_task_ends_a_run_before_any_training(start_run, files):
    classifier = start_run("first").classifier
    rename_labels(classifier, ["LABEL_0", "LABEL_1"])
    task = files / "task.toml"
    task.write_text(
        task.read_text() + TEACHERS.partition('[[teachers]]\nkind = "nli"')[0].format(classifier=classifier)
    )
    with pytest.raises(TaskError, match="'LABEL_0' and 'LABEL_1', which stand for none"):
        start_run("second")
    assert not (files / "second" / "members").exists()
