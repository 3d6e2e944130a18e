"""The candidate words of the verbalizer search (appendix E): complete words of the vocabulary, frequent ones first."""

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

MIN_LETTERS = 2  # of a candidate


class Candidates:
    """Candidate words, each with its token id at the mask of every pattern."""

    def __init__(self, tokenizer: PromptTokenizer, templates: list[Template]) -> None:
        self.tokenizer, self.templates = tokenizer, templates
        self.words: list[str] = []
        self.index: dict[tuple[int, ...], int] = {}  # a word's ids -> its index in `words`

    def ids(self, word: str) -> tuple[int, ...] | None:
        """The word's id in each pattern; None if it is not one token in all of them."""
        ids_by_pattern = [word_ids(self.tokenizer, template, word) for template in self.templates]
        unknown = [self.tokenizer.hf_tokenizer.unk_token_id]
        return (
            None
            if any(len(ids) != 1 or ids == unknown for ids in ids_by_pattern)
            else tuple(ids[0] for ids in ids_by_pattern)
        )

    def add(self, words: Iterable[str], limit: int, banned: Collection[tuple[int, ...] | None] = ()) -> list[str]:
        """Add words until there are `limit`, one for each sequence of ids; returns words that are not one token."""
        split = []
        for word in words:
            if len(self.words) >= limit:
                break
            ids = self.ids(word)
            if ids is None:
                split.append(word)
            elif ids not in banned and ids not in self.index:
                self.index[ids] = len(self.words)
                self.words.append(word)
        return split


def fill_candidates(
    candidates: Candidates,
    limit: int,
    allowed: list[str] | None,
    banned: Collection[tuple[int, ...] | None],
    prompts: TaskPrompts,
    rows: Rows,
    unlabeled: Rows | None,
) -> list[str]:
    """Add the most frequent words of the unlabelled rows, else of the labelled `rows`; returns warnings."""
    tokenizer, count_before = candidates.tokenizer, len(candidates.words)
    frequency = _token_counts(tokenizer, prompts, rows if unlabeled is None else unlabeled)

    def count(word: str) -> int:
        ids = tokenizer.encode_after_slot(" ", word)
        return int(frequency[ids[0]]) if len(ids) == 1 else 0

    if allowed is not None:
        split = candidates.add(sorted(allowed, key=count, reverse=True), limit, banned)
        if len(candidates.words) == count_before:
            raise TaskError(
                f"None of the allowed words can be taken: {quoted(split or allowed)}; a word must be one token of the "
                "model in every pattern, and not be forbidden."
            )
        return [f"Allowed, but not one token in every pattern, so left out: {quoted(split)}."] if split else []
    candidates.add(_vocabulary(tokenizer, frequency), limit, banned)
    in_rows = sum(count(word) > 0 for word in candidates.words)
    if in_rows == len(candidates.words) and unlabeled is not None:
        return []
    source = "labelled rows, since there are no unlabelled ones" if unlabeled is None else "unlabelled rows"
    return [
        f"{in_rows:,} of the {len(candidates.words):,} candidates occur in the {source}; the others are taken in the "
        "order of the model's vocabulary."
    ]


def _token_counts(tokenizer: PromptTokenizer, prompts: TaskPrompts, rows: Rows) -> NDArray[np.int64]:
    """How often each token occurs in the rows: (vocabulary,)."""
    count = np.zeros(len(tokenizer.is_special), dtype=np.int64)
    fields = sorted({column.slot.field for column in prompts.fields})
    with progress("counting words", len(rows) * len(fields)) as advance:
        for start, stop in rows.chunks():
            for field in fields:
                tokens = tokenizer.encode_batch(rows.texts(field, start, stop), SPACE)
                count += np.bincount(tokens.ids, minlength=len(count))
                advance(stop - start)
    return count


def _vocabulary(tokenizer: PromptTokenizer, frequency: NDArray[np.int64]) -> Iterator[str]:
    """The complete words of the vocabulary, the most frequent first, then in the order of the vocabulary."""
    for token in np.argsort(-frequency, kind="stable").tolist():
        word = "" if tokenizer.is_special[token] else tokenizer.decode([token])
        if sum(map(str.isalpha, word)) < MIN_LETTERS:
            continue
        if tokenizer.encode_after_slot(" ", word) == [token]:  # else the token is a part of a word
            yield word
