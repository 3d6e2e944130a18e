"""Tokenises texts as they would be tokenised where they stand in a pattern.

What is to the left of a text decides its first token: leading spaces, casing, SentencePiece's word marks. The
`PromptTokenizer` therefore encodes a literal, a label's word or a field after its left context, and keeps only the ids
that the text adds. It also finds the special tokens and token types that the model expects around one segment or two.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.errors import ModelError
from clozify.utils.hashing import hash_key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_MASK = -1  # the mask's id for a causal model, which has none
START = ""  # the context of a field at the start of a segment
SPACE = "x "  # the context of a field after white space; any other word than x gives the same tokens
STAND_INS = ("x", "the", "it", "1")  # words that stand in for a field or the mask when the text after it is tokenised
PROBES = ("World", "the", "12", "Über", "I'm", "a b", "日本")  # texts that tell whether two contexts act alike


@dataclass(frozen=True)
class RaggedTokens:
    """Token ids of many rows in one array, in memory or memory-mapped; row `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]  # (tokens,)
    offsets: NDArray[np.int64]  # (rows + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each row: (rows,)."""
        return np.diff(self.offsets)

    def row_lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of tokens of these rows."""
        lengths: NDArray[np.int64] = self.offsets[rows + 1] - self.offsets[rows]
        return lengths

    def slice(self, start: int, stop: int) -> RaggedTokens:
        """Consecutive rows, without copying their ids."""
        offsets = self.offsets[start : stop + 1]
        return RaggedTokens(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def select(self, rows: NDArray[np.int64]) -> RaggedTokens:
        """A copy of these rows, in this order."""
        return RaggedTokens.from_lists([self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows])

    @staticmethod
    def concat(*chunks: RaggedTokens) -> RaggedTokens:
        """The rows of all chunks, in order."""
        if len(chunks) == 1:
            return chunks[0]
        offsets = np.zeros(1 + sum(map(len, chunks)), dtype=np.int64)
        np.cumsum(np.concatenate([chunk.lengths for chunk in chunks]), out=offsets[1:])
        return RaggedTokens(np.concatenate([chunk.ids for chunk in chunks]), offsets)

    @staticmethod
    def from_lists(rows: Sequence[Sequence[int] | NDArray[np.int32]]) -> RaggedTokens:
        """From one list of ids for each row."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
        return RaggedTokens(ids, offsets)


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens before, between and after the segments, and the token types of all of them."""

    specials: tuple[tuple[int, ...], ...]  # ids before the first segment, after the first, after the second
    special_types: tuple[tuple[int, ...], ...]  # their token types
    segment_types: tuple[int, ...]  # the token type of each segment


class PromptTokenizer:
    """A fast tokenizer of Transformers with the operations that patterns need."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mask_id: int | None = None) -> None:
        """`mask_id` is that of the token which stands for the mask, where it is not the tokenizer's mask token."""
        if not tokenizer.is_fast:
            raise ModelError(
                f"The tokenizer {type(tokenizer).__name__} has no fast version, which clozify needs; use another model."
            )
        self.hf_tokenizer = tokenizer
        mask_id = tokenizer.mask_token_id if mask_id is None else mask_id
        self.mask_id = NO_MASK if mask_id is None else int(mask_id)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        # A copy, since every call of the Transformers tokenizer changes these three settings. Its file may set
        # truncation or padding; and "[MASK]" in a user's text is text, not a mask.
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self.is_special = np.zeros(len(tokenizer), dtype=bool)  # (vocabulary,)
        self.is_special[tokenizer.all_special_ids] = True
        self.boundary_ids = [i for i in (tokenizer.cls_token_id, tokenizer.sep_token_id) if i is not None]
        self.special_tokens = cache(self._special_tokens)
        self.shared_context = cache(self._shared_context)

    @cached_property
    def digest(self) -> str:
        """A hash of all that decides a text's ids."""
        special = np.flatnonzero(self.is_special).tolist()
        return hash_key(tokenizer=self._backend.to_str(), special=special, unknown=self.hf_tokenizer.unk_token_id)

    def encode(self, text: str) -> list[int]:
        """The ids of a text by itself, without special tokens."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_template(self, text: str) -> list[int]:
        """The ids of a chat template's own text, in which special tokens are meant as such."""
        return list(self.hf_tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"])

    def to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's entries for these ids."""
        return list(self.hf_tokenizer.convert_ids_to_tokens(list(ids)))

    def decode(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        """The text of these ids on one line, special tokens included."""
        return " ".join(str(self.hf_tokenizer.decode(list(ids))).split())

    def encode_after(self, left: str, text: str) -> list[int] | None:
        """The ids that `text` adds after `left`; None where a token spans both."""
        left_ids, ids = self.encode(left.rstrip()), self.encode(left + text)
        return ids[len(left_ids) :] if ids[: len(left_ids)] == left_ids else None

    def encode_after_slot(self, left: str, text: str) -> list[int]:
        """The ids of `text` after a field or the mask (whose content is not known here) and then `left`."""
        for word in STAND_INS:
            ids = self.encode_after(word + left, text)
            if ids is not None:
                return ids
        return self.encode(text)

    def _shared_context(self, left: str) -> str:
        """The shortest context in which a field is tokenised as after `left`; equal for all that act alike.

        Patterns whose contexts are equal share a field's tokens (`FieldInContext`).
        """
        context = SPACE if left[-1:].isspace() else left[-1:]
        if all(self.encode_after(context, probe) == self.encode(probe) for probe in PROBES):
            return START
        return context

    def encode_batch(self, texts: Sequence[str], context: str = START) -> RaggedTokens:
        """The ids of many texts, each as after `context`, tokenised in parallel."""
        encode = self._backend.encode_batch_fast
        if context == START:
            encoded = encode(list(texts), add_special_tokens=False)
            return self._without_special(RaggedTokens.from_lists([row.ids for row in encoded]))
        context_ids = self.encode(context.rstrip())
        count = len(context_ids)
        encoded = encode([context + text for text in texts], add_special_tokens=False)
        rows = []
        for text, row in zip(texts, encoded, strict=True):
            ids = row.ids
            rows.append([] if not text else ids[count:] if ids[:count] == context_ids else self.encode(text))
        return self._without_special(RaggedTokens.from_lists(rows))

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], list[tuple[int, int]]]]:
        """Each text's ids, and the start and end of each token in the text."""
        encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(row.ids, dtype=np.int64), list(row.offsets)) for row in encoded]

    def _without_special(self, tokens: RaggedTokens) -> RaggedTokens:
        """Special tokens in the rows' text become unknown words: SentencePiece vocabularies hold them as pieces."""
        if self.hf_tokenizer.unk_token_id is not None:
            tokens.ids[self.is_special[tokens.ids]] = self.hf_tokenizer.unk_token_id
        return tokens

    def _special_tokens(self, segments: int) -> SpecialTokens:
        """The special tokens around one segment or two, found by encoding a probe: fast tokenizers do not tell them."""
        probe = self.hf_tokenizer(
            *["a", "b"][:segments],
            return_special_tokens_mask=True,
            return_token_type_ids=True,
            truncation=False,
        )
        specials: list[list[int]] = [[]]
        special_types: list[list[int]] = [[]]
        segment_types: list[int] = []
        in_segment = False
        for token, token_type, special in zip(
            probe["input_ids"], probe["token_type_ids"], probe["special_tokens_mask"], strict=True
        ):
            if special:
                specials[-1].append(token)
                special_types[-1].append(token_type)
            elif not in_segment:
                segment_types.append(token_type)
                specials.append([])
                special_types.append([])
            in_segment = not special
        if len(segment_types) != segments:
            raise ModelError(
                f"The tokenizer does not separate {segments} segments with special tokens, so patterns with || cannot "
                "be used with this model; remove || from the patterns or use another model."
            )
        return SpecialTokens(tuple(map(tuple, specials)), tuple(map(tuple, special_types)), tuple(segment_types))
