"""The file to correct: the order of its rows, their reasons, and columns of every type."""

import datetime
import json

import pandas as pd
import pytest
from datasets import Dataset

from clozify.data.observed_labels import observe_labels
from clozify.data.rows import Rows
from clozify.inference.audit_checks import nearest_label
from clozify.inference.audit_file import collect_reasons, write_file
from clozify.inference.audit_findings import Checks
from clozify.inference.audit_records import Duplicates, EmptyRow, LabelError, TruncatedRow
from clozify.inference.audit_sets import AuditSet


@pytest.fixture
def data(stars):
    columns = {
        "label": [1, 2, 3, 1],
        "text": ["first", "second", "third", ""],
        "tags": [["a", "b"], [], None, ["c"]],
        "bytes": [b"x", b"y", None, b"z"],
        "date": [datetime.datetime(2024, 1, 2)] * 4,
        "audit_reason": ["from before"] * 4,
    }
    rows = Rows(Dataset.from_dict(columns), stars)
    return AuditSet("labeled", rows, [rows.texts("text")], observe_labels(rows))


@pytest.fixture
def checks(data):
    rows = [data.row(index) for index in range(4)]
    pair = Duplicates(rows=[rows[0], rows[2]], similarity=1.0, labels_differ=True)
    return Checks(
        labels=[],
        unknown_labels=[],
        label_errors=[LabelError(row=rows[1], suggestion="3", probability=0.9, label_probability=0.04)],
        duplicates=[pair],
        leaks=[],
        other_languages=[],
        empty=[EmptyRow(row=rows[3], fields=["text"])],
        truncated=[TruncatedRow(row=rows[0], lost=7, tokens=90)],
    )


def test_reasons_name_other_rows_and_likelier_labels(data, checks):
    assert collect_reasons(data, checks) == {
        1: ["the same text as labelled row 3 '3' with another label"],
        3: ["the same text as labelled row 1 '1' with another label"],
        2: ["the label may be '3' (90%; '2' 4%)"],
        4: ["no text in text"],
    }


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_rows_with_findings_come_first_in_a_file_of_any_format(data, checks, tmp_path, suffix):
    path = tmp_path / f"correct.{suffix}"
    write_file(path, data, checks, [])
    if suffix == "csv":
        table = pd.read_csv(path, dtype={"audit_suggestion": str})
        assert json.loads(table["tags"][0]) == ["a", "b"]
    else:
        table = (
            pd.read_json(path, lines=True, dtype={"audit_suggestion": str})
            if suffix == "jsonl"
            else pd.read_parquet(path)
        )
    assert table["audit_row"].tolist() == [1, 3, 2, 4]
    assert table["label"].tolist() == [1, 3, 2, 1]
    assert table["audit_lost_tokens"].tolist() == [7, 0, 0, 0]
    assert str(table["audit_suggestion"][2]) == "3"
    assert not table["audit_reason"].str.contains("from before").any()


def test_the_most_similar_label_is_found_whatever_its_case():
    assert nearest_label("WROLD", ["World", "Sports"]) == "World"
    assert nearest_label("xyz", ["World", "Sports"]) is None
