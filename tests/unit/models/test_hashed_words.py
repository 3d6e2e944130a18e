import itertools
import re

import numpy as np
import pytest

from clozify.models import hashed_words
from clozify.models.hashed_words import MIX, NO_FEATURE, P, Q, hash_texts

MASK = 2**64 - 1


def mix(value: int) -> int:
    value ^= value >> 32
    value = value * MIX & MASK
    return value ^ (value >> 32)


def word_key(word: str) -> int:
    return mix(sum(ord(character) * pow(P, index, 2**64) for index, character in enumerate(word)) & MASK)


def pair_key(one: str, other: str) -> int:
    return mix(3 * word_key(one) + Q * word_key(other) & MASK)


def expected_keys(words: list[str]) -> list[int]:
    pairs = [pair_key(*pair) for pair in itertools.pairwise(words)]
    last = [NO_FEATURE] if words else []
    return [key for word, pair in zip(words, [*pairs, *last], strict=True) for key in (word_key(word), pair)]


def rows(texts: list[str]) -> list[list[int]]:
    """The keys of each text."""
    result = []
    for features in hash_texts(texts):
        bounds = zip(features.offsets, features.offsets[1:], strict=False)
        result += [features.keys[start:stop].tolist() for start, stop in bounds]
    return result


def test_keys_are_the_polynomial_hashes_of_words_and_pairs():
    texts = ["The cat's on the mat", "", "   ", "Go!", "x", "naïve CAFÉ 42nd"]
    words = [["the", "cat", "s", "on", "the", "mat"], [], [], ["go", "!"], ["x"], ["naïve", "café", "42nd"]]
    assert rows(texts) == [expected_keys(of_text) for of_text in words]


def test_the_words_of_plain_texts_are_those_of_a_regular_expression():
    rng = np.random.default_rng(0)
    characters = list("abz XYZ019 .,;-'\"()\t_")
    texts = ["".join(rng.choice(characters, rng.integers(0, 60))) for _ in range(700)]
    words = [re.findall("[a-z0-9]+", text.lower()) for text in texts]
    assert rows(texts) == [expected_keys(of_text) for of_text in words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("東京へ", ["東", "京", "へ"]),
        ("abc東京xyz", ["abc", "東", "京", "xyz"]),
        ("ดี a", ["ด", "ี", "a"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("good😀😀day", ["good", "😀", "😀", "day"]),
        ("$5 ♥ 9%", ["$", "5", "♥", "9", "%"]),
        ("ÄÖ İx", ["äö", "İx"]),
        ("a\ud800b", ["a", "b"]),
    ],
)
def test_characters_of_scripts_without_spaces_and_symbols_are_words(text, words):
    assert rows([text]) == [expected_keys(words)]


def test_the_keys_of_a_text_do_not_depend_on_the_others(monkeypatch):
    texts = [f"text number {index} is {'long ' * (index % 40)}" for index in range(100)]
    alone = [rows([text])[0] for text in texts]
    for size in (1, 7, 256):
        monkeypatch.setattr(hashed_words, "BATCH_ROWS", size)
        assert rows(texts) == alone


def test_frequent_words_have_keys_of_their_own():
    words = [f"{first}{second}{third}" for first in "abcdefghij" for second in "klmnop" for third in range(100)]
    keys = {key for row in rows(words) for key in row if key != NO_FEATURE}
    assert len(keys) == len(words)
