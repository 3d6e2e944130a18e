"""Occlusion against scorers whose words have known weights, and against one row at a time."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from clozify.config.task import parse_task
from clozify.data.in_memory import make_rows
from clozify.methods.explain import (
    Part,
    group_parts,
    label_log_odds,
    leave_out,
    occlude_rows,
    occlusion_effects,
    split_words,
)

TASK = parse_task("""
name = "stars"
fields = ["title", "text"]
optional = ["title"]
patterns = ["It was {mask}. {title} {text}"]
[labels]
1 = "bad"
2 = "okay"
3 = "great"
""")
WEIGHTS = {"good": [0.0, 0.0, 2.0], "bad": [1.5, 0.0, 0.0], "fine": [0.0, 1.0, 0.7], "game": [0.1, 0.1, 0.1]}


def additive_scores(rows):
    """The sum of the words' weights, as a linear model on a bag of words has it: (rows, labels)."""
    texts = zip(rows.texts("title"), rows.texts("text"), strict=True)
    return np.array([np.sum([WEIGHTS.get(w, [0.0] * 3) for w in (a + " " + b).split()], axis=0) for a, b in texts])


def made(*texts, titles=None):
    return make_rows({"title": list(titles or [""] * len(texts)), "text": list(texts)}, TASK, "test")


def words_of(occlusion):
    return [occlusion.texts[part.field][part.start : part.end] for part in occlusion.parts]


def test_against_the_runner_up_an_additive_scorers_word_has_exactly_its_weight():
    rows = made("a good game fine", "bad bad game")
    occlusions = occlude_rows(rows, lambda variants: softmax(additive_scores(variants), axis=1))
    effects = occlusions[0].effects(label=2)
    assert effects.runner_up == 1
    expected = [WEIGHTS.get(word, [0.0] * 3)[2] - WEIGHTS.get(word, [0.0] * 3)[1] for word in words_of(occlusions[0])]
    assert effects.against_runner_up == pytest.approx(expected)
    assert occlusions[1].effects(label=0).against_runner_up == pytest.approx([1.5, 1.5, 0.0])


def test_with_several_labels_a_row_the_log_odds_of_an_additive_scorer_change_by_exactly_the_weight():
    (occlusion,) = occlude_rows(made("a good bad game fine"), lambda variants: expit(additive_scores(variants)))
    for label in range(3):
        effects = occlusion.effects(label, multilabel=True)
        expected = [WEIGHTS.get(word, [0.0] * 3)[label] for word in words_of(occlusion)]
        assert effects.log_odds == pytest.approx(expected)
        assert effects.runner_up is None
        assert effects.against_runner_up is None


def test_effects_are_those_of_one_row_and_one_word_at_a_time():
    rng = np.random.default_rng(0)
    table = {}

    def random_probabilities(rows):
        keys = list(zip(rows.texts("title"), rows.texts("text"), strict=True))
        return np.array([table.setdefault(key, softmax(rng.normal(size=3))) for key in keys])

    rows = made("one two  three", "", "four", titles=["zero one", "five", ""])
    occlusions = occlude_rows(rows, random_probabilities)
    for occlusion, title, text in zip(occlusions, rows.texts("title"), rows.texts("text"), strict=True):
        words, effects = [], []
        whole = table[title, text]
        for name, of_field in (("title", title), ("text", text)):
            for index, word in enumerate(of_field.split()):
                pieces = of_field.split(" ")
                pieces.remove(word)
                remaining = " ".join(pieces).strip() if len(of_field.split()) == len(of_field.split(" ")) else None
                if remaining is None:  # two spaces: the word goes with the spaces after it
                    remaining = {0: "two  three", 1: "one three", 2: "one two"}[index]
                without = table[(remaining, text) if name == "title" else (title, remaining)]
                q, r = whole.max(), without[whole.argmax()]
                words.append(word)
                effects.append(np.log(q / (1 - q)) - np.log(r / (1 - r)))
        assert words_of(occlusion) == words
        assert occlusion.effects(int(whole.argmax())).log_odds == pytest.approx(effects)
        assert occlusion.probabilities[0] == pytest.approx(whole)


