"""Rows in memory are the same rows as in a file, and what cannot be used is an error of clozify."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from clozify.config.task import load_task
from clozify.data.in_memory import encode_labels, load_rows
from clozify.data.rows import NO_LABEL
from clozify.errors import ClozifyError, DataError

TASK = {"fields": ["text"], "id": "key", "labels": {1: "bad", 2: "great"}, "patterns": ["It was {mask}. {text}"]}
FRAME = pd.DataFrame({"key": ["x", "y", "z"], "text": ["a", "b", "c"], "label": [2, 1, None]})
DICTS = FRAME.to_dict("records")


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        FRAME.assign(label=["2", "1", None]),
        DICTS,
        [*DICTS[:2], {"key": "z", "text": "c"}],
        FRAME.to_dict("list"),
        Dataset.from_pandas(FRAME),
        [("a", 2), ("b", "1"), ("c", None)],
        np.array([["a", "2"], ["b", "1"], ["c", ""]]),
    ],
)
def test_rows_of_every_form_are_the_same(data):
    rows = load_rows(data, load_task(TASK))
    assert rows.texts("text") == ["a", "b", "c"]
    assert rows.labels.tolist() == [1, 0, NO_LABEL]
    if not isinstance(data, (list, np.ndarray)) or data is DICTS:
        assert rows.ids() == ["x", "y", "z"]


def test_texts_alone_have_no_labels():
    for data in (["a", "b"], pd.Series(["a", "b"]), [("a",), ("b",)], ("a", "b")):
        rows = load_rows(data, load_task(TASK))
        assert rows.texts("text") == ["a", "b"]
        assert not rows.has_labels
    assert load_rows(["a", "b"], load_task(TASK), labels=[2, 1]).labels.tolist() == [1, 0]


def test_columns_of_dicts_and_frames_are_mapped():
    renamed = FRAME.rename(columns={"text": "body", "label": "stars"})
    for data in (renamed, renamed.to_dict("records")):
        rows = load_rows(data, load_task(TASK), {"text": "body", "label": "stars"})
        assert rows.labels.tolist() == [1, 0, NO_LABEL]


@pytest.mark.parametrize("labels", [("false", "true"), ("False", "True")])
def test_truth_values_in_memory_are_labels(labels):
    task = load_task(TASK | {"labels": dict(zip(labels, ["bad", "great"], strict=True))})
    assert load_rows([("a", True), ("b", False)], task).labels.tolist() == [1, 0]
    assert encode_labels([True, False], task)[0] == [labels[1], labels[0]]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (7, "labeled is of the type int, not rows"),
        ([], "labeled has 0 rows"),
        ([1, 2], "holds 1 in the field 'text'"),
        (["a", None], "Row 1 of labeled has no text"),
        ([("a", 2), ("b",)], "Row 0 of labeled has 2 columns"),
        ([{"body": "a"}], "has 0 columns 'text'"),
        ({"text": ["a"], "label": [1, 2]}, "whose values are no columns"),
        ({"text": "a"}, "whose values are no columns"),
        (["\ud800"], "no valid Unicode"),
    ],
)
def test_what_cannot_be_used_is_named(data, part):
    with pytest.raises(DataError, match=part):
        load_rows(data, load_task(TASK), name="labeled")


@pytest.mark.parametrize("labels", [[9, 9], "1", 5, [[1], [2]], [{"a": 1}, None]])
def test_labels_that_the_task_does_not_know_are_an_error(labels):
    with pytest.raises(DataError, match="does not know|not a list"):
        _ = load_rows(["a", "b"], load_task(TASK), labels=labels).labels


@pytest.mark.parametrize(
    ("task", "part"),
    [
        (5, "not of the type int"),
        (None, "not of the type NoneType"),
        ({}, "there are no labels"),
        ({"labels": {"a": "x", "b": "y"}}, "'fields' is missing"),
        (TASK | {"patterns": ["{txt} {mask}"]}, "did you mean 'text'"),
        (TASK | {"labels": ["a", "b"]}, "'labels' is"),
        (TASK | {"lables": {}}, "did you mean 'labels'"),
    ],
)
def test_a_task_that_is_none_is_an_error_of_clozify(task, part):
    with pytest.raises(ClozifyError, match=part):
        load_task(task)


def test_a_task_as_a_dict_is_the_task_of_the_same_file(tmp_path):
    task = load_task(TASK)
    task.save(tmp_path / "task.toml")
    assert load_task(tmp_path / "task.toml") == load_task(task) == task
    assert json.loads(json.dumps(TASK))["labels"]["1"] == "bad"  # a file has text where Python has numbers
