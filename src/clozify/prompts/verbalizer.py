"""The verbalizer v in token space (section 3): the token ids of the labels' words at a pattern's mask.

A word must be a single token of the model there; words that are not, and labels with equal words, are reported.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Verbalizer
from clozify.errors import quoted
from clozify.prompts.encode import Template
from clozify.prompts.tokenizer import PromptTokenizer


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class LabelWords:
    """The token ids of a verbalizer's words in one pattern, and the weights that average them for each label."""

    ids: NDArray[np.int64]  # (words,)
    mean: NDArray[np.float32]  # (labels, words): s(l | x) = mean[l] @ raw scores of the words
    offsets: NDArray[np.float32] | None = None  # (labels,): subtracted from s(l | x), for several labels a row


@dataclass(frozen=True)
class SplitWord:
    """A word that is not a single known token of the model at the mask."""

    label: str
    word: str
    pieces: list[str]  # the tokens that it is split into

    def __str__(self) -> str:
        if not self.pieces:
            return f"the word '{self.word}' of the label '{self.label}' is nothing to the model's tokenizer"
        if len(self.pieces) == 1:
            return f"the model does not know the word '{self.word}' of the label '{self.label}'"
        tokens = " + ".join(self.pieces)
        return f"the word '{self.word}' of the label '{self.label}' is not one token of the model, which reads {tokens}"


def word_ids(tokenizer: PromptTokenizer, template: Template, word: str) -> list[int]:
    """The ids of a word at the mask, tokenised after the literal text to the left of the mask.

    Where the pattern has letters next to the mask, as in `{mask}ly`, and they change the word's tokens, these are the
    ids of the word together with the letters.
    """
    if template.wording.label_words == "leading-space":
        return tokenizer.encode_after_slot(" ", word)
    left, right = template.left_of_mask, template.right_of_mask
    prefix, suffix = _leading_letters(left[::-1])[::-1], _leading_letters(right)
    joined = tokenizer.encode(prefix + word + suffix)
    if joined != [*tokenizer.encode(prefix), *tokenizer.encode(word), *tokenizer.encode(suffix)]:
        return joined
    encode_after = tokenizer.encode_after if template.mask_starts_segment else tokenizer.encode_after_slot
    ids = encode_after(left, word)
    return tokenizer.encode(word) if ids is None else ids


def _leading_letters(text: str) -> str:
    """The letters and digits that a text starts with."""
    return "".join(itertools.takewhile(str.isalnum, text))


class VerbalizedWords(NamedTuple):
    """A verbalizer's token ids in one pattern, and what is wrong with its words there."""

    words: LabelWords
    split_words: list[SplitWord]
    errors: list[str]
    warnings: list[str]


def verbalize(tokenizer: PromptTokenizer, template: Template, verbalizer: Verbalizer) -> VerbalizedWords:
    """The token ids of a verbalizer's words in this pattern, with the faults of the words."""
    unknown_id = tokenizer.hf_tokenizer.unk_token_id
    columns: dict[int, int] = {}  # token id -> its index in `LabelWords.ids`
    labels_by_token: dict[int, list[str]] = {}
    label_columns: list[list[int]] = []
    split_words = []
    for label, words in verbalizer.words.items():
        label_columns.append([])
        for word in words:
            ids = word_ids(tokenizer, template, word)
            if len(ids) != 1 or ids[0] == unknown_id:
                split_words.append(SplitWord(label, word, tokenizer.to_tokens(ids)))
                continue
            label_columns[-1].append(columns.setdefault(ids[0], len(columns)))
            if label not in labels_by_token.setdefault(ids[0], []):
                labels_by_token[ids[0]].append(label)
    mean = np.zeros((len(label_columns), len(columns)), dtype=np.float32)
    for weights, indices in zip(mean, label_columns, strict=True):
        np.add.at(weights, indices, 1 / max(len(indices), 1))
    errors, warnings = [], []
    for (first, weights), (second, other) in itertools.combinations(zip(verbalizer.words, mean, strict=True), 2):
        if weights.any() and np.array_equal(weights, other):
            errors.append(
                f"the labels {quoted([first, second])} have the same words for this model, so they could never be told "
                "apart; give each its own"
            )
    single_word_labels = {label for label, words in verbalizer.words.items() if len(words) == 1}
    shared = [
        f"the word '{tokenizer.to_tokens([token])[0]}' stands for the labels {quoted(labels)}"
        for token, labels in labels_by_token.items()
        if len(labels) > 1 and not single_word_labels.issuperset(labels)
    ]
    if shared:
        warnings.append(shared[0] + (f", and {len(shared) - 1} more words for several labels" if shared[1:] else ""))
    return VerbalizedWords(LabelWords(np.array(list(columns), dtype=np.int64), mean), split_words, errors, warnings)
