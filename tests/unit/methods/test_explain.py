"""Occlusion against scorers whose words have known weights, and against one row at a time."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from clozify.config.task import parse_task
from clozify.data.in_memory import make_rows
from clozify.methods.explain import (
    Part,
    group_parts,
    keep_parts,
    label_log_odds,
    leave_out,
    occlude_rows,
    sample_parts,
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
    texts = [f"{title} {text}".split() for title, text in zip(rows.texts("title"), rows.texts("text"), strict=True)]
    return np.array([sum((np.array(WEIGHTS.get(word, [0.0] * 3)) for word in words), np.zeros(3)) for words in texts])


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
    """A model of random answers: every text that is compared has an answer of its own."""
    rng, table = np.random.default_rng(0), {}

    def answer(words):
        """To (field, word) pairs: the label's log-odds are looked up by the two texts."""
        return table[tuple(" ".join(word for of, word in words if of == field) for field in ("title", "text"))]

    def random_probabilities(rows):
        keys = list(zip(rows.texts("title"), rows.texts("text"), strict=True))
        return np.array([table.setdefault(key, softmax(rng.normal(size=3))) for key in keys])

    rows = made(
        "one two three", "", "four", " ".join(f"w{n}" for n in range(17)), titles=["zero one", "five", "", "a title"]
    )
    occlusions = occlude_rows(rows, random_probabilities)
    for occlusion, title, text in zip(occlusions, rows.texts("title"), rows.texts("text"), strict=True):
        words = [("title", word) for word in title.split()] + [("text", word) for word in text.split()]
        assert words_of(occlusion) == [word for _, word in words]
        assert occlusion.whole == pytest.approx(answer(words))
        label = int(answer(words).argmax())
        effects, samples = occlusion.effects(label), max(1, round(len(words) / 6))
        for index in range(len(words)):
            compared = []
            for others in (range(len(words)), range(index % samples, len(words), samples)):
                included = answer([words[other] for other in others])[label]
                without = answer([words[other] for other in others if other != index])[label]
                compared.append(np.log(included / (1 - included)) - np.log(without / (1 - without)))
            assert effects.left_out[index] == pytest.approx(compared[0])
            assert effects.left_out_of_sample[index] == pytest.approx(compared[1])
            assert effects.log_odds[index] == pytest.approx(np.mean(compared))


def test_all_variants_of_a_row_are_scored_in_one_call():
    calls = []

    def probabilities(rows):
        calls.append(len(rows))
        return np.full((len(rows), 3), 1 / 3)

    occlude_rows(made("a b c", "d e"), probabilities)
    assert calls == [(1 + 3 + 1 + 3) + (1 + 2 + 1 + 2)]  # the row, without each; its only sample, without each


def test_log_odds_of_certain_labels_are_finite():
    (occlusion,) = occlude_rows(made("one two"), lambda rows: np.eye(3)[np.arange(len(rows)) % 3])
    for multilabel in (False, True):
        assert np.isfinite(occlusion.effects(0, multilabel).log_odds).all()
    assert np.isfinite(occlusion.effects(0).against_runner_up).all()
    assert np.isfinite(label_log_odds(np.array([[1.0, 0.0, 0.0]]), 0)).all()


@pytest.mark.parametrize("label", [0, 1, 2])
def test_the_runner_up_is_the_likeliest_other_label(label):
    (occlusion,) = occlude_rows(made("one"), lambda rows: np.tile([0.2, 0.5, 0.3], (len(rows), 1)))
    assert occlusion.effects(label).runner_up == (2 if label == 1 else 1)


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
    assert scored == ["good game", "game", "good", "good game", "game", "good"]
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
    """Sixteen words, of which ten may be left out: parts of four words, and the words of the part with 'good'."""
    text = " ".join(f"w{n}" for n in range(9)) + " good " + " ".join(f"w{n}" for n in range(10, 16))
    calls = []

    def probabilities(rows):
        calls.append(len(rows))
        return softmax(additive_scores(rows), axis=1)

    (occlusion,) = occlude_rows(made(text), probabilities, max_parts=10)
    assert calls == [1 + 4 + 1 + 4, 1 + 4 + 1 + 4]
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


def test_samples_have_every_nth_part_and_each_part_is_in_one():
    parts = [Part("text", 2 * n, 2 * n + 1) for n in range(20)]
    samples = sample_parts(parts)
    assert [part.start // 2 for part in samples[0]] == [0, 3, 6, 9, 12, 15, 18]
    assert sorted((part for sample in samples for part in sample), key=lambda part: part.start) == parts
    assert sample_parts(parts[:5]) == [parts[:5]]
    assert sample_parts([]) == [[]]


def test_parts_that_are_kept_are_separated_as_in_the_text():
    texts = {"title": "one two three", "text": "好游戏 game"}
    words = split_words(texts["title"], "title") + split_words(texts["text"], "text")
    assert keep_parts(texts, [words[0], words[2]]) == {"title": "one three", "text": ""}
    assert keep_parts(texts, words[3:]) == {"title": "", "text": "好游戏 game"}
