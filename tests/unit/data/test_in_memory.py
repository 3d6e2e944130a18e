"""Rows in memory are the same rows as in a file, and what cannot be used is an error of clozify."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
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
        (TASK | {"labels": "a b"}, "'labels' is"),
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


@pytest.mark.parametrize("form", [lambda frame: frame, lambda frame: frame.to_dict("records"), pa.Table.from_pandas])
def test_a_mapping_that_fits_no_field_or_column_is_refused(form):
    for mapping, message in ({"text": "nope"}, "lacks the column 'nope'"), ({"foo": "key"}, "no field 'foo'"):
        with pytest.raises(DataError, match=message):
            load_rows(form(FRAME), load_task(TASK), mapping)
    with pytest.raises(DataError, match="no field 'foo'"):
        load_rows(["a"], load_task(TASK), {"foo": "key"})


def test_a_mapped_column_is_used_instead_of_one_by_the_name_of_the_field():
    frame = pd.DataFrame({"text": ["a"], "body": ["b"]})
    for data in (frame, frame.to_dict("records"), pa.Table.from_pandas(frame)):
        assert load_rows(data, load_task(TASK), {"text": "body"}).texts("text") == ["b"]
    two_fields = load_task(TASK | {"fields": ["one", "two"], "patterns": ["{one} {mask} {two}"]})
    assert load_rows(frame, two_fields, {"one": "body", "two": "body"}).texts("two") == ["b"]


def test_unlabelled_rows_may_lack_the_mapped_label_column():
    assert not load_rows([{"text": "a"}], load_task(TASK), {"label": "stars"}).has_labels


def test_labels_beside_data_that_has_its_own_are_refused(tmp_path):
    (tmp_path / "d.csv").write_text("text,label\na,1\n")
    for data in (str(tmp_path / "d.csv"), tmp_path / "d.csv", Dataset.from_pandas(FRAME), pa.Table.from_pandas(FRAME)):
        with pytest.raises(DataError, match="remove 'labels'"):
            load_rows(data, load_task(TASK), labels=["2"])


def test_bytes_read_as_surrogates_are_decoded():
    assert load_rows(["a\udcc3\udca9", "b"], load_task(TASK)).texts("text") == ["aé", "b"]
    for text in ("a\udcff", "\ud800"):
        with pytest.raises(DataError, match="no valid Unicode"):
            load_rows([text], load_task(TASK))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([2**63 - 1, 1], [2**63 - 1, 1]),
        ([2**63 + 5, 1], [str(2**63 + 5), "1"]),
        ([2**70, 1], [str(2**70), "1"]),
        ([2**60 + 1, None], [str(2**60 + 1), None]),
        ([np.array([1, 2]), np.array([3])], ["[1, 2]", "[3]"]),
    ],
)
def test_ids_stay_exact(ids, expected):
    dicts = [{"key": row_id, "text": "a"} for row_id in ids]
    for data in (dicts, {"key": ids, "text": ["a", "a"]}, pd.DataFrame(dicts, dtype=object)):
        assert load_rows(data, load_task(TASK)).ids() == expected


def test_two_columns_of_one_name_are_refused():
    for name in ("key", "label"):
        columns = ["text", name, name]
        with pytest.raises(DataError, match=f"2 columns '{name}'"):
            load_rows(pd.DataFrame([["a", "1", "2"]], columns=columns), load_task(TASK))
        with pytest.raises(DataError, match="rename"):
            load_rows(pa.Table.from_arrays([["a"], ["1"], ["2"]], names=columns), load_task(TASK))


def test_an_arrow_table_is_rows():
    rows = load_rows(pa.Table.from_pandas(FRAME), load_task(TASK))
    assert (rows.texts("text"), rows.ids()) == (["a", "b", "c"], ["x", "y", "z"])
    with pytest.raises(DataError, match="0 rows"):
        load_rows(pa.table({"text": pa.array([], pa.string())}), load_task(TASK))
