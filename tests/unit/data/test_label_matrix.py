"""Several labels a row, as files and memory hold them."""

import numpy as np
import pandas as pd
import pytest

from clozify.config.task import load_task
from clozify.data.few_shot import few_shot, reselect
from clozify.data.in_memory import load_rows
from clozify.data.rows import Rows, read_rows
from clozify.data.task_labels import load_task as load_named_task
from clozify.errors import DataError, TaskError
from clozify.inference.init_task import init_task

TASK = {
    "fields": ["text"],
    "patterns": ["{text} {mask}"],
    "labels": {"a": "x", "b": "y", "c": "z"},
    "multilabel": True,
}
EXPECTED = [[1, 1, 0], [0, 0, 0], [-1, -1, -1], [0, 0, 1]]


@pytest.fixture
def task():
    return load_task(TASK)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_cell_holds_labels_with_separators_and_an_empty_one_means_that_none_applies(tmp_path, task):
    rows = read_rows(write(tmp_path / "x.csv", "text,label\nq,a|b\nr,\ns,-\nt, c |\n"), task)
    assert rows.label_matrix.tolist() == EXPECTED
    assert rows.is_labeled.tolist() == [True, True, False, True]
    assert rows.select([3, 0]).targets.tolist() == [[0, 0, 1], [1, 1, 0]]


def test_the_separator_is_the_users_choice(tmp_path):
    task = load_task({**TASK, "separator": ", "})
    assert read_rows(write(tmp_path / "x.csv", 'text,label\nq,"a, c"\n'), task).targets.tolist() == [[1, 0, 1]]


def test_jsonl_and_parquet_hold_lists(tmp_path, task):
    lines = '{"text":"q","label":["a","b"]}\n{"text":"r","label":[]}\n{"text":"s"}\n{"text":"t","label":["c"]}\n'
    assert read_rows(write(tmp_path / "x.jsonl", lines), task).label_matrix.tolist() == EXPECTED
    frame = pd.DataFrame({"text": list("qrst"), "label": [["a", "b"], [], None, ["c"]]})
    frame.to_parquet(tmp_path / "x.parquet")
    assert read_rows(tmp_path / "x.parquet", task).label_matrix.tolist() == EXPECTED


def test_each_label_may_have_a_column_of_its_own(tmp_path, task):
    content = "text,a,b,c\nq,1,true,0\nr,0,0.0,false\ns,,,\nt,0,False,1.0\n"
    rows = read_rows(write(tmp_path / "x.csv", content), task)
    assert rows.has_labels
    assert rows.label_matrix.tolist() == EXPECTED


@pytest.mark.parametrize(
    "labels",
    [
        np.array([[1, 0, 1], [0, 0, 0]]),
        [[1, 0, 1], [0, 0, 0]],
        [["a", "c"], []],
        ["a|c", ""],
        pd.Series([("a", "c"), ()]),
        pd.DataFrame({"a": [True, False], "b": [False, False], "c": [True, False]}),
    ],
    ids=["matrix", "lists of numbers", "lists of names", "texts", "series", "frame"],
)
def test_labels_in_memory_are_matrices_lists_or_texts(task, labels):
    assert load_rows(["q", "r"], task, labels=labels).label_matrix.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_columns_of_labels_in_a_data_frame_are_read(task):
    frame = pd.DataFrame({"text": ["q"], "a": [1], "b": [0], "c": [1]})
    assert load_rows(frame, task).label_matrix.tolist() == [[1, 0, 1]]


def test_rows_that_were_sent_to_another_machine_keep_their_labels(task):
    rows = load_rows(["q", "r", "s"], task, labels=[["a"], ["b"], ["a", "c"]])
    _ = rows.label_matrix
    sent = Rows.from_state(rows.select([2, 1]).in_memory_state())
    assert sent.label_matrix.tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\nq,a|bb\n", "has the label 'bb' (did you mean 'b'?), which the task does not know"),
        ("text,a,b\nq,1,0\n", "lacks the label column 'label' and, of one column of 0 and 1 for each label, 'c'"),
        ("text,a,b,c\nq,1,2,0\nr,1,,0\n", "lacks 0, 1, true or false in each label's column in row 1 and 1 more"),
    ],
)
def test_labels_that_cannot_be_read_are_one_sentence(tmp_path, task, content, message):
    with pytest.raises(DataError) as error:
        _ = read_rows(write(tmp_path / "x.csv", content), task).targets
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_several_labels_in_data_for_one_label_a_row_name_the_entry_to_add(tmp_path):
    task = load_task({**TASK, "multilabel": False})
    with pytest.raises(DataError, match="add multilabel = true to the task"):
        _ = read_rows(write(tmp_path / "x.csv", "text,label\nq,a|b\n"), task).labels


def test_a_few_examples_count_for_each_of_their_labels(task):
    labels = [["a"], [], ["a", "b"], [], ["b"], ["c"], ["c", "a"], ["b"]]
    rows = load_rows(list("qrstuvwx"), task, labels=labels)
    chosen = few_shot(rows, 6)
    assert chosen.texts("text") == list("qrstuvw")  # two of each label, and of six rows with labels two without
    assert reselect(rows, len(chosen)).texts("text") == chosen.texts("text")
    assert "c (2 of 3)" in few_shot(rows, 9).warnings[0]


def test_names_of_labels_are_read_from_cells_with_several(tmp_path):
    content = {name: value for name, value in TASK.items() if name != "labels"}
    path = write(tmp_path / "x.csv", "text,label\nq,a|b\nr,\ns,c\n")
    assert load_named_task(content, path).labels == ["a", "b", "c"]


def test_a_task_file_for_cells_with_several_labels_says_so(tmp_path):
    cells = ["sports|politics", "sports", "", "politics", "music", "music|sports"] * 4
    lines = [f"the text number {n} of all,{cell}" for n, cell in enumerate(cells)]
    path = write(tmp_path / "x.csv", "text,labels\n" + "\n".join(lines))
    task = init_task(path).task
    assert (task.multilabel, task.metric, task.labels) == (True, "micro-f1", ["music", "politics", "sports"])
    assert read_rows(path, task).label_matrix[:2].tolist() == [[0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"separator": ""}, "'separator' is empty"),
        ({"separator": "b"}, "contains the separator 'b'"),
        ({"multilabel": False, "separator": ";"}, "add multilabel = true"),
        ({"multilabel": False, "metric": "micro-f1"}, "is for rows with several labels"),
        ({"fields": ["text", "a"]}, "is both a label and a field"),
        ({"groups": {"x": ["a", "b"]}}, "is for tasks with one label a row"),
    ],
)
def test_faults_of_the_task_are_reported(entries, message):
    with pytest.raises(TaskError, match=message):
        load_task({**TASK, **entries})


def test_a_task_with_one_label_a_row_is_written_as_before():
    """Its hash names the jobs of finished runs."""
    task = load_task({**TASK, "multilabel": False})
    assert "multilabel" not in task.to_toml() + str(task.model_dump())
    assert "separator" not in task.to_toml() + str(task.model_dump())


def test_the_metric_of_several_labels_is_micro_f1_unless_the_task_names_another(task):
    assert task.metric == "micro-f1"
    assert load_task({**TASK, "metric": "macro-f1"}).metric == "macro-f1"
    assert load_task(task.with_changes(separator=";")) == load_task({**TASK, "separator": ";"})
