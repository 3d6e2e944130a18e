"""What a run works on is read and checked before anything is trained."""

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
