"""Text to token ids, as the text would be tokenised where it stands in a pattern.

In: a fast tokenizer of Transformers. Out: the ids that a literal, a word or a field adds behind what is to its
left, which settles leading spaces, casing and SentencePiece's word marks; and the special tokens and token types
that the model expects around one segment or two.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

START = ""  # the context of a field at the start of a segment
SPACE = "x "  # the context of a field behind white space; what the word is does not matter
STAND_INS = ("x", "the", "it", "1")  # words that stand for a field or the mask, to tokenise what follows it
PROBES = ("World", "the", "12", "Über", "I'm", "a b", "日本")


@dataclass(frozen=True)
class RaggedTokens:
    """Token ids of many rows in one array, in memory or memory-mapped; row `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]  # (tokens,)
    offsets: NDArray[np.int64]  # (rows + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each row."""
        return np.diff(self.offsets)

    def row_lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of tokens of these rows."""
        found: NDArray[np.int64] = self.offsets[rows + 1] - self.offsets[rows]
        return found

    def slice(self, start: int, stop: int) -> RaggedTokens:
        """A stretch of rows, without copying their ids."""
        starts = self.offsets[start : stop + 1]
        return RaggedTokens(self.ids[starts[0] : starts[-1]], starts - starts[0])

    def select(self, rows: NDArray[np.int64]) -> RaggedTokens:
        """These rows, in this order."""
        return RaggedTokens.from_lists([self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows])

    @staticmethod
    def concat(*parts: RaggedTokens) -> RaggedTokens:
        """The rows of the first, then of the next, and so on."""
        if len(parts) == 1:
            return parts[0]
        starts = np.zeros(1 + sum(map(len, parts)), dtype=np.int64)
        np.cumsum(np.concatenate([part.lengths for part in parts]), out=starts[1:])
        return RaggedTokens(np.concatenate([part.ids for part in parts]), starts)

    @staticmethod
    def from_lists(rows: Sequence[Sequence[int] | NDArray[np.int32]]) -> RaggedTokens:
        """From one list of ids a row."""
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(starts[-1]))
        return RaggedTokens(ids, starts)


@dataclass(frozen=True)
class Layout:
    """The special tokens before, between and after the segments, and every stretch's token type."""

    specials: tuple[tuple[int, ...], ...]  # one more than there are segments
    special_types: tuple[tuple[int, ...], ...]
    segment_types: tuple[int, ...]


class PromptTokenizer:
    """A tokenizer as patterns need it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ModelError(f"The tokenizer {type(tokenizer).__name__} has no fast version, which clozify needs.")
        self.hf_tokenizer = tokenizer
        self.mask_id = int(tokenizer.mask_token_id)
        self.pad_id = int(tokenizer.pad_token_id or 0)
        # A copy of our own, since every call of the tokenizer sets these three anew. The file may carry its own
        # truncation or padding; and "[MASK]" in a user's text is text, not a mask.
        self._backend = copy.deepcopy(tokenizer.backend_tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self.is_special = np.zeros(len(tokenizer), dtype=bool)  # by id
        self.is_special[tokenizer.all_special_ids] = True
        self.boundary_ids = [i for i in (tokenizer.cls_token_id, tokenizer.sep_token_id) if i is not None]
        self.special_tokens = cache(self._layout)
        self.shared_context = cache(self._shared_context)

    def encode(self, text: str) -> list[int]:
        """The ids of a text by itself."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's entries for these ids."""
        return list(self.hf_tokenizer.convert_ids_to_tokens(list(ids)))

    def decode(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        """What these ids say, special tokens included, on one line."""
        return " ".join(str(self.hf_tokenizer.decode(list(ids))).split())

    def encode_after(self, left: str, text: str) -> list[int] | None:
        """The ids that `text` adds when it is written behind `left`; None where the two merge into one token."""
        before, whole = self.encode(left.rstrip()), self.encode(left + text)
        return whole[len(before) :] if whole[: len(before)] == before else None

    def encode_after_slot(self, left: str, text: str) -> list[int]:
        """The ids of `text` behind a field or the mask (whose content is unknown) and then `left`."""
        for word in STAND_INS:
            ids = self.encode_after(word + left, text)
            if ids is not None:
                return ids
        return self.encode(text)

    def _shared_context(self, left: str) -> str:
        """What must stand before a field to tokenise it as behind `left`; one context for all that behave alike."""
        context = SPACE if left[-1:].isspace() else left[-1:]
        if all(self.encode_after(context, probe) == self.encode(probe) for probe in PROBES):
            return START
        return context

    def encode_batch(self, texts: Sequence[str], context: str = START) -> RaggedTokens:
        """Many rows' ids of a field, in parallel, each as behind `context`."""
        encode = self._backend.encode_batch_fast
        if context == START:
            return self._as_text(
                RaggedTokens.from_lists([row.ids for row in encode(list(texts), add_special_tokens=False)])
            )
        before = self.encode(context.rstrip())
        rows = [row.ids for row in encode([context + text for text in texts], add_special_tokens=False)]
        count = len(before)
        ragged = RaggedTokens.from_lists(
            [
                [] if not text else row[count:] if row[:count] == before else self.encode(text)
                for text, row in zip(texts, rows, strict=True)
            ]
        )
        return self._as_text(ragged)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int64], list[tuple[int, int]]]]:
        """Each text's ids, and the stretch of the text that each of them stands for."""
        encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(row.ids, dtype=np.int64), list(row.offsets)) for row in encoded]

    def _as_text(self, ragged: RaggedTokens) -> RaggedTokens:
        """SentencePiece's vocabularies hold special tokens as pieces too: in a row's text they are unknown words."""
        if self.hf_tokenizer.unk_token_id is not None:
            ragged.ids[self.is_special[ragged.ids]] = self.hf_tokenizer.unk_token_id
        return ragged

    def _layout(self, segments: int) -> Layout:
        """Found by encoding a probe: fast tokenizers no longer say what they put around a pair."""
        probe = self.hf_tokenizer(
            *["a", "b"][:segments],
            return_special_tokens_mask=True,
            return_token_type_ids=True,
            truncation=False,
        )
        specials: list[list[int]] = [[]]
        special_types: list[list[int]] = [[]]
        segment_types: list[int] = []
        inside = False
        for token, kind, special in zip(
            probe["input_ids"], probe["token_type_ids"], probe["special_tokens_mask"], strict=True
        ):
            if special:
                specials[-1].append(token)
                special_types[-1].append(kind)
            elif not inside:
                segment_types.append(kind)
                specials.append([])
                special_types.append([])
            inside = not special
        if len(segment_types) != segments:
            raise ModelError(
                f"The tokenizer does not set {segments} segments apart with special tokens, so patterns with || "
                "cannot be used with this model."
            )
        return Layout(tuple(map(tuple, specials)), tuple(map(tuple, special_types)), tuple(segment_types))
