"""Rows x pattern -> token ids: P(x) of the paper (section 3), spliced in token space (appendix C for truncation).

In: each field's ids, tokenised once for all patterns. Out: padded batches of rows of like length. Truncation takes
from the fields, longest first, before the pattern is applied, and never touches the pattern's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.pattern import FILTERS, Mask, Pattern, Segment, Slot
from clozify.config.recipe import Wording
from clozify.data.rows import CHUNK_ROWS
from clozify.errors import TaskError
from clozify.prompts.tokenizer import SPACE, START, PromptTokenizer, RaggedTokens

AS_WRITTEN = Wording()
LIKE_LENGTH = 0.75  # rows at least so long, of the longest, share a forward pass on a CPU
WIDTHS = 8  # a GPU's attention wants a multiple of it


@dataclass(frozen=True)
class FieldInContext:
    """A field as some pattern reads it: filtered, and tokenised as behind this context."""

    slot: Slot
    context: str = START

    def tokenize(self, tokenizer: PromptTokenizer, texts: list[str]) -> RaggedTokens:
        """The ids of this field's texts."""
        if self.slot.filter:
            texts = [FILTERS[self.slot.filter](text) for text in texts]
        chunks = [texts[start : start + CHUNK_ROWS] for start in range(0, max(1, len(texts)), CHUNK_ROWS)]
        return RaggedTokens.concat(*(tokenizer.encode_batch(stretch, self.context) for stretch in chunks))


@dataclass(frozen=True)
class Piece:
    """A stretch of a pattern: its own ids, or a place for a column's."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    column: int | None = None  # index into `Template.columns`


@dataclass(frozen=True)
class Template:
    """A pattern in token space for one tokenizer."""

    pattern: Pattern
    pieces: tuple[Piece, ...]
    fields: tuple[FieldInContext, ...]
    field_segments: tuple[int, ...]  # each column's segment
    wording: Wording
    fixed_tokens: int  # tokens that are not a field's: words, mask, specials
    left_of_mask: str  # the literal that a word in the mask's place is written behind
    right_of_mask: str  # the literal that follows it
    mask_starts_segment: bool  # nothing but that literal comes before the mask in its segment
    mask_id: int
    pad_id: int


def compile_pattern(pattern: Pattern, tokenizer: PromptTokenizer, wording: Wording = AS_WRITTEN) -> Template:
    """Tokenise a pattern's own words once, each where it stands."""
    return compile_segments(pattern, pattern.segments, tokenizer, wording)


def compile_segments(
    pattern: Pattern, segments: Sequence[Segment], tokenizer: PromptTokenizer, wording: Wording = AS_WRITTEN
) -> Template:
    """Segments in token space, with a mask or, for a classifier's input, without; `pattern` names them in messages."""
    layout = tokenizer.special_tokens(len(segments))
    pieces = [Piece(layout.specials[0], layout.special_types[0])]
    columns: list[FieldInContext] = []
    field_segments: list[int] = []
    spaced = wording.spacing == "between-parts"
    left_of_mask, right_of_mask, starts_segment = "", "", True
    for number, segment in enumerate(segments):
        kind = layout.segment_types[number]
        left, at_start = "", True  # the literal since the last slot or mask; whether none came before it
        for place, part in enumerate(segment):
            if isinstance(part, str):
                text = part.strip() if spaced else part.rstrip()
                ids: list[int] = []
                if text:
                    alone = at_start and not spaced
                    ids = tokenizer.encode(text) if alone else tokenizer.encode_after_slot(" " if spaced else "", text)
                pieces.append(Piece(tuple(ids), (kind,) * len(ids)))
                left = part
                continue
            if isinstance(part, Mask):
                pieces.append(Piece((tokenizer.mask_id,), (kind,)))
                left_of_mask, starts_segment = left, at_start
                following = segment[place + 1] if place + 1 < len(segment) else ""
                right_of_mask = following if isinstance(following, str) else ""
            else:
                context = tokenizer.shared_context(SPACE if spaced else left if at_start or left else "x")
                pieces.append(Piece((), (kind,), len(columns)))
                columns.append(FieldInContext(part, context))
                field_segments.append(number)
            left, at_start = "", False
        pieces.append(Piece(layout.specials[number + 1], layout.special_types[number + 1]))
    own = sum(len(piece.ids) for piece in pieces)
    return Template(
        pattern,
        tuple(pieces),
        tuple(columns),
        tuple(field_segments),
        wording,
        own,
        left_of_mask,
        right_of_mask,
        starts_segment,
        tokenizer.mask_id,
        tokenizer.pad_id,
    )


