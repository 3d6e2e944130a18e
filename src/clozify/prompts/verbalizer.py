"""The verbalizer v in token space (section 3): which ids answer for a label in a pattern.

In: a pattern's template and a verbalizer. Out: `LabelWords`, the ids and how they average into labels; or one
sentence for each word that the model splits, does not know, or cannot tell from another label's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.config.task import Verbalizer
from clozify.errors import quoted
from clozify.prompts.encode import Template
from clozify.prompts.tokenizer import PromptTokenizer


@dataclass(frozen=True)
class LabelWords:
    """Token ids of all words of a verbalizer in one pattern, and the mean that makes labels of them."""

    ids: NDArray[np.int64]  # (words,)
    mean: NDArray[np.float32]  # (labels, words): a label's score is the mean of its words' raw scores


@dataclass(frozen=True)
class SplitWord:
    """A word that is not one token of the model where the pattern puts it."""

    label: str
    word: str
    pieces: list[str]

    def __str__(self) -> str:
        shown = " + ".join(self.pieces)
        if not self.pieces:
            return f"the word '{self.word}' of the label '{self.label}' is nothing to the model's tokenizer"
        if len(self.pieces) == 1:
            return f"the model does not know the word '{self.word}' of the label '{self.label}'"
        return f"the word '{self.word}' of the label '{self.label}' is not one token of the model, which reads {shown}"


def word_ids(tokenizer: PromptTokenizer, template: Template, word: str) -> list[int]:
    """The ids of a word in the mask's place: written behind what the pattern has to the left of the mask.

    Where letters touch the mask, as in `{mask}ly`, and change the word's tokens, they are the ids of all of it.
    """
    if template.wording.label_words == "leading-space":
        return tokenizer.encode_after_slot(" ", word)
    left, right = template.left_of_mask, template.right_of_mask
    before, behind = _letters(left[::-1])[::-1], _letters(right)
    if tokenizer.encode(before + word + behind) != [
        *tokenizer.encode(before),
        *tokenizer.encode(word),
        *tokenizer.encode(behind),
    ]:
        return tokenizer.encode(before + word + behind)
    ids = (
        tokenizer.encode_after(left, word) if template.mask_starts_segment else tokenizer.encode_after_slot(left, word)
    )
    return tokenizer.encode(word) if ids is None else ids


def _letters(text: str) -> str:
    """The letters and digits that a text starts with."""
    return "".join(itertools.takewhile(str.isalnum, text))


def verbalize(
    tokenizer: PromptTokenizer, template: Template, verbalizer: Verbalizer
) -> tuple[LabelWords, list[SplitWord], list[str], list[str]]:
    """The verbalizer's ids in this pattern; the words that are split; the errors; the warnings."""
    unknown = tokenizer.hf_tokenizer.unk_token_id
    columns: dict[int, int] = {}  # token id -> its place among the words
    owners: dict[int, list[str]] = {}  # token id -> labels that use it
    rows, split = [], []
    for label, words in verbalizer.words.items():
        row = []
        for word in words:
            ids = word_ids(tokenizer, template, word)
            if len(ids) != 1 or ids[0] == unknown:
                split.append(SplitWord(label, word, tokenizer.to_tokens(ids)))
                continue
            row.append(columns.setdefault(ids[0], len(columns)))
            if label not in owners.setdefault(ids[0], []):
                owners[ids[0]].append(label)
        rows.append(row)
    mean = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for number, row in enumerate(rows):
        np.add.at(mean[number], row, 1 / max(len(row), 1))
    errors, warnings = [], []
    for (first, of_first), (second, of_second) in itertools.combinations(zip(verbalizer.words, mean, strict=True), 2):
        if of_first.any() and np.array_equal(of_first, of_second):
            errors.append(
                f"the labels {quoted([first, second])} have the same words for this model, so they could never be told "
                "apart; give each its own"
            )
    single = {label for label, words in verbalizer.words.items() if len(words) == 1}
    for token, labels in owners.items():
        if len(labels) > 1:
            piece = tokenizer.to_tokens([token])[0]
            if not single.issuperset(labels):
                warnings.append(f"the word '{piece}' stands for the labels {quoted(labels)}")
    return LabelWords(np.array(list(columns), dtype=np.int64), mean), split, errors, warnings
