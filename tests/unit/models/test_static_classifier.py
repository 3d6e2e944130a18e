import json
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from clozify.config.task import load_task
from clozify.errors import ModelError
from clozify.models.hashed_words import NO_FEATURE, hash_texts
from clozify.models.static_classifier import (
    MODEL_FILE,
    SHIFT,
    FeatureTable,
    StaticClassifier,
    StaticWeights,
    is_static,
    load_static_classifier,
)


@pytest.fixture
def task():
    return load_task(
        {
            "fields": ["title", "body"],
            "patterns": ["{title} {mask} {body}"],
            "labels": {"a": "bad", "b": "good", "c": "okay"},
        }
    )


def keys_of(text: str) -> list[int]:
    return [key for features in hash_texts([text]) for key in features.keys.tolist() if key != NO_FEATURE]


@pytest.fixture
def classifier(task):
    rng = np.random.default_rng(0)
    keys = np.array(sorted(set(keys_of("one two three four five six"))), dtype=np.uint64)
    vectors = rng.normal(size=(len(keys), 3)).astype(np.float32)
    weights = StaticWeights(keys, vectors, rng.uniform(1, 9, len(keys)).astype(np.float32), np.ones(3, np.float32))
    return StaticClassifier(weights, task)


def naive_scores(classifier: StaticClassifier, *fields: str) -> np.ndarray:
    weights = classifier.weights
    index = {key: position for position, key in enumerate(weights.keys.tolist())}
    counts = Counter(index[key] for field in fields for key in keys_of(field) if key in index)
    total = sum((count * weights.vectors[i] for i, count in counts.items()), np.zeros(3))
    norm = sum(count * weights.weights[i] ** 2 for i, count in counts.items()) ** 0.5
    return (total / norm if norm else total) + weights.bias


TEXTS = {
    "title": ["one two", "", "one one one", "nothing known", "six"] * 80,
    "body": ["three four five", "", "two unknown", "here", "five six one two"] * 80,
}


def test_scores_are_the_sums_of_known_features_by_their_norm(classifier):
    scores = classifier.score_texts(TEXTS)
    expected = [naive_scores(classifier, *row) for row in zip(*TEXTS.values(), strict=True)]
    assert scores == pytest.approx(np.array(expected), abs=1e-5)
    assert scores.dtype == np.float32


def test_a_row_without_known_features_gets_the_bias(classifier):
    assert classifier.score_texts({"title": ["", "unseen"], "body": ["", ""]}).tolist() == [[1, 1, 1]] * 2


def test_a_classifier_without_features_answers_the_bias(task):
    empty = StaticWeights(np.zeros(0, np.uint64), np.zeros((0, 3), np.float32), np.zeros(0, np.float32), np.arange(3))
    assert StaticClassifier(empty, task).score_texts({"title": ["a b"], "body": ["c"]}).tolist() == [[0, 1, 2]]


def test_a_key_in_the_slot_of_another_is_unknown():
    key = np.uint64(0x1234567890ABCDEF)
    other = key + np.uint64(1)
    assert key >> SHIFT == other >> SHIFT
    assert FeatureTable(np.array([key])).find(np.array([key, other, 0], dtype=np.uint64)).tolist() == [0, 1, 1]


def test_a_saved_classifier_scores_as_before_up_to_float16(classifier, tmp_path):
    classifier.save(tmp_path)
    assert is_static(tmp_path)
    loaded = load_static_classifier(tmp_path)
    assert loaded.task == classifier.task
    assert loaded.score_texts(TEXTS) == pytest.approx(classifier.score_texts(TEXTS), abs=5e-3)


def test_a_temperature_divides_the_scores(classifier):
    divided = StaticClassifier(classifier.weights.divided_by(2.5), classifier.task)
    assert divided.score_texts(TEXTS) == pytest.approx(classifier.score_texts(TEXTS) / 2.5, abs=1e-5)


def remove_file(folder):
    (folder / MODEL_FILE).unlink()


def cut_off(folder):
    (folder / MODEL_FILE).write_bytes((folder / MODEL_FILE).read_bytes()[:50])


def drop_vectors(folder):
    arrays = load_file(folder / MODEL_FILE)
    save_file({name: array for name, array in arrays.items() if name != "vectors"}, folder / MODEL_FILE)


def shorten_keys(folder):
    arrays = load_file(folder / MODEL_FILE)
    save_file(arrays | {"keys": arrays["keys"][1:]}, folder / MODEL_FILE)


@pytest.mark.parametrize("damage", [remove_file, cut_off, drop_vectors, shorten_keys])
def test_a_damaged_file_is_named(classifier, tmp_path, damage):
    classifier.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=f"{MODEL_FILE}.*damaged.*train again"):
        load_static_classifier(tmp_path)


def test_labels_that_are_not_the_tasks_are_an_error(classifier, tmp_path):
    classifier.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "b", "1": "a", "2": "c"}}))
    with pytest.raises(ModelError, match="do not belong together"):
        load_static_classifier(tmp_path)
