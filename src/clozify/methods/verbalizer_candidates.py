"""The words that a verbalizer search chooses from (appendix E): whole words of the model, frequent ones first.

In: a task's questions and rows. Out: `Candidates`, each with its id at the mask of every pattern.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import TaskError, quoted
from clozify.models.task_prompts import TaskPrompts
from clozify.prompts.encode import Template
from clozify.prompts.tokenizer import SPACE, PromptTokenizer
from clozify.prompts.verbalizer import word_ids
from clozify.utils.progress import progress

LETTERS = 2  # a candidate has at least so many alphabetic characters


class Candidates:
    """The words to choose from, and the id of each at the mask of each pattern."""

    def __init__(self, tokenizer: PromptTokenizer, templates: list[Template]) -> None:
        self.tokenizer, self.templates = tokenizer, templates
        self.words: list[str] = []
        self.place: dict[tuple[int, ...], int] = {}  # a word's ids -> its place among the words

    def ids(self, word: str) -> tuple[int, ...] | None:
        """The word's id in each pattern; None if it is not one token in all of them."""
        each = [word_ids(self.tokenizer, template, word) for template in self.templates]
        unknown = [self.tokenizer.hf_tokenizer.unk_token_id]
        return None if any(len(ids) != 1 or ids == unknown for ids in each) else tuple(ids[0] for ids in each)

    def fill(self, words: Iterable[str], most: int, banned: Collection[tuple[int, ...] | None] = ()) -> list[str]:
        """Take in words until there are `most`, each that the model reads alike once; returns those that it splits."""
        split = []
        for word in words:
            if len(self.words) >= most:
                break
            ids = self.ids(word)
            if ids is None:
                split.append(word)
            elif ids not in banned and ids not in self.place:
                self.place[ids] = len(self.words)
                self.words.append(word)
        return split


def fill_candidates(
    candidates: Candidates,
    most: int,
    allowed: list[str] | None,
    banned: Collection[tuple[int, ...] | None],
    questions: TaskPrompts,
    rows: Rows,
    pile: Rows | None,
) -> list[str]:
    """Take in the most frequent words of the pile (else of the labelled rows); returns what is worth telling."""
    tokenizer, given = candidates.tokenizer, len(candidates.words)
    frequency = _frequency(tokenizer, questions, rows if pile is None else pile)

    def count(word: str) -> int:
        ids = tokenizer.encode_after_slot(" ", word)
        return int(frequency[ids[0]]) if len(ids) == 1 else 0

    if allowed is not None:
        split = candidates.fill(sorted(allowed, key=count, reverse=True), most, banned)
        if len(candidates.words) == given:
            raise TaskError(
                f"None of the allowed words can be taken: {quoted(split or allowed)}; a word must be one token of the "
                "model in every pattern, and not be forbidden."
            )
        return [f"Allowed, but not one token in every pattern, so left out: {quoted(split)}."] if split else []
    candidates.fill(_vocabulary(tokenizer, frequency), most, banned)
    met = sum(count(word) > 0 for word in candidates.words)
    if met == len(candidates.words) and pile is not None:
        return []
    where = "labelled rows, since there are no unlabelled ones" if pile is None else "unlabelled rows"
    return [
        f"{met:,} of the {len(candidates.words):,} candidates stand in the {where}; the others are taken in the order "
        "of the model's vocabulary."
    ]


def _frequency(tokenizer: PromptTokenizer, questions: TaskPrompts, rows: Rows) -> NDArray[np.int64]:
    """How often each token stands in the rows: (vocabulary,)."""
    count = np.zeros(len(tokenizer.is_special), dtype=np.int64)
    fields = sorted({column.slot.field for column in questions.fields})
    with progress("counting words", len(rows) * len(fields)) as advance:
        for start, stop in rows.chunks():
            for field in fields:
                count += np.bincount(
                    tokenizer.encode_batch(rows.texts(field, start, stop), SPACE).ids, minlength=len(count)
                )
                advance(stop - start)
    return count


def _vocabulary(tokenizer: PromptTokenizer, frequency: NDArray[np.int64]) -> Iterator[str]:
    """The model's whole words, the most frequent first, then as they stand in the vocabulary."""
    for token in np.argsort(-frequency, kind="stable").tolist():
        word = "" if tokenizer.is_special[token] else tokenizer.decode([token])
        if sum(map(str.isalpha, word)) >= LETTERS and tokenizer.encode_after_slot(" ", word) == [
            token
        ]:  # else a piece of one
            yield word
