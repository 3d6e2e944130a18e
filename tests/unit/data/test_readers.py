"""What files hold arrives as it is written, and a file that cannot be read is one sentence."""

import datetime
import decimal
import gzip
import json
import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozify.config.task import Task, Verbalizer
from clozify.data import readers
from clozify.data.rows import NO_LABEL, read_rows
from clozify.errors import DataError


def make_task(*labels, **changes):
    words = Verbalizer(words={label: (f"word{index}",) for index, label in enumerate(labels or "12")})
    return Task(name="t", fields=["text"], patterns=["{mask} {text}"], verbalizers=[words], **changes)


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ('"2020-01-01"', "2020-01-01"),
        ('"12:30"', "12:30"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1e30", "1e30"),
        ("0.10", "0.10"),
        ("-0", "-0"),
        ("9" * 5_000, "9" * 5_000),
        ("true", "true"),
        ("null", ""),
        ('{"a": [1e30, null, "é"]}', '{"a": [1e30, null, "é"]}'),
        ("[]", "[]"),
    ],
)
@pytest.mark.parametrize("shape", ["lines", "array"])
def test_json_values_keep_their_text(literal, text, shape, tmp_path):
    """A library that guesses types would make dates, rounded numbers and Python objects of them."""
    row = f'{{"text": {literal}, "key": {literal}}}'
    (tmp_path / "d.json").write_text(row + "\n" + row if shape == "lines" else f"[{row},\n {row}]", encoding="utf-8")
    rows = read_rows(tmp_path / "d.json", make_task(id="key"))
    assert rows.texts("text") == [text, text]
    assert rows.ids() == [text or None] * 2


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"[" * 100_000, "line 1 is nested too deeply"),
        (b'{"text": ' + b"[" * 100_000 + b"\n", "line 1 is nested too deeply"),
        (b'{"text": "x"}\n{"text": ' + b'{"a":' * 100_000 + b"\n", "line 2 is nested too deeply"),
        (b'{"text": "x"}\n\n{"text": "\\ud800"}\n', "line 3 holds half of a surrogate pair in 'text'"),
        (b'{"text": "x", "\\udc00": 1}\n', "line 1 has half of a surrogate pair in a key"),
        (b'[{"text": "x"}, {"text": "\\ud800"}]', "item 2 holds half of a surrogate pair"),
        (b"\n \n\n", "has no rows"),
        (b"{}\n{}\n", "has no rows"),
        (b"[]", "has no rows"),
        (b"[1]", "item 1 of the array is not a JSON object"),
        (b'{"text": "x"} {"text": "y"}\n', "line 1 is not one JSON object"),
        (b'{"text": "x"}\n7\n', "line 2 is not one JSON object"),
        (b'[{"text": "x"},\n{"text": \xff}]', "line 2 holds the byte 0xff"),
    ],
)
def test_a_bad_json_file_is_one_sentence_with_its_line(content, part, tmp_path):
    for path, data in ((tmp_path / "d.jsonl", content), (tmp_path / "d.jsonl.gz", gzip.compress(content))):
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            read_rows(path, make_task())
        (problem,) = error.value.problems
        assert part in problem
        assert str(path) in problem


def test_an_incomplete_gzip_file_of_json_lines_is_one_sentence(tmp_path):
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 99)[:-9])
    with pytest.raises(DataError, match="not a complete gzip file"):
        read_rows(tmp_path / "d.jsonl.gz", make_task())


