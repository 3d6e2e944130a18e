"""Applies patterns to rows in token space: P(x) of the paper (section 3) as padded batches of token ids.

Each field is tokenised once for all patterns, as it would be where it stands in them (`tokenizer.py`). A pattern is
compiled to a `Template`, a list of fixed tokens and fields; `EncodedRows` inserts the rows' tokens into it, truncated
to the maximum length (`truncation.py`), one batch at a time.
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
from clozify.prompts.truncation import truncate_longest_field, truncate_longest_segment

AS_WRITTEN = Wording()
TOKENS_PER_BATCH = {"cpu": 2_048, "cuda": 65_536}  # that rows are scored in, at most
SIMILAR_LENGTH = 0.75  # on a CPU, rows share a forward pass if they have this fraction of the longest one's tokens
WIDTH_MULTIPLE = 8  # GPU attention kernels are fastest with widths that are multiples of it


@dataclass(frozen=True)
class FieldInContext:
    """A field as a pattern uses it: its filter, and the text before it, which decides how its first word is tokenised.

    Patterns that use a field in the same way share its tokens: the tokenised rows are a dict by `FieldInContext`.
    """

    slot: Slot
    context: str = START

    def tokenize(self, tokenizer: PromptTokenizer, texts: list[str]) -> RaggedTokens:
        """The token ids of this field's texts."""
        if self.slot.filter:
            texts = [FILTERS[self.slot.filter](text) for text in texts]
        chunks = [texts[start : start + CHUNK_ROWS] for start in range(0, max(1, len(texts)), CHUNK_ROWS)]
        return RaggedTokens.concat(*(tokenizer.encode_batch(chunk, self.context) for chunk in chunks))


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a template: fixed ones, or those of a field."""

    ids: tuple[int, ...]  # empty for a field
    types: tuple[int, ...]  # token types, one for each id; for a field, the type of all its tokens
    field_index: int | None = None  # into `Template.fields`


@dataclass(frozen=True)
class Template:
    """A pattern in token space for one tokenizer."""

    pattern: Pattern
    pieces: tuple[Piece, ...]
    fields: tuple[FieldInContext, ...]
    field_segments: tuple[int, ...]  # the segment of each field
    wording: Wording
    fixed_tokens: int  # number of tokens that belong to no field: the pattern's words, mask, special tokens
    left_of_mask: str  # the literal text directly before the mask
    right_of_mask: str  # the literal text directly after it
    mask_starts_segment: bool  # nothing but `left_of_mask` comes before the mask in its segment
    mask_id: int
    pad_id: int
    masks: int = 1  # consecutive mask tokens in place of the mask
    extra_tokens: int = 0  # of the fixed ones, those around the pattern, which do not count as a row's
    max_tokens: int | None = None  # that the model reads, where there are extra ones


def compile_pattern(
    pattern: Pattern, tokenizer: PromptTokenizer, wording: Wording = AS_WRITTEN, masks: int = 1
) -> Template:
    """The template of a pattern: its own words tokenised once, each as it would be where it stands."""
    return compile_segments(pattern, pattern.segments, tokenizer, wording, masks)


def compile_segments(
    pattern: Pattern,
    segments: Sequence[Segment],
    tokenizer: PromptTokenizer,
    wording: Wording = AS_WRITTEN,
    masks: int = 1,
) -> Template:
    """The template of segments with a mask or, for a classifier's input, without; `pattern` is for error messages."""
    layout = tokenizer.special_tokens(len(segments))
    pieces = [Piece(layout.specials[0], layout.special_types[0])]
    fields: list[FieldInContext] = []
    field_segments: list[int] = []
    spaced = wording.spacing == "between-parts"
    left_of_mask, right_of_mask, mask_starts_segment = "", "", True
    for segment_index, segment in enumerate(segments):
        token_type = layout.segment_types[segment_index]
        left, at_start = "", True  # the literal since the last field or mask; whether neither came so far
        for index, part in enumerate(segment):
            if isinstance(part, str):
                ids = _literal_ids(part, at_start, spaced, tokenizer)
                pieces.append(Piece(tuple(ids), (token_type,) * len(ids)))
                left = part
                continue
            if isinstance(part, Mask):
                pieces.append(Piece((tokenizer.mask_id,) * masks, (token_type,) * masks))
                left_of_mask, mask_starts_segment = left, at_start
                following = segment[index + 1] if index + 1 < len(segment) else ""
                right_of_mask = following if isinstance(following, str) else ""
            else:
                context = tokenizer.shared_context(SPACE if spaced else left if at_start or left else "x")
                pieces.append(Piece((), (token_type,), len(fields)))
                fields.append(FieldInContext(part, context))
                field_segments.append(segment_index)
            left, at_start = "", False
        pieces.append(Piece(layout.specials[segment_index + 1], layout.special_types[segment_index + 1]))
    return Template(
        pattern=pattern,
        pieces=tuple(pieces),
        fields=tuple(fields),
        field_segments=tuple(field_segments),
        wording=wording,
        fixed_tokens=sum(len(piece.ids) for piece in pieces),
        left_of_mask=left_of_mask,
        right_of_mask=right_of_mask,
        mask_starts_segment=mask_starts_segment,
        mask_id=tokenizer.mask_id,
        pad_id=tokenizer.pad_id,
        masks=masks,
    )


