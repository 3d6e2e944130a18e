"""Draws of labelled rows and rows that are held out."""

import json

import numpy as np
import pytest

from clozify.bench.datasets import BenchData, DataSource, load_data, pair_sources, plain_task
from clozify.bench.draws import (
    DATA,
    DRAWS,
    DrawOptions,
    draw_labeled,
    hold_out,
    make_data_set,
    make_draw,
    write_data_set,
    write_draw,
)
from clozify.config.task import load_task
from clozify.data.in_memory import make_rows
from clozify.errors import DataError, TaskError
from clozify.reproduce.datasets import concat_rows
from clozify.runs.folder import RunFolder

TASK = {"name": "t", "fields": ["text"], "patterns": ["{mask}: {text}"], "labels": {"a": "yes", "b": "no"}}
NAMES = ("A b", "A-b")
LABELS = np.array([0] * 30 + [1] * 10)


def rows(count=60, start=0, texts="row {}"):
    task = load_task(TASK)
    names = ["a" if number % 3 else "b" for number in range(start, start + count)]
    columns = {"text": [texts.format(number) for number in range(start, start + count)], "label": names}
    return make_rows(columns, task, "rows")


def data(test=None, unlabeled=None):
    return BenchData("d", load_task(TASK), rows(), test, unlabeled)


def test_a_draw_has_as_many_rows_of_each_label_and_all_of_a_label_with_fewer():
    drawn = draw_labeled(LABELS, 8, 2, 0)
    assert np.bincount(LABELS[drawn]).tolist() == [8, 8]
    assert np.bincount(LABELS[draw_labeled(LABELS, 16, 2, 0)]).tolist() == [16, 10]


def test_the_rows_of_a_small_draw_are_among_those_of_a_larger_one_with_the_same_seed():
    assert set(draw_labeled(LABELS, 4, 2, 3)) <= set(draw_labeled(LABELS, 8, 2, 3))
    assert set(draw_labeled(LABELS, 4, 2, 3)) != set(draw_labeled(LABELS, 4, 2, 4))


def test_a_part_of_each_label_is_held_out_and_one_row_is_left():
    held = hold_out(LABELS, 0.3, 0)
    assert np.bincount(LABELS[held]).tolist() == [9, 3]
    assert hold_out(np.array([0, 0, 0, 1]), 0.9, 0).tolist().count(True) == 2
    assert (hold_out(LABELS, 0.3, 0) == held).all()


def test_test_rows_are_neither_drawn_nor_unlabelled():
    data_set = make_data_set(data(), DrawOptions())
    draw = make_draw(data_set, 4, 0)
    test, labeled = set(data_set.test.texts("text")), set(draw.labeled.texts("text"))
    unlabeled = set(draw.unlabeled.texts("text"))
    assert not test & labeled
    assert not test & unlabeled
    assert not labeled & unlabeled
    assert len(test | labeled | unlabeled) == 60
    assert "held out" in data_set.notes[-1]


def test_own_test_and_unlabelled_rows_are_used_and_limited():
    options = DrawOptions(test_rows=5, unlabeled_rows=7)
    data_set = make_data_set(data(rows(20, 100), rows(20, 200)), options)
    draw = make_draw(data_set, 4, 1)
    assert (len(data_set.test), len(draw.unlabeled), draw.seed) == (5, 7, 1)
    assert not data_set.held_out


