import pytest
from datasets import Dataset

from clozify.config.task import load_task
from clozify.data.rows import read_rows
from clozify.errors import DataError, TaskError
from clozify.inference.init_task import PATTERNS, fill_patterns, init_task

REQUESTS = [("card_arrival", "where is my card"), ("lost_card", "i lost my card"), ("card_arrival", "is it sent yet")]


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "bank" / "labeled.csv", REQUESTS * 2)


def write(path, rows, header="label,text\n"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(header + "".join(f'"{label}","{text}"\n' for label, text in rows), encoding="utf-8")
    return path


def test_the_file_reads_back_as_the_task_and_reads_the_data(data, tmp_path):
    result = init_task(data, tmp_path / "task.toml")
    task = load_task(tmp_path / "task.toml")
    assert task == result.task
    assert task.name == "bank"
    assert task.verbalizers[0].words == {"card_arrival": ("card arrival",), "lost_card": ("lost card",)}
    assert result.kind == "requests"
    assert read_rows(data, task).labels.tolist() == [0, 1, 0] * 2


def test_a_file_is_not_replaced_without_force(data, tmp_path):
    path = tmp_path / "task.toml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(TaskError, match="exists already; name another file with --output, or replace it with --force"):
        init_task(data, path)
    assert path.read_text() == "mine"
    init_task(data, path, force=True)
    assert path.read_text() != "mine"


def test_the_comment_on_words_is_valid_toml(data, tmp_path):
    text = init_task(data).toml
    (tmp_path / "x.toml").write_text(text.replace("[words]\n# ", "[words]\n"), encoding="utf-8")
    assert load_task(tmp_path / "x.toml").verbalizers[0].words["card_arrival"] == ("card arrival", "another word")


def test_odd_names_of_labels_and_columns_survive(tmp_path):
    labels = ['say "hi"', "back\\slash", "é and ü", "a # b", "1"]
    rows = [{"the label": label, "my text": f"some words {i}"} for i in range(3) for label in labels]
    Dataset.from_list(rows).to_json(tmp_path / "rows.jsonl")
    task = init_task(tmp_path / "rows.jsonl", label="the label").task
    assert sorted(task.labels) == sorted(labels)
    assert task.fields == ["my text"]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([("positive", "a fine film."), ("Negative", "a bad film.")] * 2, "opinions"),
        ([("sport", "who won?"), ("war", "who lost?")] * 2, "questions"),
        ([("sport", "Madrid won the match."), ("war", "An army lost a fight.")] * 2, "texts"),
        (REQUESTS * 2, "requests"),
    ],
)
def test_patterns_fit_the_kind_of_data(tmp_path, rows, kind):
    result = init_task(write(tmp_path / "rows.csv", rows))
    assert result.kind == kind
    assert len(result.task.patterns) == len(PATTERNS[kind])


def test_opinions_have_words_that_fit_the_patterns(tmp_path):
    result = init_task(write(tmp_path / "r.csv", [("positive", "a fine film."), ("Negative", "a bad film.")] * 2))
    assert result.task.verbalizers[0].words == {"Negative": ("terrible",), "positive": ("great",)}


def test_pairs_of_texts_are_recognised(tmp_path):
    rows = [{"premise": "it rains now", "hypothesis": "it is wet", "label": label} for label in "yn" * 3]
    Dataset.from_list(rows).to_json(tmp_path / "rows.jsonl")
    result = init_task(tmp_path / "rows.jsonl")
    assert result.task.patterns[0] == '"{premise:no_final_punctuation}"? || {mask}, "{hypothesis}"'


def test_a_full_stop_ends_texts_that_have_none(data):
    from clozify.data.columns import Column

    bare, finished = Column("text", ["wake me up"]), Column("text", ["Wake me up!"])
    assert "{text}. This is about {mask}." in fill_patterns("texts", [bare])
    assert "{text} This is about {mask}." in fill_patterns("texts", [finished])


def test_labels_that_are_numbers_are_a_table_to_fill_in(tmp_path):
    result = init_task(write(tmp_path / "rows.csv", [("10", "a b c"), ("2", "d e f")] * 3))
    assert result.task.labels == ["2", "10"]
    assert "[labels]" in result.toml
    assert "numbers" in result.notes[0]


def test_data_without_labels_takes_them_from_the_user(tmp_path):
    data = write(tmp_path / "rows.csv", [("1 x", "some words"), ("2 y", "other words")], header="nr,text\n")
    with pytest.raises(DataError, match="--labels-from FILE"):
        init_task(data)
    result = init_task(data, labels=["a", "b"])
    assert (result.task.labels, result.label_column, result.task.label) == (["a", "b"], None, "label")
    assert "--method ipet --unlabeled" in result.commands[-1]
    (tmp_path / "labels.txt").write_text("b\na\n", encoding="utf-8")
    assert init_task(data, labels_from=tmp_path / "labels.txt").task.labels == ["b", "a"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "a", "b"], "'a' stands twice"),
        (["a", ""], "Name 2 of the list 'labels' is empty"),
        (["a"], "two or more"),
    ],
)
def test_bad_labels_are_a_sentence_and_no_file(data, tmp_path, labels, message):
    with pytest.raises((TaskError, DataError), match=message):
        init_task(data, tmp_path / "task.toml", labels=labels)
    assert not (tmp_path / "task.toml").exists()


def test_labels_of_the_data_that_the_user_left_out_are_named(data):
    assert "'lost_card'" in init_task(data, labels=["card_arrival", "other"]).notes[0]


def test_a_file_without_header_gets_columns(tmp_path):
    rows = [("1", "Wall Street bears claw back into it."), ("2", "An army of many men lost a war.")] * 3
    data = write(tmp_path / "rows.csv", rows, header="")
    result = init_task(data, tmp_path / "task.toml")
    assert (result.task.columns, result.task.fields) == (["label", "text"], ["text"])
    assert read_rows(data, load_task(tmp_path / "task.toml")).labels.tolist() == [0, 1] * 3
