"""What a run works on is read and checked before anything is trained."""

import pytest

from clozify.errors import DataError
from clozify.pipeline.prepare import TrainInputs, prepare

TASK = {"fields": ["text"], "labels": {"a": "bad", "b": "good"}, "patterns": ["It was {mask}. {text}"]}


def warnings_of(**data):
    return prepare(TrainInputs(task=TASK, method="supervised", **data), "cpu").warnings


def test_rows_that_are_in_two_sets_are_counted_and_named():
    """Accuracy on rows that were trained on says nothing, and nobody would know."""
    labeled = [("one", "a"), ("two", "b"), ("three", "a")]
    test, dev = [("four", "a"), ("two", "b"), ("three", "a")], [("one", "a"), ("four", "b")]
    first, second, third = warnings_of(labeled=labeled, test=test, dev=dev)
    assert first.startswith("2 of 3 labelled rows are test rows too (the first is row 2 of 'rows in memory')")
    assert second.startswith("1 of 3 labelled rows are development rows too (the first is row 1")
    assert third.startswith("1 of 2 development rows are test rows too (the first is row 2")


def test_sets_that_share_no_row_are_not_warned_of():
    assert warnings_of(labeled=[("one", "a"), ("two", "b")], test=[("three", "a")]) == ()


def test_the_test_rows_stay_whole():
    inputs = TrainInputs(task=TASK, method="supervised", labeled=[("one", "a"), ("two", "b")], test=[("one", "a")])
    plan = prepare(inputs, "cpu")
    assert (len(plan.labeled), len(plan.test)) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unlabeled": None}, "give some"),
        ({"method": "supervised"}, "with the method pet, ipet or frozen"),
        ({"method": "mixtext"}, "with the method pet, ipet or frozen"),
        ({"unlabeled": ["one row"]}, "at least two unlabelled rows a label"),
        ({"settings": ["distillation=false"]}, "do not set distillation=false"),
    ],
)
def test_a_static_student_needs_a_distilled_classifier(changes, problem):
    inputs = {"labeled": [("one", "a"), ("two", "b")], "unlabeled": [f"row {index}" for index in range(9)]}
    with pytest.raises(DataError, match=problem):
        prepare(TrainInputs(task=TASK, student="static", **(inputs | changes)), "cpu")


def test_the_rows_of_a_static_student_contain_those_that_members_label():
    rows = [f"row {index}" for index in range(90)]
    inputs = {"labeled": [("one", "a"), ("two", "b")], "unlabeled": rows, "student": "static"}
    settings = ["unlabeled_rows=10", "static.unlabeled_rows=30"]
    plan = prepare(TrainInputs(task=TASK, settings=settings, **inputs), "cpu")
    labelled, of_members = plan.static_rows.texts("text"), plan.unlabeled.texts("text")
    assert (len(labelled), len(of_members), plan.student) == (30, 10, "builtin")
    assert set(of_members) < set(labelled)
    assert len(prepare(TrainInputs(task=TASK, **inputs), "cpu").static_rows) == 90
    assert prepare(TrainInputs(task=TASK, **(inputs | {"student": None})), "cpu").static_rows is None


def test_a_static_student_makes_the_frozen_method_train_a_classifier():
    inputs = {"labeled": [("one", "a"), ("two", "b")], "unlabeled": [f"row {index}" for index in range(9)]}
    assert prepare(TrainInputs(task=TASK, method="frozen", student="static", **inputs), "cpu").is_distilled
