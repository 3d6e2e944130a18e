"""Predictions keep the rows' ids, whatever their type, in every format."""

import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features

from clozify.config.task import Task, Verbalizer, load_task
from clozify.data.in_memory import make_rows
from clozify.data.predictions import write_predictions
from clozify.data.rows import Rows, read_rows

WORDS = Verbalizer(words={"a": ("one",), "b": ("two",)})
TASK = Task(name="t", id="key", fields=["text"], patterns=["{mask} {text}"], verbalizers=[WORDS])
IDS = {  # column -> as text
    "date": (pa.array([None, datetime.date(2020, 1, 2)]), "2020-01-02"),
    "time": (pa.array([None, datetime.datetime(2020, 1, 2, 3)], pa.timestamp("us")), "2020-01-02 03:00:00"),
    "decimal": (pa.array([None, decimal.Decimal("1.50")]), "1.50"),
    "bytes": (pa.array([None, b"\xffk"]), "\\xffk"),
    "uint64": (pa.array([None, 2**63 + 1], pa.uint64()), 2**63 + 1),
    "float": (pa.array([float("nan"), 1.5]), 1.5),
    "list": (pa.array([None, [1, 2]]), "[1, 2]"),
    "struct": (pa.array([None, {"a": 1}]), '{"a": 1}'),
    "bool": (pa.array([None, True]), True),
    "large_string": (pa.array([None, "x"], pa.large_string()), "x"),
}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_ids_of_every_type_are_written_in_stretches_one_of_which_has_none(kind, suffix, tmp_path):
    column, text = IDS[kind]
    pq.write_table(pa.table({"text": ["x", "y"], "key": column}), tmp_path / "rows.parquet")
    rows, path = read_rows(tmp_path / "rows.parquet", TASK), tmp_path / f"out{suffix}"
    assert rows.ids() == [None, text]
    write_predictions(path, rows, ((start, np.array([[0.25, 0.75]])) for start in range(2)))
    if suffix == ".parquet":
        ids = pq.read_table(path).column("id")
        assert (ids.type, ids.to_pylist()[1]) == (column.type, column.to_pylist()[1])
    elif suffix == ".jsonl":
        assert [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()] == [None, text]
    else:
        first, second = pd.read_csv(path, dtype=str, keep_default_na=False)["id"]
        assert (first, second) == ("", str(text).lower() if kind == "bool" else str(text))


def test_ids_that_are_null_in_all_rows_are_written(tmp_path):
    dataset = Dataset(pa.table({"text": ["x"], "key": pa.nulls(1)}))
    rows = Rows(dataset.cast(Features.from_arrow_schema(dataset.data.schema)), TASK)
    for suffix in (".csv", ".jsonl", ".parquet"):
        write_predictions(tmp_path / f"out{suffix}", rows, [(0, np.array([[0.25, 0.75]]))])
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["id"] is None


GROUPED = {
    "fields": ["text"],
    "patterns": ["{mask} {text}"],
    "labels": {name: name for name in "abcd"},
    "groups": {"x": ["a", "c"], "y": ["b"]},
}
PROBABILITIES = np.array([[0.1, 0.4, 0.35, 0.15], [0.2, 0.2, 0.2, 0.4]])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_predictions_of_a_task_with_groups_have_the_labels_group_and_every_groups_probability(suffix, tmp_path):
    rows, path = make_rows({"text": ["one", "two"]}, load_task(GROUPED), "memory"), tmp_path / f"out{suffix}"
    write_predictions(path, rows, [(0, PROBABILITIES)])
    read = {".csv": pd.read_csv, ".jsonl": lambda f: pd.read_json(f, lines=True), ".parquet": pd.read_parquet}[suffix]
    frame = read(path)
    assert list(frame.columns) == [
        "id", "prediction", "prediction_group",
        "group_probability_x", "group_probability_y", "group_probability_d",
        "probability_a", "probability_b", "probability_c", "probability_d",
    ]  # fmt: skip
    assert frame["prediction"].tolist() == ["b", "d"]
    assert frame["prediction_group"].tolist() == ["y", "d"]  # the label's, although x has the higher sum
    assert np.allclose(frame["group_probability_x"], [0.45, 0.4])


def test_only_the_likeliest_labels_are_written_if_asked_for(tmp_path):
    task = load_task(GROUPED | {"groups": {}})
    rows = make_rows({"text": ["one", "two"]}, task, "memory")
    write_predictions(tmp_path / "out.csv", rows, [(0, PROBABILITIES)], top=2)
    frame = pd.read_csv(tmp_path / "out.csv")
    assert list(frame.columns) == ["id", "prediction", "label_1", "probability_1", "label_2", "probability_2"]
    assert frame["label_1"].tolist() == frame["prediction"].tolist() == ["b", "d"]
    assert frame["label_2"].tolist() == ["c", "a"]  # of equal ones the first
    assert np.allclose(frame["probability_2"], [0.35, 0.2])