def longest_first(lengths: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """How many tokens each field keeps so that a row's sum fits the budget: (rows, fields) -> (rows, fields).

    The same as taking one token at a time from the longest field (from the later one of equals), by arithmetic:
    short fields stay whole, the others share what is left.
    """
    keep = lengths.copy()
    over = np.flatnonzero(lengths.sum(axis=1) > budget)
    if not len(over) or not lengths.shape[1]:
        return keep
    order = np.argsort(lengths[over], axis=1, kind="stable")  # (over, fields), shortest first
    left = np.full(len(over), budget, dtype=np.int64)
    level = np.full(len(over), -1, dtype=np.int64)  # the length that the cut fields keep, once known
    fields = lengths.shape[1]
    cut = np.zeros((len(over), fields), dtype=bool)
    rows = np.arange(len(over))
    for place in range(fields):
        field = order[:, place]
        length = lengths[over, field]
        share = left // (fields - place)
        starts_cut = (level < 0) & (length > share)
        level[starts_cut] = share[starts_cut]
        cut[rows, field] = level >= 0
        left -= np.where(level < 0, length, 0)
    kept = np.where(cut, level[:, None], lengths[over])
    spare = left - np.where(cut, level[:, None], 0).sum(axis=1)  # one each to the first cut fields
    kept += cut & (np.cumsum(cut, axis=1) <= spare[:, None])
    keep[over] = kept
    return keep


def longest_segment(lengths: NDArray[np.int64], budget: int, field_segments: tuple[int, ...]) -> NDArray[np.int64]:
    """The same with tokens taken from the segment whose fields are longer, off the end of its last field first."""
    of_segment = np.zeros((len(lengths), 2), dtype=np.int64)
    for field, segment in enumerate(field_segments):
        of_segment[:, segment] += lengths[:, field]
    left = longest_first(of_segment, budget)
    keep = np.zeros_like(lengths)
    for field, segment in enumerate(field_segments):
        keep[:, field] = np.minimum(lengths[:, field], left[:, segment])
        left[:, segment] -= keep[:, field]
    return keep


@dataclass(frozen=True)
class Batch:
    """Padded rows for the model; `rows` says which rows of the encoded set they are."""

    rows: NDArray[np.int64]  # (batch,)
    input_ids: NDArray[np.int64]  # (batch, length)
    attention_mask: NDArray[np.int64]  # (batch, length)
    token_type_ids: NDArray[np.int64]  # (batch, length)
    mask_positions: NDArray[np.int64]  # (batch,)

    def slice_rows(self, of: slice) -> Batch:
        """Some of the rows, as wide as all of them."""
        return Batch(
            self.rows[of], self.input_ids[of], self.attention_mask[of], self.token_type_ids[of], self.mask_positions[of]
        )


def group_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Groups of rows that are about equally long."""
    order = np.argsort(-lengths, kind="stable")
    falling = -lengths[order]
    groups, start = [], 0
    while start < len(order):
        stop = int(np.searchsorted(falling, LIKE_LENGTH * falling[start], side="right"))
        groups.append(order[start:stop])
        start = stop
    return groups


def forward_batches(
    batch: Batch, lengths: NDArray[np.int64], device: str, pad_id: int, typed: bool
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]]:
    """How a batch goes through a model: the rows of each forward pass, and its inputs.

    On a CPU padding costs as much as text, so rows of like length run by themselves. A GPU takes all rows at once, with
    a width that its kernels like, or without a mask where there is no padding.
    """
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if typed else [])
    if device != "cpu" and batch.attention_mask.all():
        names.remove("attention_mask")
        yield np.arange(len(lengths)), {name: getattr(batch, name) for name in names}
        return
    for group in group_by_length(lengths) if device == "cpu" else [np.arange(len(lengths))]:
        width = int(lengths[group].max())
        width = width if device == "cpu" else -(-width // WIDTHS) * WIDTHS
        inputs = {}
        for name in names:
            inputs[name] = np.full((len(group), width), pad_id if name == "input_ids" else 0, dtype=np.int64)
            part = getattr(batch, name)[group, :width]
            inputs[name][:, : part.shape[1]] = part
        yield group, inputs


def concat_batches(batches: Sequence[Batch], pad_id: int) -> Batch:
    """Batches one below the other, padded to the widest; `rows` are numbered anew from 0."""
    width = max(batch.input_ids.shape[1] for batch in batches)

    def stacked(name: str, fill: int = 0) -> NDArray[np.int64]:
        stack = np.full((sum(len(batch.rows) for batch in batches), width), fill, dtype=np.int64)
        start = 0
        for batch in batches:
            part = getattr(batch, name)
            stack[start : start + len(part), : part.shape[1]] = part
            start += len(part)
        return stack

    return Batch(
        np.arange(sum(len(batch.rows) for batch in batches)),
        stacked("input_ids", pad_id),
        stacked("attention_mask"),
        stacked("token_type_ids"),
        np.concatenate([batch.mask_positions for batch in batches]),
    )


class EncodedRows:
    """Rows spliced into one pattern: what each row keeps and its ids are worked out a batch at a time."""

    def __init__(self, template: Template, columns: Mapping[FieldInContext, RaggedTokens], max_length: int) -> None:
        if template.fixed_tokens >= max_length:
            raise TaskError(
                f"The pattern '{template.pattern}' takes {template.fixed_tokens} tokens by itself, which leaves none "
                f"for text within {max_length}; shorten the pattern or raise max_seq_length."
            )
        self.template = template
        self.max_length = max_length
        self._ragged = [columns[column] for column in template.fields]

    def __len__(self) -> int:
        return len(self._ragged[0])

    def _kept(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many tokens these rows' fields keep, and how many they have: (rows, slots) each."""
        full = np.stack([ragged.row_lengths(rows) for ragged in self._ragged], axis=1)
        budget = self.max_length - self.template.fixed_tokens
        if self.template.wording.truncation == "longest-segment":
            return longest_segment(full, budget, self.template.field_segments), full
        return longest_first(full, budget), full

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Each row's tokens: (rows,)."""
        return self._of_all(lambda keep, full: self.template.fixed_tokens + keep.sum(axis=1), np.int64)

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a row had to be shortened: (rows,)."""
        return self._of_all(lambda keep, full: keep.sum(axis=1) < full.sum(axis=1), np.bool_)

    def _of_all(self, what: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]], kind: Any) -> NDArray[Any]:
        found = np.empty(len(self), dtype=kind)
        for start in range(0, len(self), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(self))
            found[start:stop] = what(*self._kept(np.arange(start, stop)))
        return found

    def batch(self, rows: NDArray[np.int64], width: int | None = None) -> Batch:
        """These rows, padded to the longest of them, or to a width."""
        keep, _ = self._kept(rows)
        count, width = len(rows), width or self.template.fixed_tokens + int(keep.sum(axis=1).max())
        input_ids = np.full((count, width), self.template.pad_id, dtype=np.int64)
        types = np.zeros((count, width), dtype=np.int64)
        mask_positions = np.zeros(count, dtype=np.int64)
        at = np.zeros(count, dtype=np.int64)  # where each row's next token goes
        row = np.arange(count)
        for piece in self.template.pieces:
            if piece.column is None:
                for token, kind in zip(piece.ids, piece.types, strict=True):
                    input_ids[row, at], types[row, at] = token, kind
                    if token == self.template.mask_id:
                        mask_positions = at.copy()
                    at += 1
                continue
            ragged, kept = self._ragged[piece.column], keep[:, piece.column]
            into = np.repeat(row, kept)
            step = np.arange(len(into)) - np.repeat(np.cumsum(kept) - kept, kept)  # 0, 1, 2, ... in each row
            place = np.repeat(at, kept) + step
            input_ids[into, place] = ragged.ids[np.repeat(ragged.offsets[rows], kept) + step]
            types[into, place] = piece.types[0]
            at += kept
        attention = (np.arange(width) < at[:, None]).astype(np.int64)
        return Batch(rows, input_ids, attention, types, mask_positions)

    def batches(self, token_budget: int) -> Iterator[Batch]:
        """All rows, those of like length together, at most `token_budget` tokens (padding included) a batch."""
        order = np.argsort(-self.lengths, kind="stable")
        lengths = self.lengths[order]
        start = 0
        while start < len(order):
            count = max(1, token_budget // int(lengths[start]))
            yield self.batch(order[start : start + count])
            start += count
