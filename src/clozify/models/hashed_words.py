"""Words and pairs of neighbouring words of texts as 64-bit hashes, by array operations alone.

A word is a run of letters, marks and digits in lower case. In scripts that are written without spaces each character is
a word, as are currency signs, emoji, `!`, `?` and `%`. With c_1 ... c_n a word's code points,

    h(word) = mix(sum_i c_i p^i mod 2^64),    h(word, next) = mix(3 h(word) + q h(next) mod 2^64).

A second of processor time hashes over twenty times the rows that the `tokenizers` library reads with a WordPiece
vocabulary (benchmarks/static_student.py), which is why there is no vocabulary.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

BATCH_ROWS = 256  # whose arrays fit a processor's cache
NO_FEATURE = 0  # the key of what is none: the pair that a text's last word would begin
P, Q, MIX = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93  # odd
TABLE_SIZE = 0x10000  # code points beyond, emoji most of them, are words of their own
ALONE = np.uint32(1 << 31)  # marks a character that is a word
NO_SPACES = (  # blocks of scripts without spaces between words
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
)


@dataclass(frozen=True)
class Features:
    """The keys of many texts' words and pairs in one array; text `i` has `keys[offsets[i]:offsets[i + 1]]`."""

    keys: NDArray[np.uint64]  # (features,)
    offsets: NDArray[np.int64]  # (texts + 1,)


def hash_texts(texts: Sequence[str]) -> Iterator[Features]:
    """Yield the features of consecutive batches of `BATCH_ROWS` texts."""
    for start in range(0, len(texts), BATCH_ROWS):
        yield _hash_batch(texts[start : start + BATCH_ROWS])


def _hash_batch(texts: Sequence[str]) -> Features:
    codes = _characters(" ".join(texts))
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    starts = np.flatnonzero(_begins_word(codes))
    bounds = np.concatenate([[0], np.searchsorted(starts, ends)])  # of each text's words
    keys = np.full(2 * len(starts), NO_FEATURE, dtype=np.uint64)
    if len(starts):
        powers, inverses = _powers((len(codes) - 1).bit_length())
        values = (codes & ~ALONE) * powers[: len(codes)]  # 0 between words
        words = _mix(np.add.reduceat(values, starts) * inverses[starts])
        keys[::2] = words
        keys[1:-1:2] = _mix(words[:-1] * np.uint64(3) + words[1:] * np.uint64(Q))
        keys[2 * bounds[1:][bounds[1:] > 0] - 1] = NO_FEATURE  # no pair across texts
    return Features(keys, 2 * bounds)


def _characters(text: str) -> NDArray[np.uint32]:
    """The code points in lower case, 0 for what is not part of a word; `ALONE` is added to words of one character."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    if not len(codes) or codes.max() < TABLE_SIZE:
        characters: NDArray[np.uint32] = _table()[codes]
        return characters
    characters = _table()[np.minimum(codes, TABLE_SIZE - 1)]
    return np.where(codes < TABLE_SIZE, characters, codes | ALONE)


def _begins_word(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether a word begins at each character."""
    begins: NDArray[np.bool_] = codes != 0
    continues = begins & (codes < ALONE)
    begins[1:] &= ~(continues[1:] & continues[:-1])
    return begins


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The values with every bit depending on all bits; equal ones stay equal."""
    values ^= values >> np.uint64(32)
    values *= np.uint64(MIX)
    values ^= values >> np.uint64(32)
    return values


@lru_cache(maxsize=2)
def _powers(bits: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """p^i and its inverse modulo 2^64 for i up to 2^bits, the last excluded."""
    factors = (P, pow(P, -1, 2**64))
    powers = [np.full(1 << bits, factor, dtype=np.uint64) for factor in factors]
    for each in powers:
        each[0] = 1
        np.cumprod(each, out=each)
    return powers[0], powers[1]


@cache
def _table() -> NDArray[np.uint32]:
    """`_characters` of each code point below `TABLE_SIZE`."""
    table = np.zeros(TABLE_SIZE, dtype=np.uint32)
    for code in range(TABLE_SIZE):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LMN":
            lower = character.lower()
            table[code] = ord(lower) if len(lower) == 1 else code
        elif category in ("So", "Sc") or character in "!?%":
            table[code] = code | int(ALONE)
    for first, last in NO_SPACES:
        block = table[first : last + 1]
        block[block != 0] |= ALONE
    return table