def test_a_file_of_json_lines_may_begin_with_a_byte_order_mark_and_have_glob_characters_in_its_name(tmp_path):
    (tmp_path / "a [1]*.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}\r\n{"text": "y"}')
    assert read_rows(tmp_path / "a [1]*.jsonl", make_task()).texts("text") == ["x", "y"]


def test_json_shards_may_have_different_keys(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"label": 2, "text": "y"}\n')
    assert read_rows(tmp_path, make_task()).labels.tolist() == [NO_LABEL, 1]


@pytest.mark.parametrize("labels", [("false", "true"), ("False", "True")])
@pytest.mark.parametrize("name", ["d.jsonl", "d.parquet", "d.csv"])
def test_truth_values_are_labels(labels, name, tmp_path):
    table = pa.table({"text": ["a", "b", "c"], "label": [True, False, None]})
    if name == "d.jsonl":
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif name == "d.csv":
        table.to_pandas().to_csv(tmp_path / name, index=False)
    else:
        pq.write_table(table, tmp_path / name)
    assert read_rows(tmp_path / name, make_task(*labels)).labels.tolist() == [1, 0, NO_LABEL]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.date(2020, 1, 2), "2020-01-02"),
        (decimal.Decimal("1.50"), "1.50"),
        (2**63 + 1, "9223372036854775809"),
        (b"bytes", "bytes"),
        (True, "true"),
    ],
)
def test_parquet_values_are_read_as_text(value, text, tmp_path):
    column = pa.array([value], pa.uint64()) if type(value) is int else pa.array([value])
    pq.write_table(pa.table({"text": column}), tmp_path / "d.parquet")
    assert read_rows(tmp_path / "d.parquet", make_task()).texts("text") == [text]


def test_a_parquet_column_that_nobody_uses_may_be_a_map(tmp_path):
    column = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"text": ["x"], "map": column}), tmp_path / "d.parquet")
    assert read_rows(tmp_path / "d.parquet", make_task()).texts("text") == ["x"]
    with pytest.raises(DataError, match="lacks the column 'map'"):
        read_rows(tmp_path / "d.parquet", make_task(), {"text": "map"})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_shard_with_other_columns_is_named(suffix, tmp_path):
    for name, column in (("a", "label"), ("b", "lable")):
        frame = pa.table({"text": ["x"], column: ["1"]}).to_pandas()
        path = tmp_path / f"{name}.{suffix}"
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    with pytest.raises(DataError, match=rf"b\.{suffix}' has other columns than .*a\.{suffix}'.*'label' and 'lable'"):
        read_rows(tmp_path, make_task())


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_too_many_columns_are_refused_before_they_are_read(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_COLUMNS", 5)
    frame = pa.table({f"c{index}": ["x"] for index in range(6)}).to_pandas()
    path = tmp_path / f"d.{suffix}"
    if suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    with pytest.raises(DataError, match="has 6 columns, more than 5"):
        read_rows(path, make_task())


def test_what_is_no_file_is_named_as_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for source, kind in (
        ("/dev/null", "a device"),
        (tmp_path / "pipe.csv", "a pipe"),
        (tmp_path / "loop.csv", "a symbolic link that leads nowhere"),
    ):
        with pytest.raises(DataError, match=f"is {kind}, not a file") as error:
            read_rows(source, make_task())
        assert "did you mean" not in str(error.value)


def test_a_name_that_datasets_takes_for_an_address_is_refused(tmp_path):
    (tmp_path / "zip::x.csv").write_text("text\nx\n")
    with pytest.raises(DataError, match="rename it"):
        read_rows(tmp_path / "zip::x.csv", make_task())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv", b"text,label\na,1\nb,2\nc,1,2\n"),
        ("d.parquet", b"none"),
        ("e.parquet", b"PAR1PAR1"),
        ("d.jsonl", b"{"),
    ],
)
def test_libraries_print_nothing_before_the_sentence(name, content, tmp_path, monkeypatch, caplog):
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(logging.getLogger("datasets"), "propagate", True)
    with caplog.at_level(logging.WARNING), pytest.raises(DataError):
        read_rows(tmp_path / name, make_task())
    assert not caplog.records


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_path_is_not_the_current_folder(source, tmp_path, monkeypatch):
    (tmp_path / "d.csv").write_text("text\na\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="is empty"):
        readers.open_data(source)
    assert len(readers.open_data(".")) == 1


def test_nan_in_json_is_a_missing_value(tmp_path):
    line = '{"text": NaN, "other": -Infinity, "nested": [NaN, 1.50]}\n'
    for name, content in ("d.jsonl", line), ("d.json", f"[{line}]"):
        (tmp_path / name).write_text(content)
        row = readers.open_data(tmp_path / name)[0]
        assert row == {"text": None, "other": "-Infinity", "nested": "[null, 1.50]"}


def test_json_nested_too_deeply_names_the_line(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n{"text": ' + "[" * 900 + "]" * 900 + "}\n")
    with pytest.raises(DataError, match=r"d\.jsonl' cannot be read: line 2 is nested too deeply"):
        readers.open_data(tmp_path / "d.jsonl")
