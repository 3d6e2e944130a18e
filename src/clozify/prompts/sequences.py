"""The verbalizer for models that write from left to right: the labels' words as sequences of tokens.

A word's score is the sum of its tokens' log-likelihoods, and a label's the mean over its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clozify.errors import quoted
from clozify.prompts.verbalizer import LabelWords, UnusableWord, VerbalizedWords, equal_labels


@dataclass(frozen=True, eq=False)  # compared and hashed by identity
class LabelSequences(LabelWords):
    """The token ids of all words one after the other, and the weights of the tokens' scores in the labels' scores."""

    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (words,), in `ids`
    neutral: NDArray[np.int64] | None = None  # (width,): the prompt with neutral text; None without calibration

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each word: (words,)."""
        return np.diff(self.starts, append=len(self.ids))

    def continuations(self, words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens of some words without the last, and without the first: (words, most tokens - 1) each, padded."""
        lengths = self.lengths[words]
        columns = self.starts[words][:, None] + np.arange(int(lengths.max()))
        tokens = self.ids[np.minimum(columns, len(self.ids) - 1)]
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def as_sequences(words: LabelWords) -> LabelSequences:
    """The words of a prompt that was compiled for a causal or an encoder-decoder model."""
    assert isinstance(words, LabelSequences)
    return words


def label_sequences(
    words: Mapping[str, Mapping[str, list[int]]],
    unknown_id: int | None,
    most_tokens: int,
    neutral: NDArray[np.int64] | None,
) -> VerbalizedWords:
    """The words' tokens, label -> word -> ids, as `LabelSequences`, with the faults of the words."""
    sequences: list[list[int]] = []
    weights: list[tuple[int, float]] = []  # of each sequence: its label and its weight
    label_words: list[list[list[int]]] = []
    unusable, errors = list[UnusableWord](), list[str]()
    for index, (label, of_label) in enumerate(words.items()):
        label_words.append([])
        for word, ids in of_label.items():
            if not ids or unknown_id in ids:
                unusable.append(UnusableWord(label, word, is_empty=not ids))
                continue
            if len(ids) > most_tokens:
                errors.append(
                    f"the word '{word[:40]}' of the label '{label}' has {len(ids)} tokens, and a causal or "
                    f"encoder-decoder model takes {most_tokens} at most; shorten it"
                )
            label_words[-1].append(ids)
            sequences.append(ids)
            weights.append((index, 1 / len(of_label)))
    errors += [
        f"the labels {quoted(labels)} have the same words for this model, so they could never be told apart; give each "
        "its own"
        for labels in equal_labels(list(words), label_words)
    ]
    lengths = np.array([len(ids) for ids in sequences], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    mean = np.zeros((len(words), int(lengths.sum())), dtype=np.float32)
    for start, length, (label_index, weight) in zip(starts, lengths, weights, strict=True):
        mean[label_index, start : start + length] = weight
    all_ids = np.array([token for tokens in sequences for token in tokens], dtype=np.int64)
    return VerbalizedWords(LabelSequences(all_ids, mean, starts=starts, neutral=neutral), unusable, errors, [])