def _literal_ids(literal: str, at_start: bool, spaced: bool, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a pattern's literal text at the start of a segment, or after a field or the mask."""
    text = literal.strip() if spaced else literal.rstrip()  # a final space belongs to the next word's tokens
    if not text:
        return []
    if at_start and not spaced:
        return tokenizer.encode(text)
    return tokenizer.encode_after_slot(" " if spaced else "", text)


@dataclass(frozen=True)
class Batch:
    """Padded inputs of a model."""

    rows: NDArray[np.int64]  # (batch,): indices into the encoded rows
    input_ids: NDArray[np.int64]  # (batch, width)
    attention_mask: NDArray[np.int64]  # (batch, width)
    token_type_ids: NDArray[np.int64]  # (batch, width)
    mask_positions: NDArray[np.int64]  # (batch,): the column of each row's mask token, or of the first of several
    masks: int = 1  # consecutive mask tokens in each row

    def all_masks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows and columns of all mask tokens, row by row: (batch * masks,) each."""
        positions = self.mask_positions[:, None] + np.arange(self.masks)
        return np.repeat(np.arange(len(self.rows)), self.masks), positions.ravel()

    def slice_rows(self, rows: slice) -> Batch:
        """Some of the rows, with the width of all."""
        return Batch(
            self.rows[rows],
            self.input_ids[rows],
            self.attention_mask[rows],
            self.token_type_ids[rows],
            self.mask_positions[rows],
            self.masks,
        )


def group_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Groups of row indices, longest rows first; a row has at least `SIMILAR_LENGTH` of its group's longest."""
    order = np.argsort(-lengths, kind="stable")
    negated = -lengths[order]  # ascending, as searchsorted needs
    groups, start = [], 0
    while start < len(order):
        stop = int(np.searchsorted(negated, SIMILAR_LENGTH * negated[start], side="right"))
        groups.append(order[start:stop])
        start = stop
    return groups


def forward_batches(
    batch: Batch, lengths: NDArray[np.int64], grouped: bool, pad_id: int, token_types: bool
) -> Iterator[tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]]:
    """Splits a batch into forward passes: yields the indices of each pass's rows (in the batch), and its inputs.

    `grouped`, as on a CPU, where padding costs as much as text: only rows of similar length share a pass. Otherwise
    there is one pass, padded to a multiple of `WIDTH_MULTIPLE`, or without an attention mask if no row is padded.
    """
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if token_types else [])
    all_rows = np.arange(len(lengths))
    if not grouped and batch.attention_mask.all():
        names.remove("attention_mask")
        yield all_rows, {name: getattr(batch, name) for name in names}
        return
    for group in group_by_length(lengths) if grouped else [all_rows]:
        width = int(lengths[group].max())
        width = width if grouped else -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        inputs = {}
        for name in names:
            inputs[name] = np.full((len(group), width), pad_id if name == "input_ids" else 0, dtype=np.int64)
            values = getattr(batch, name)[group, :width]
            inputs[name][:, : values.shape[1]] = values
        yield group, inputs


def concat_batches(batches: Sequence[Batch], pad_id: int) -> Batch:
    """All rows of the batches, padded to the widest; `rows` are numbered from 0."""
    count = sum(len(batch.rows) for batch in batches)
    width = max(batch.input_ids.shape[1] for batch in batches)

    def concat(name: str, fill: int = 0) -> NDArray[np.int64]:
        result = np.full((count, width), fill, dtype=np.int64)
        start = 0
        for batch in batches:
            values = getattr(batch, name)
            result[start : start + len(values), : values.shape[1]] = values
            start += len(values)
        return result

    return Batch(
        np.arange(count),
        concat("input_ids", pad_id),
        concat("attention_mask"),
        concat("token_type_ids"),
        np.concatenate([batch.mask_positions for batch in batches]),
    )


