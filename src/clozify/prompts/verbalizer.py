"""The verbalizer v in token space (section 3): the token ids of the labels' words at a pattern's mask.

The paper's words are single tokens. A word of several tokens is scored in one of two ways, both from one forward pass
(`wording.several_tokens`):

- "mean", at one mask: the mean of the tokens' scores. A mean of n scores varies 1 / sqrt(n) times as much as one score,
  so that long words would win and lose less often; its difference from the mean over all labels is multiplied by
  sqrt(n).
- "masks", at as many masks as the longest word has tokens: token i is scored at mask i, and a word's score is the mean
  of them (Schick and Schuetze, 2021, "It's Not Just Size That Matters", section 3.1, take the product of
  probabilities).

Words without tokens or with an unknown one, and labels with equal tokens, are reported.
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

    ids: NDArray[np.int64]  # (tokens,)
    mean: NDArray[np.float32]  # (labels, tokens): s(l | x) = mean[l] @ raw scores of the tokens
    masks: NDArray[np.int64] | None = None  # (tokens,): the mask that a token is scored at; None with a single mask
    zero_points: NDArray[np.float32] | None = None  # (labels,): subtracted from s(l | x), for several labels a row


@dataclass(frozen=True)
class UnusableWord:
    """A word that is nothing, or unknown, to the model's tokenizer at the mask."""

    label: str
    word: str
    is_empty: bool

    def __str__(self) -> str:
        if self.is_empty:
            return f"the word '{self.word}' of the label '{self.label}' is nothing to the model's tokenizer"
        return f"the model does not know the word '{self.word}' of the label '{self.label}'"


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
    unusable: list[UnusableWord]
    errors: list[str]
    warnings: list[str]


def label_tokens(
    tokenizer: PromptTokenizer, template: Template, verbalizer: Verbalizer
) -> dict[str, dict[str, list[int]]]:
    """The token ids of every word at the mask: label -> word -> ids."""
    return {
        label: {word: word_ids(tokenizer, template, word) for word in words}
        for label, words in verbalizer.words.items()
    }


def verbalize(tokenizer: PromptTokenizer, template: Template, verbalizer: Verbalizer) -> VerbalizedWords:
    """The token ids of a verbalizer's words in this pattern, with the faults of the words."""
    unknown_id = tokenizer.hf_tokenizer.unk_token_id
    several_masks = template.masks > 1
    columns: dict[tuple[int, int], int] = {}  # token id and mask -> index in `LabelWords.ids`
    labels_by_token: dict[tuple[int, int], list[str]] = {}
    label_words: list[list[list[int]]] = []  # of each label the columns of each word's tokens
    unusable = []
    for label, words in label_tokens(tokenizer, template, verbalizer).items():
        label_words.append([])
        for word, ids in words.items():
            if not ids or unknown_id in ids:
                unusable.append(UnusableWord(label, word, is_empty=not ids))
                continue
            tokens = [(token, mask if several_masks else 0) for mask, token in enumerate(ids)]
            label_words[-1].append([columns.setdefault(token, len(columns)) for token in tokens])
            if len(tokens) == 1 and label not in labels_by_token.setdefault(tokens[0], []):
                labels_by_token[tokens[0]].append(label)
    mean = _mean_weights(label_words, len(columns), rescale=not several_masks)
    errors = [
        f"the labels {quoted(labels)} have the same words for this model, so they could never be told apart; give each "
        "its own"
        for labels in equal_labels(list(verbalizer.words), label_words)
    ]
    single_word_labels = {label for label, words in verbalizer.words.items() if len(words) == 1}
    shared = [
        f"the word '{tokenizer.to_tokens([token])[0]}' stands for the labels {quoted(labels)}"
        for (token, _), labels in labels_by_token.items()
        if len(labels) > 1 and not single_word_labels.issuperset(labels)
    ]
    warnings = []
    if shared:
        warnings.append(shared[0] + (f", and {len(shared) - 1} more words for several labels" if shared[1:] else ""))
    reordered = equal_labels(list(verbalizer.words), label_words, any_order=True) if not errors else []
    if reordered:
        warnings.append(
            f"the labels {quoted(reordered[0])} have the same tokens in another order, which one mask cannot tell "
            "apart before training; train with label_learning_rate, as the recipe auto does from 20 labels on, or give "
            "one of them another word"
        )
    token_ids, masks = (np.array([column[i] for column in columns], dtype=np.int64) for i in (0, 1))
    return VerbalizedWords(LabelWords(token_ids, mean, masks if several_masks else None), unusable, errors, warnings)


def _mean_weights(label_words: list[list[list[int]]], columns: int, rescale: bool) -> NDArray[np.float32]:
    """The weights of the tokens' scores in the labels' scores, (labels, columns): means over words, and their tokens.

    With `rescale` a word of n tokens has s' = m + sqrt(n) (s - m), where m is the mean of all labels' scores.
    """
    mean = np.zeros((len(label_words), columns), dtype=np.float32)
    for weights, words in zip(mean, label_words, strict=True):
        for tokens in words:
            np.add.at(weights, tokens, 1 / (len(words) * len(tokens)))
    if not rescale or all(len(tokens) == 1 for words in label_words for tokens in words):
        return mean
    centre = mean.mean(axis=0)
    scaled = np.zeros_like(mean)
    for weights, words in zip(scaled, label_words, strict=True):
        for tokens in words:
            word = np.zeros_like(centre)
            np.add.at(word, tokens, 1 / len(tokens))
            weights += (centre + np.sqrt(len(tokens)) * (word - centre)) / len(words)
    return scaled


def equal_labels(labels: list[str], label_words: list[list[list[int]]], any_order: bool = False) -> list[list[str]]:
    """The groups of labels whose words are the same tokens, in the same order or in any."""
    groups: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for label, words in zip(labels, label_words, strict=True):
        if words:
            tokens = sorted(tuple(sorted(word) if any_order else word) for word in words)
            groups.setdefault(tuple(tokens), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def most_tokens(tokenizer: PromptTokenizer, template: Template, verbalizer: Verbalizer) -> int:
    """The number of tokens of a verbalizer's longest word: the masks that it needs with a mask for every token."""
    words = label_tokens(tokenizer, template, verbalizer).values()
    return max((len(ids) for label in words for ids in label.values()), default=1)