def test_all_variants_of_a_row_are_scored_in_one_call():
    calls = []

    def probabilities(rows):
        calls.append(len(rows))
        return np.full((len(rows), 3), 1 / 3)

    occlude_rows(made("a b c", "d e"), probabilities)
    assert calls == [1 + 3 + 1 + 2]


def test_log_odds_of_certain_labels_are_finite():
    probabilities = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert np.isfinite(label_log_odds(probabilities, 0)).all()
    assert np.isfinite(label_log_odds(probabilities, 0, multilabel=True)).all()
    assert np.isfinite(occlusion_effects(probabilities, 0).against_runner_up).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's half-price, (really)!", ["It's", "half-price,", "(really)!"]),
        ("", []),
        ("  \u00a0 ", []),
        ("好游戏 game", ["好", "游", "戏", "game"]),
        ("ที่นี่ดี", ["ที่", "นี่", "ดี"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("👍🏽 top", ["👍🏽", "top"]),
    ],
)
def test_words_are_those_that_the_text_separates(text, words):
    assert [text[part.start : part.end] for part in split_words(text)] == words


def test_a_word_that_begins_after_what_is_read_is_marked():
    assert [part.read for part in split_words("one two three", read=5)] == [True, True, False]
    assert [part.read for part in split_words("one two", read=0)] == [False, False]


def test_words_that_are_not_read_are_neither_scored_nor_left_out():
    scored = []

    def probabilities(rows):
        scored.extend(rows.texts("text"))
        return np.full((len(rows), 3), 1 / 3)

    read = {"title": np.array([0]), "text": np.array([9])}
    (occlusion,) = occlude_rows(made("good game of all"), probabilities, read)
    assert scored == ["good game", "game", "good"]
    assert [part.read for part in occlusion.parts] == [True, True, False, False]
    assert not occlusion.grouped


def test_parts_of_long_rows_have_several_words_of_one_field():
    parts = [Part("a", 2 * n, 2 * n + 1) for n in range(7)] + [Part("b", 0, 1), Part("b", 2, 3)]
    assert group_parts(parts, 9) == parts
    grouped = group_parts(parts, 4)
    assert grouped == [Part("a", 0, 5), Part("a", 6, 11), Part("a", 12, 13), Part("b", 0, 3)]
    assert group_parts(parts, 1) == [Part("a", 0, 13), Part("b", 0, 3)]  # a part has one field
    for most in range(2, 12):
        assert len(group_parts(parts, most)) <= most
    (occlusion,) = occlude_rows(
        made("one two three four five"), lambda rows: np.full((len(rows), 3), 1 / 3), max_parts=2
    )
    assert words_of(occlusion) == ["one two three four five"]
    assert occlusion.grouped


def test_of_long_rows_the_words_of_the_strongest_parts_are_left_out_alone():
    """Sixteen words, ten scores: parts of four words, and the four words of the part with 'good'."""
    text = " ".join(f"w{n}" for n in range(9)) + " good " + " ".join(f"w{n}" for n in range(10, 16))
    calls = []

    def probabilities(rows):
        calls.append(len(rows))
        return softmax(additive_scores(rows), axis=1)

    (occlusion,) = occlude_rows(made(text), probabilities, max_parts=10)
    assert calls == [1 + 4, 1 + 4]
    assert words_of(occlusion) == ["w0 w1 w2 w3", "w4 w5 w6 w7", "w8", "good", "w10", "w11", "w12 w13 w14 w15"]
    assert occlusion.effects(2).against_runner_up == pytest.approx([0, 0, 0, 2.0, 0, 0, 0])
    assert occlusion.grouped
    (other,) = occlude_rows(made(text + " bad"), probabilities, labels=[0], max_parts=10)
    assert "bad" in words_of(other)


@pytest.mark.parametrize(
    ("text", "word", "rest"),
    [
        ("one two three", "two", "one three"),
        ("one two", "one", "two"),
        ("one two", "two", "one"),
        ("one", "one", ""),
        ("好游戏", "游", "好戏"),
    ],
)
def test_leaving_a_word_out_leaves_single_spaces(text, word, rest):
    start = text.index(word)
    assert leave_out(text, start, start + len(word)) == rest