def test_the_rows_of_a_draw_are_written_down_with_their_numbers(tmp_path):
    data_set = make_data_set(data(), DrawOptions())
    draw = make_draw(data_set, 4, 0)
    with RunFolder(tmp_path / "bench") as folder:
        write_data_set(folder, data_set)
        write_draw(folder, draw)
        path, data_path = folder.job_path(DRAWS, draw.key), folder.job_path(DATA, data_set.key)
    written = json.loads((path / "draw.json").read_text())
    assert written["labeled"]["row_numbers"] == draw.labeled.row_numbers().tolist()
    lines = [json.loads(line) for line in (path / "labeled.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == draw.labeled.texts("text")
    assert all("label" not in json.loads(line) for line in (data_path / "test.jsonl").read_text().splitlines())
    assert np.load(data_path / "test_labels.npy").tolist() == data_set.test.labels.tolist()


def test_other_rows_give_another_key():
    keys = {make_data_set(data(rows(20, start)), DrawOptions()).key for start in (100, 200)}
    assert len(keys) == 2


def test_a_label_without_labelled_rows_is_an_error():
    lacking = rows().select(np.flatnonzero(rows().labels == 0))
    with pytest.raises(DataError, match="no labelled rows with the label 'b'"):
        make_data_set(BenchData("d", load_task(TASK), lacking, rows(9, 100), None), DrawOptions())


def test_an_error_says_that_all_rows_of_a_label_are_test_rows():
    columns = {"text": [*(f"row {number}" for number in range(9)), *["same"] * 6], "label": [*"a" * 9, *"b" * 6]}
    pool = make_rows(columns, load_task(TASK), "rows")
    with pytest.raises(DataError, match="label 'b': all of them have the text of a test row"):
        make_data_set(BenchData("d", load_task(TASK), pool, None, None), DrawOptions())


def test_test_rows_that_are_the_labelled_rows_are_named_as_the_reason():
    with pytest.raises(DataError, match=r"'a' and 'b': all of them have the text of a test row; .*--test"):
        make_data_set(data(rows()), DrawOptions())


def test_a_label_without_rows_is_an_error_that_says_what_to_leave_out():
    lacking = rows().select(np.flatnonzero(rows().labels == 0))
    with pytest.raises(DataError, match="leave the label out of --labels"):
        make_data_set(BenchData("d", load_task(TASK), lacking, None, None), DrawOptions())


def test_labels_with_a_row_each_leave_no_test_rows():
    single = rows().select([0, 1])
    with pytest.raises(DataError, match="no test rows: each label has a single row; name test rows with --test"):
        make_data_set(BenchData("d", load_task(TASK), single, None, None), DrawOptions())


def test_data_sets_with_names_that_look_alike_in_paths_are_two():
    keys = {make_data_set(BenchData(name, load_task(TASK), rows(), None, None), DrawOptions()).key for name in NAMES}
    assert len(keys) == len(NAMES)


def test_rows_with_the_text_of_a_held_out_row_are_counted():
    doubled = BenchData("d", load_task(TASK), concat_rows([rows(), rows()], load_task(TASK), "twice"), None, None)
    data_set = make_data_set(doubled, DrawOptions())
    left_out = 120 - 36 - len(data_set.data.pool)
    assert left_out
    assert data_set.notes[-1] == f"{left_out} other rows have the text of one of these and were left out."


def test_a_label_without_test_rows_is_noted():
    test = rows(20, 100).select(np.flatnonzero(rows(20, 100).labels == 0))
    assert "No test row has the label 'b'" in make_data_set(data(test), DrawOptions()).notes[-1]


def test_fewer_rows_than_asked_for_are_noted():
    data_set = make_data_set(data(rows(9, 100)), DrawOptions())  # 40 rows of a, 20 of b
    assert not make_draw(data_set, 20, 0).notes
    assert make_draw(data_set, 30, 0).notes == ("There are fewer labelled rows of 'b' 20.",)
    assert make_draw(data_set, 50, 0).notes == (
        "There are fewer labelled rows of 'a' 40, 'b' 20.",
        "All labelled rows are used, so the draws differ in their seed only.",
        "There are no unlabelled rows.",
    )


def test_another_seed_or_number_of_unlabelled_rows_gives_another_key():
    choices = DrawOptions(), DrawOptions(seed=1), DrawOptions(unlabeled_rows=7)
    assert len({make_data_set(data(rows(9, 100)), options).key for options in choices}) == 3


def test_options_for_data_sets_are_in_the_same_order():
    sources = pair_sources(["a.csv", "My data=b.csv"], ["-", "b.toml"], [], ["u.csv", "-"])
    assert sources == [
        DataSource("a.csv", None, None, "u.csv"),
        DataSource("b.csv", "b.toml", None, None, "My data"),
    ]
    with pytest.raises(DataError, match="2 --data and 1 --test"):
        pair_sources(["a.csv", "b.csv"], [], ["t.csv"], [])


def test_a_name_may_have_any_characters_before_a_file_that_exists(tmp_path):
    (tmp_path / "b.csv").write_text("label,text\na,one\n")
    named = pair_sources([f"R & D={tmp_path}/b.csv", "R & D=missing.csv"], [], [], [])
    assert [(source.name, source.data) for source in named] == [
        ("R & D", f"{tmp_path}/b.csv"),
        (None, "R & D=missing.csv"),
    ]


def test_rules_and_teachers_are_left_out_of_the_task():
    task = load_task(TASK | {"rules": [{"label": "a", "any": ["x"]}]})
    assert not plain_task(task).rules


def test_several_labels_a_row_are_refused(tmp_path):
    load_task(TASK | {"multilabel": True, "metric": "micro-f1"}).save(tmp_path / "task.toml")
    (tmp_path / "rows.csv").write_text("label,text\na|b,one\nb,two\n")
    with pytest.raises(TaskError, match="one label a row"):
        load_data(DataSource(str(tmp_path / "rows.csv"), str(tmp_path / "task.toml")))


def test_a_folder_with_train_and_test_files_is_a_data_set(tmp_path):
    (tmp_path / "train.csv").write_text("label,text\n" + "".join(f"{'ab'[n % 2]},row {n}\n" for n in range(8)))
    (tmp_path / "test.csv").write_text("label,text\na,row 0\nb,other\n")
    loaded = load_data(DataSource(str(tmp_path)))
    assert loaded.task.labels == ["a", "b"]
    assert len(loaded.test) == 2
    data_set = make_data_set(loaded, DrawOptions())
    assert len(data_set.data.pool) == 7  # a row with the text of a test row is left out
    assert any("text of a test row" in note for note in data_set.notes)


def test_data_without_labels_is_refused_with_the_command_that_takes_them(tmp_path):
    (tmp_path / "rows.csv").write_text("text\none\nanother row\n")
    with pytest.raises(DataError, match=r"clozify init .*rows.csv --output task.toml"):
        load_data(DataSource(str(tmp_path / "rows.csv")))
