"""A finished run predicts and is measured on rows from files and from memory alike."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from typer.testing import CliRunner

from clozify.config.task import parse_task
from clozify.data.in_memory import load_rows
from clozify.data.predictions import text_columns
from clozify.data.rows import Rows
from clozify.errors import DataError, RunError
from clozify.inference.finished_run import EvaluationResult, FinishedRun, Predictions, evaluate, load_run, predict

TASK = parse_task("""
name = "stars"
fields = ["title", "text"]
optional = ["title"]
id = "uid"
patterns = ["It was {mask}. {title} {text}"]
[labels]
1 = "bad"
2 = "great"
""")
TEXTS = ["a good game", "a bad game", "good", "bad bad"]
FRAME = pd.DataFrame({"title": "", "text": TEXTS, "label": [2, 1, 2, 2]})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose classifier finds 'good' with probability 0.9, and 'bad' otherwise with 0.75."""
    (tmp_path / "classifier").mkdir()
    TASK.save(tmp_path / "classifier" / "task.toml")

    def probabilities(self, rows):
        return np.array([[0.1, 0.9] if "good" in text else [0.75, 0.25] for text in rows.texts("text")])

    monkeypatch.setattr(FinishedRun, "probabilities", probabilities)
    return load_run(tmp_path)


def test_texts_dicts_frames_rows_and_files_give_the_same_predictions(run, tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    rows = Rows(Dataset.from_pandas(FRAME), TASK)
    dicts = [{"text": text} for text in TEXTS]
    renamed = FRAME.rename(columns={"text": "body"})
    assert run.predict(renamed, column_mapping={"text": "body"}).labels == ["2", "1", "2", "1"]
    for data in (dicts, FRAME, rows, tmp_path / "rows.csv", str(tmp_path / "rows.csv")):
        predictions = predict(run, data)
        assert isinstance(predictions, Predictions)
        assert predictions.labels == ["2", "1", "2", "1"]
        assert predictions.ids == [0, 1, 2, 3]
        assert len(predictions) == 4
        assert np.array_equal(predictions.probabilities[1], [0.75, 0.25])


def test_predictions_are_written_where_asked(run, tmp_path):
    run.predict(FRAME, tmp_path / "first.csv")
    run.predict(FRAME).save(tmp_path / "second.jsonl")
    assert pd.read_csv(tmp_path / "first.csv")["prediction"].tolist() == [2, 1, 2, 1]
    assert pd.read_json(tmp_path / "second.jsonl", lines=True)["probability_2"].tolist() == pytest.approx(
        [0.9, 0.25] * 2
    )
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match="that is the data"):
        run.predict(tmp_path / "rows.csv", tmp_path / "rows.csv")


def test_labels_come_from_a_frame_a_file_or_beside_the_texts(run, tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    dicts = [{"text": text} for text in TEXTS]
    results = [run.evaluate(FRAME), evaluate(run, dicts, [2, 1, 2, 2]), evaluate(run, tmp_path / "rows.csv")]
    for result in results:
        assert isinstance(result, EvaluationResult)
        assert result.accuracy == 0.75
        assert result.confusion == [[1, 0], [1, 2]]
        assert result.labels["1"].precision == 0.5
        assert result.rows == 4
    with pytest.raises(DataError, match="lacks the label column 'label'"):
        run.evaluate(dicts)
    with pytest.raises(DataError, match="There are 4 rows, but 1 labels"):
        run.evaluate(dicts, [1])


def test_rows_without_a_label_are_left_out_and_counted(run, tmp_path):
    FRAME.assign(label=["2", "1", "2", ""]).to_csv(tmp_path / "rows.csv", index=False)
    result = run.evaluate(tmp_path / "rows.csv")
    assert (result.rows, result.accuracy) == (3, 1)
    assert any("1 of 4 test rows have no label" in warning for warning in result.warnings)


def test_one_text_is_refused_as_rows():
    with pytest.raises(DataError, match="2 fields"):
        load_rows(["a text"], TASK)


def test_a_folder_without_a_run_is_named_in_the_error(run, tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        load_run(tmp_path / "nothing")
    with pytest.raises(RunError, match="has no metrics.json"):
        _ = run.metrics
    with pytest.raises(RunError, match=r"has no report.html"):
        _ = run.report


def test_the_texts_are_written_if_asked_for(run, tmp_path):
    for name in ("out.csv", "out.jsonl", "out.parquet"):
        run.predict(FRAME, tmp_path / name, with_text=True)
    assert pd.read_csv(tmp_path / "out.csv")["text"].tolist() == TEXTS
    assert pd.read_json(tmp_path / "out.jsonl", lines=True)["text"].tolist() == TEXTS
    assert pd.read_parquet(tmp_path / "out.parquet")["text"].tolist() == TEXTS
    task = TASK.with_changes(fields=["prediction"], optional=[], patterns=["{mask} {prediction}"])
    with pytest.raises(DataError, match="'prediction' has the name of a column"):
        text_columns(load_rows(["x"], task))


def test_texts_on_the_command_line_are_predicted(run, monkeypatch):
    from clozify.cli import app

    def invoke(*args):
        return CliRunner().invoke(app, ["predict", str(run.folder), *args])

    lines = invoke("--text", "a good game", "--text", "bad", "--with-text").stdout.splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == ["2", "1"]
    assert json.loads(lines[1])["text"] == "bad"
    assert json.loads(invoke("--text", "", "--with-text").stdout)["text"] == ""
    assert "note: The data 'rows in memory' lacks the id column 'uid'" in invoke("--text", "x").stderr
    assert json.loads(invoke("--text", "\udcc3\udca9", "--with-text").stdout)["text"] == "é"
    with pytest.raises(DataError, match="no valid Unicode"):
        raise invoke("--text", "a\udcff").exception
    with pytest.raises(DataError, match="no field 'foo'"):
        raise invoke("--text", "x", "--map", "foo=body").exception
    for args in ([], ["--text", "x", "--data", "rows.csv"]):
        with pytest.raises(DataError, match="either as --data FILE or as --text TEXT"):
            raise invoke(*args).exception
    monkeypatch.setattr(FinishedRun, "task", TASK.with_changes(optional=[]))
    with pytest.raises(DataError, match="'title' and 'text'; use --data"):
        raise invoke("--text", "x").exception


@pytest.mark.parametrize("folder", [None, 3, "", " "])
def test_what_names_no_run_is_a_sentence(folder):
    with pytest.raises(RunError, match="a folder's name or an address"):
        load_run(folder)


@pytest.mark.parametrize("method", [3, "../.."])
def test_what_names_no_method_is_a_sentence(run, method):
    with pytest.raises(RunError, match="was not trained by the method"):
        load_run(run.folder, method)
