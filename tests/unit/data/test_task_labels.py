import json

import pytest

from clozify.data.task_labels import load_task, read_labels
from clozify.errors import DataError, TaskError

CONTENT = {"fields": ["text"], "patterns": ["{text} This is about {mask}."]}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("topic,text\nlost_card,x\narrival,y\n,z\narrival,v\n-1,w\n", encoding="utf-8")
    return path


def test_labels_of_a_data_file_are_sorted(data):
    assert read_labels(data, "topic") == ["arrival", "lost_card"]


def test_labels_that_are_numbers_are_sorted_by_value(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"label": n, "text": "x"}) + "\n" for n in (10, 9, 1)), encoding="utf-8")
    assert read_labels(path) == ["1", "9", "10"]


def test_labels_of_a_text_file_keep_their_order(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("lost_card\n\n card arrival \n", encoding="utf-8")
    assert read_labels(path) == ["lost_card", "card arrival"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", "a\nb\na\n", "has the label 'a' twice"),
        ("l.txt", "\n\n", "has no labels; write one a line"),
        ("l.csv", "labels,text\na,x\n", "lacks the column 'label' (did you mean 'labels'?)"),
        ("l.csv", "label,text\n,x\n", "has no labels; name a file with labelled rows"),
    ],
)
def test_a_file_without_usable_labels_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_labels(tmp_path / name)
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_a_task_without_labels_takes_those_of_a_file(data):
    task = load_task(CONTENT, data, {"label": "topic"})
    assert task.verbalizers[0].words == {"arrival": ("arrival",), "lost_card": ("lost card",)}


def test_labels_of_the_task_keep_their_words_and_come_first(data):
    task = load_task({**CONTENT, "label": "topic", "labels": {"lost_card": "stolen"}}, data)
    assert task.verbalizers[0].words == {"lost_card": ("stolen",), "arrival": ("arrival",)}


def test_every_verbalizer_gets_the_labels_of_a_file(data):
    verbalizers = [{"name": name, "words": {"lost_card": name}} for name in ("v1", "v2")]
    task = load_task({**CONTENT, "label": "topic", "verbalizers": verbalizers}, data)
    assert [verbalizer.words["arrival"] for verbalizer in task.verbalizers] == [("arrival",)] * 2


def test_a_task_without_labels_names_the_ways_to_give_them():
    with pytest.raises(TaskError, match="--labels-from"):
        load_task(CONTENT)


def test_names_that_read_alike_are_told(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("card_arrival\nCardArrival\n", encoding="utf-8")
    with pytest.raises(TaskError, match="'card_arrival' and 'CardArrival' the same word 'card arrival'"):
        load_task(CONTENT, path)
