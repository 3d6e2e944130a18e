"""Words found for a task's labels, with tiny models: what is written, what may be found, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest

from clozify.config.task import Verbalizer, load_task
from clozify.data.rows import read_rows
from clozify.errors import DataError, TaskError
from clozify.methods.score import score_rows
from clozify.methods.verbalizer_search import search_verbalizer
from clozify.models.task_prompts import compile_task
from clozify.pipeline.find_words import default_output, find_words

TASK = """
name = "stars"
fields = ["text"]
patterns = ["It was {mask}. {text}", "{mask}: {text}"]
[labels]
1 = "bad"
2 = "okay"
3 = "great"
"""
QUICK = ["words.k=10", "words.i_max=2", "words.m=3"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    texts = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
    frame = pd.DataFrame({"label": [1, 2, 3] * 4, "text": [f"{texts[n % 6]} {n}" for n in range(12)]})
    frame.to_csv("labeled.csv", index=False)
    return tmp_path


@pytest.fixture
def find(files, tiny):
    def search(model="bert", settings=(), **more):
        inputs = {"task": "task.toml", "labeled": "labeled.csv", "model": tiny(model), "settings": [*QUICK, *settings]}
        return find_words(**(inputs | more))

    return search


@pytest.mark.parametrize("model", ["bert", "roberta", "xlm-roberta"])
def test_words_are_whole_words_that_every_pattern_reads_as_one_token(model, find, tiny):
    """RoBERTa has one token for a word at the start and another behind a space; a word piece is no word."""
    task, report = find(model)
    compile_task(tiny(model), task)  # raises for a word that is split
    assert report.candidates > 20
    tokenizer = tiny(model).tokenizer
    for words in task.verbalizers[0].words.values():
        assert 1 <= len(words) <= 3
        assert all(
            sum(map(str.isalpha, word)) >= 2 and len(tokenizer.encode_after_slot(" ", word)) == 1 for word in words
        )


def test_the_search_gets_each_row_s_own_scores_and_each_label_s_own_start(find, tiny, monkeypatch):
    """Batches are sorted by length, and a word has another id in each pattern: mixed up, words would still be found."""
    from clozify.pipeline import find_words as findwords

    got = []
    monkeypatch.setattr(findwords, "search_verbalizer", lambda *a: got.append(a) or search_verbalizer(*a))
    find("roberta", seed_words={"2": ["good", "okay"]}, allowed_words=["good", "great", "bad"])
    scores, labels, start, *_ = got[0]
    model, rows = tiny("roberta"), read_rows("labeled.csv", load_task("task.toml"))
    assert start[1].tolist() == [0.5, 0.5, 0, 0]
    assert start[0].tolist() == [0.25] * 4
    assert labels.tolist() == [0, 1, 2] * 4
    for words in (["good"], ["okay"]):
        verbalizer = Verbalizer(words={"1": ("bad",), "2": tuple(words), "3": ("great",)})
        task = rows.task.model_copy(update={"verbalizers": [verbalizer]})
        ((_, expected),) = score_rows(model, compile_task(model, task), rows.with_task(task))
        assert np.allclose(scores[:, :, ["good", "okay"].index(words[0])], expected[:, :, 1], atol=1e-5)


def test_the_task_is_written_with_its_words_and_all_else_as_it_was(find, files):
    task, report = find(output="found.toml")
    written, before = load_task("found.toml"), load_task("task.toml")
    assert written == task
    assert written.model_copy(update={"verbalizers": before.verbalizers}) == before
    assert (files / "task.toml").read_text() == TASK
    assert not list(files.glob(".*"))
    assert json.loads(json.dumps(report.model_dump())) == report.model_dump()
    assert {label: [w.word for w in words] for label, words in report.labels.items()} == {
        label: list(words) for label, words in task.verbalizers[0].words.items()
    }


def test_the_same_seed_finds_the_same_words(find):
    first, again = find()[1], find()[1]
    assert first.labels == again.labels
    assert find(settings=["seed=7"])[1].labels != first.labels


def test_candidates_are_the_most_frequent_words_of_the_unlabelled_data(find, files):
    """Rare words that happen to fit a handful of rows would crowd out those that people use."""
    (files / "unlabeled.csv").write_text("text\n" + "good good good right right wrong\n" * 5 + "it was all\n")
    task, report = find(unlabeled="unlabeled.csv", settings=["words.candidates=3"])
    result = {word for words in task.verbalizers[0].words.values() for word in words}
    assert report.candidates == 3
    assert result <= {"good", "right", "wrong"}
    assert not any("vocabulary" in warning for warning in report.warnings)


def test_it_is_said_where_candidates_come_from_without_unlabelled_data(find):
    assert any("since there are no unlabelled ones" in warning for warning in find()[1].warnings)


def test_only_allowed_words_are_found_and_split_ones_are_named(find, files):
    (files / "words.txt").write_text("terrible good\ngreat Good\nxylophonists wrong\n")
    task, report = find(allowed_words="words.txt", settings=["words.m=2"])
    result = {word for words in task.verbalizers[0].words.values() for word in words}
    assert result <= {"terrible", "good", "great", "wrong"}
    assert report.candidates == 4  # this model reads Good as good
    assert any("'xylophonists'" in warning for warning in report.warnings)


def test_seeds_come_first_and_forbidden_words_are_never_found(find):
    first = find()[0].verbalizers[0].words["2"]
    words = find(seed_words={"1": ["Terrible", "bad"]}, forbidden_words=[first[0].upper()])[0].verbalizers[0].words
    assert words["1"][:2] == ("Terrible", "bad")
    assert first[0] not in words["2"]
    assert "terrible" not in words["2"] + words["3"]


def test_a_label_without_rows_keeps_its_words(find, files):
    (files / "labeled.csv").write_text("label,text\n1,a slow tool\n2,a fine game\n1,mail\n")
    task, report = find()
    assert task.verbalizers[0].words["3"] == ("great",)
    assert report.labels["3"][0].score is None
    assert any("No labelled row has the label '3'" in warning for warning in report.warnings)


def test_words_of_several_tokens_stay_first_and_take_no_part_in_the_search(find, files):
    (files / "task.toml").write_text(TASK.replace('"great"', '"a great xylophonist"'))
    (files / "labeled.csv").write_text("label,text\n1,a slow tool\n2,a fine game\n1,mail\n")
    task, report = find(seed_words={"1": ["not so good", "bad"]})
    words = task.verbalizers[0].words
    assert words["1"][:2] == ("not so good", "bad")
    assert words["3"] == ("a great xylophonist",)
    assert report.labels["1"][0].score is None
    assert report.labels["1"][0].is_seed


def test_weak_words_are_named_and_words_of_a_single_row_are_not_tested(find, files):
    (files / "labeled.csv").write_text("label,text\n" + "1,a slow tool\n2,a slow tool\n" * 4 + "3,mail\n")
    lines = []
    report = find(log=lines.append)[1]
    assert set(report.separation) == {"1", "2"}
    assert any("2 of 3 labels are weak ('1' and '2')" in warning for warning in report.warnings)
    assert any("'3' could not be tested" in warning for warning in report.warnings)
    assert len(lines) == 1
    assert "words for 3 labels, 9 rows in 2 patterns, 2 rounds: about a minute" in lines[0]


def test_several_verbalizers_give_way_to_the_one_found(find, files):
    several = TASK.split("[labels]")[0] + "".join(
        f'[[verbalizers]]\nname = "{name}"\nwords = {{ 1 = "bad", 2 = "okay", 3 = "{word}" }}\n'
        for name, word in (("a", "great"), ("b", "good"))
    )
    (files / "task.toml").write_text(several)
    task, _ = find(output="found.toml")
    assert len(task.verbalizers) == 1
    assert load_task("found.toml") == task


def test_the_default_place_is_never_a_file_that_is_there(find, files):
    """A list of words that someone has picked from by hand must not be lost to a second search."""
    task = load_task("task.toml")
    assert str(default_output(task)) == "stars-words.toml"
    find(output=default_output(task))
    with pytest.raises(TaskError, match="'stars-words.toml' exists"):
        default_output(task)


BAD = {
    "one label": ({"labeled": "one.csv"}, DataError, "have the label '1'; words are found by comparing"),
    "unknown label": ({"seed_words": {"1 ": ["bad"]}}, TaskError, "'1 ', which is no label"),
    "seed forbidden": ({"seed_words": {"1": ["bad"]}, "forbidden_words": ["bad"]}, TaskError, "'bad' is forbidden"),
    "nothing allowed": ({"allowed_words": ["xylophonists"]}, TaskError, "None of the allowed words can be taken"),
    "too little allowed": ({"allowed_words": ["good", "bad"], "settings": ["words.m=1"]}, TaskError, "too few words"),
    "no file of words": ({"allowed_words": "nope.txt"}, DataError, "'nope.txt' cannot be read"),
    "output not a task": ({"output": "found.txt"}, TaskError, "ends in '.toml'"),
    "no output folder": ({"output": "no/found.toml"}, TaskError, "folder 'no' does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_said_in_a_sentence_and_nothing_is_written(case, find, files):
    changes, kind, part = BAD[case]
    (files / "one.csv").write_text("label,text\n1,a slow tool\n1,mail\n")
    before = set(files.iterdir())
    with pytest.raises(kind) as caught:
        find(**changes)
    assert part in str(caught.value)
    assert set(files.iterdir()) == before