class EncodedRows:
    """Rows in one pattern; truncation and token ids are computed when a batch is asked for."""

    def __init__(
        self, template: Template, tokenized_fields: Mapping[FieldInContext, RaggedTokens], max_length: int
    ) -> None:
        if template.extra_tokens:
            max_length += template.extra_tokens
            max_length = max_length if template.max_tokens is None else min(max_length, template.max_tokens)
        if template.fixed_tokens >= max_length:
            masks, word = "", ""
            if template.masks > 1:
                masks, word = f", {template.masks} of them masks for the longest word", " or that word,"
            raise TaskError(
                f"The pattern '{template.pattern}' takes {template.fixed_tokens} tokens by itself{masks}, which leaves "
                f"none for text within {max_length}; shorten the pattern{word} or raise max_seq_length."
            )
        self.template = template
        self.max_length = max_length
        self._field_tokens = [tokenized_fields[field] for field in template.fields]

    def __len__(self) -> int:
        return len(self._field_tokens[0])

    def kept_lengths(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of tokens that the fields of these rows keep, and those that they have: (rows, fields) each."""
        full = np.stack([tokens.row_lengths(rows) for tokens in self._field_tokens], axis=1)
        budget = self.max_length - self.template.fixed_tokens
        if self.template.wording.truncation == "longest-segment":
            return truncate_longest_segment(full, budget, self.template.field_segments), full
        return truncate_longest_field(full, budget), full

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens of each row: (rows,)."""
        return self._map_chunks(lambda kept, full: self.template.fixed_tokens + kept.sum(axis=1), np.int64)

    @cached_property
    def lost_tokens(self) -> NDArray[np.int64]:
        """The number of tokens that each row's fields lose: (rows,)."""
        return self._map_chunks(lambda kept, full: full.sum(axis=1) - kept.sum(axis=1), np.int64)

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a row loses tokens: (rows,)."""
        return self.lost_tokens > 0

    def _map_chunks(
        self, function: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]], dtype: Any
    ) -> NDArray[Any]:
        """`function(kept, full)` of all rows' lengths, computed a chunk of rows at a time: (rows,)."""
        result = np.empty(len(self), dtype=dtype)
        for start in range(0, len(self), CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(self))
            result[start:stop] = function(*self.kept_lengths(np.arange(start, stop)))
        return result

    def batch(self, rows: NDArray[np.int64], width: int | None = None) -> Batch:
        """These rows, padded to the longest of them, or to a width."""
        kept, _ = self.kept_lengths(rows)  # (rows, fields)
        count, width = len(rows), width or self.template.fixed_tokens + int(kept.sum(axis=1).max())
        input_ids = np.full((count, width), self.template.pad_id, dtype=np.int64)
        token_type_ids = np.zeros((count, width), dtype=np.int64)
        mask_positions = np.zeros(count, dtype=np.int64)
        position = np.zeros(count, dtype=np.int64)  # of the next token in each row
        batch_rows = np.arange(count)
        for piece in self.template.pieces:
            if piece.field_index is None:
                if self.template.mask_id in piece.ids:
                    mask_positions = position + piece.ids.index(self.template.mask_id)
                for token, token_type in zip(piece.ids, piece.types, strict=True):
                    input_ids[batch_rows, position], token_type_ids[batch_rows, position] = token, token_type
                    position += 1
                continue
            tokens, lengths = self._field_tokens[piece.field_index], kept[:, piece.field_index]
            # All tokens of the field at once: `target` is each token's row, `step` its index 0, 1, 2, ... in the field.
            target = np.repeat(batch_rows, lengths)
            step = np.arange(len(target)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            columns = np.repeat(position, lengths) + step
            input_ids[target, columns] = tokens.ids[np.repeat(tokens.offsets[rows], lengths) + step]
            token_type_ids[target, columns] = piece.types[0]
            position += lengths
        attention_mask = (np.arange(width) < position[:, None]).astype(np.int64)
        return Batch(rows, input_ids, attention_mask, token_type_ids, mask_positions, self.template.masks)

    def batches(self, token_budget: int) -> Iterator[Batch]:
        """All rows, sorted by length, in batches of at most `token_budget` tokens, padding included."""
        order = np.argsort(-self.lengths, kind="stable")
        lengths = self.lengths[order]
        start = 0
        while start < len(order):
            count = max(1, token_budget // int(lengths[start]))
            yield self.batch(order[start : start + count])
            start += count
