"""What ships with the package keeps its promises: every task file, the sample data, the built-in model."""

import gzip

import numpy as np
import pandas as pd
import pytest

from clozify.config.task import load_task, parse_task, shipped_tasks
from clozify.data.readers import SAMPLE, TAGS_SAMPLE, open_data
from clozify.data.rows import read_rows
from clozify.models.builtin import FOLDERS
from clozify.models.task_prompts import compile_task

PAIRS = {
    "agnews": 6,
    "mnli": 4,
    "xstance": 6,
    "xstance-de": 4,
    "xstance-fr": 4,
    "yahoo": 6,
    "yelp-full": 4,
    "debian": 6,
}
ENGLISH = ["agnews", "debian", "mnli", "yahoo", "yelp-full"]


@pytest.mark.parametrize("name", shipped_tasks())
def test_a_shipped_task_is_called_as_its_file_and_is_written_back_without_loss(name):
    task = load_task(name)
    assert task.name == name
    assert task.description.endswith("?")
    assert len(task.pairs) == PAIRS[name]
    assert parse_task(task.to_toml()) == task


@pytest.mark.parametrize("name", shipped_tasks())
def test_a_shipped_task_has_plain_quotes_and_dashes(name):
    """Typeset characters of the paper would be tokens that the models rarely saw."""
    assert all(ord(sign) < 128 for pattern in load_task(name).patterns for sign in pattern)


@pytest.mark.parametrize("name", ENGLISH)
def test_the_built_in_model_can_be_asked_every_english_task(name, builtin):
    assert len(compile_task(builtin, load_task(name)).patterns) == len(load_task(name).patterns)


def test_mnli_words_follow_the_meaning():
    """With the paper's numbers taken literally, what is entailed would be 'Wrong'."""
    v1, v2 = load_task("mnli").verbalizers
    assert (v1.words["entailment"], v1.words["contradiction"]) == (("Right",), ("Wrong",))
    assert (v2.words["entailment"], v2.words["contradiction"]) == (("Yes",), ("No",))


def test_x_stance_languages_have_their_own_words():
    names = {name: [v.name for v in load_task(name).verbalizers] for name in ("xstance-de", "xstance-fr", "xstance")}
    assert names == {"xstance-de": ["en", "de"], "xstance-fr": ["en", "fr"], "xstance": ["en", "de", "fr"]}


def read_sample(folder):
    paths = {name: folder / f"{name}.csv.gz" for name in ("labeled", "unlabeled", "test")}
    return {name: pd.read_csv(path, keep_default_na=False) for name, path in paths.items()}


def test_the_sample_is_large_enough_and_small_enough():
    sample = read_sample(SAMPLE)
    assert len(sample["labeled"]) >= 100
    assert len(sample["unlabeled"]) >= 4000
    assert len(sample["test"]) >= 1000
    assert sum(path.stat().st_size for path in SAMPLE.glob("*.gz")) <= 2_000_000
    assert "label" not in sample["unlabeled"].columns


def test_the_sample_with_many_labels_has_six_rows_of_each_and_is_small():
    sample = read_sample(TAGS_SAMPLE)
    counts = sample["labeled"]["label"].value_counts()
    assert len(counts) == 60
    assert (counts == 6).all()
    assert set(sample["test"]["label"]) == set(counts.index)
    assert len(sample["test"]) >= 900
    assert len(sample["unlabeled"]) >= 2000
    assert sum(path.stat().st_size for path in TAGS_SAMPLE.glob("*.gz")) <= 1_000_000
    assert open_data("builtin:tags-unlabeled").column_names == ["id", "source", "summary", "description"]


@pytest.mark.parametrize("folder", [SAMPLE, TAGS_SAMPLE])
def test_all_packages_of_one_source_are_in_one_split(folder):
    """Near copies on both sides would make test accuracy too good."""
    sample = read_sample(folder)
    sources = [set(frame["source"]) for frame in sample.values()]
    texts = [set(frame["description"]) for frame in sample.values()]
    for sets in (sources, texts):
        assert len(set.union(*sets)) == sum(map(len, sets))


def test_every_sample_row_has_text_and_a_known_label():
    task = load_task("debian")
    for name in ("labeled", "test"):
        rows = read_rows(f"builtin:{name}", task)
        assert (rows.labels >= 0).all()
        assert all(rows.texts("summary"))
    counts = np.bincount(read_rows("builtin:labeled", task).labels)
    assert len(counts) == len(task.labels) >= 8
    assert counts.min() == counts.max()


def test_sample_files_carry_no_time_stamp():
    """Collected again from the same lists, the files are the same to the byte."""
    for path in (*SAMPLE.glob("*.gz"), *TAGS_SAMPLE.glob("*.gz")):
        assert path.read_bytes()[4:8] == bytes(4)
        assert gzip.decompress(path.read_bytes())


def test_model_and_data_say_what_they_are():
    for folder in (*FOLDERS.values(), SAMPLE, TAGS_SAMPLE):
        text = (folder / "README.md").read_text().lower()
        assert "licence" in text or "license" in text


def test_the_data_files_of_the_package_leave_wheel_and_sdist_under_100_mb():
    package = SAMPLE.parents[1]
    assert sum(path.stat().st_size for path in package.rglob("*") if path.suffix not in (".py", ".pyc")) < 97_000_000
