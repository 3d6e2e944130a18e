"""Paraphrases by the masked language model itself, for UDA and MixText where there is no translation model.

A fraction of a text's tokens is masked and drawn anew from M(w | z); all other characters stay. A token that starts a
word is replaced by one that does, a token inside a word by another such token. Text beyond the model's maximum length
stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Augment
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import Batch

MAX_SCORES = 2**25  # word scores held in memory at a time


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that may replace one another."""

    starts: NDArray[np.bool_]  # by id: whether it starts a word
    usable: NDArray[np.bool_]  # by id: whether it is printable text
    surface: list[str]  # by id: the text of a token

    @staticmethod
    def from_model(model: ClozeModel) -> Vocabulary:
        """Read the vocabulary of a model's tokenizer."""
        tokenizer: Any = model.tokenizer.hf_tokenizer
        pieces = model.tokenizer.to_tokens(range(len(tokenizer)))
        marked = any(piece.startswith(("Ġ", "▁")) for piece in pieces)
        starts = [piece.startswith(("Ġ", "▁")) if marked else not piece.startswith("##") for piece in pieces]
        surface = [
            text.strip().removeprefix("##") for text in tokenizer.batch_decode([[n] for n in range(len(pieces))])
        ]
        usable = np.array(
            [bool(text) and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text for text in surface]
        )
        return Vocabulary(np.array(starts), usable & ~model.tokenizer.is_special, surface)


@torch.inference_mode()
def rewrite(
    model: ClozeModel,
    texts: Sequence[str],
    settings: Augment,
    max_length: int,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """One paraphrase of each text; the same for the same seed, texts and machine."""
    vocabulary, rng = Vocabulary.from_model(model), np.random.default_rng(seed)
    generator = torch.Generator(model.device).manual_seed(seed)
    before, after = (list(ids) for ids in model.tokenizer.special_tokens(1).specials)
    text_length = max(1, min(max_length, model.max_length) - len(before) - len(after))
    encoded = model.tokenizer.encode_with_offsets(texts)
    lengths = np.array([min(text_length, len(ids)) for ids, _ in encoded], dtype=np.int64)
    paraphrases = list(texts)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    done = 0
    with model.scoring():
        while done < len(order):
            width = int(lengths[order[done]]) + len(before) + len(after)
            chosen = order[done : done + max(1, TOKENS_PER_BATCH[model.device.type] // width)]
            rows = [encoded[index][0][: lengths[index]] for index in chosen]
            ids, attention = (
                np.full((len(rows), width), model.tokenizer.pad_id),
                np.zeros((len(rows), width), dtype=np.int64),
            )
            for row, row_ids in enumerate(rows):
                sequence = [*before, *row_ids, *after]
                ids[row, : len(sequence)], attention[row, : len(sequence)] = sequence, 1
            masked_rows, positions = _choose_tokens(rows, vocabulary, settings.mask_share, rng)
            columns = positions + len(before)
            old = ids[masked_rows, columns]
            ids[masked_rows, columns] = model.tokenizer.mask_id
            batch = Batch(np.arange(len(rows)), ids, attention, np.zeros_like(ids), np.zeros(len(rows), dtype=np.int64))
            scores = _masked_scores(model, batch, masked_rows, columns)
            new = _draw_tokens(model, scores, old, vocabulary, settings.temperature, generator)
            for row, index in enumerate(chosen):
                in_row = masked_rows == row
                spans = [encoded[index][1][position] for position in positions[in_row]]
                words = [vocabulary.surface[token] for token in new[in_row]]
                paraphrases[index] = _replace_spans(texts[index], spans, words)
            done += len(chosen)
            advance(len(chosen))
    return paraphrases


def _choose_tokens(
    rows: Sequence[NDArray[np.int64]], vocabulary: Vocabulary, fraction: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows and positions of the tokens to mask: a fraction of each row's, at least one if any is usable."""
    lengths = np.array([len(row) for row in rows])
    row_index = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(len(row_index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys = np.where(vocabulary.usable[np.concatenate(rows)], rng.random(len(row_index)), np.inf)
    order = np.lexsort((keys, row_index))  # each row's tokens by their random keys
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = positions  # within the row
    counts = np.maximum(1, np.round(fraction * lengths))[row_index]
    masked = (rank < counts) & np.isfinite(keys)
    return row_index[masked], positions[masked]


def _masked_scores(
    model: ClozeModel, batch: Batch, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> Iterator[Tensor]:
    """The word scores at the masked tokens, (tokens, vocabulary), in chunks that fit into memory."""
    if not len(rows):
        return
    states = model.states(batch, model.to_device(rows), model.to_device(columns)).to(model.model.dtype)
    for chunk in torch.split(states, _chunk_size(model)):
        yield model.head(chunk)


def _chunk_size(model: ClozeModel) -> int:
    return max(1, MAX_SCORES // model.head.vocabulary)


def _draw_tokens(
    model: ClozeModel,
    scores: Iterator[Tensor],
    old: NDArray[np.int64],
    vocabulary: Vocabulary,
    temperature: float,
    generator: torch.Generator,
) -> NDArray[np.int64]:
    """A token for each masked one, drawn from softmax(scores / temperature) over the tokens that may replace it."""
    if not len(old):
        return old
    starts, usable = model.to_device(vocabulary.starts), model.to_device(vocabulary.usable)
    drawn = []
    for chunk, old_tokens in zip(scores, torch.split(model.to_device(old), _chunk_size(model)), strict=True):
        logits = chunk[:, : len(usable)].float() / temperature  # (tokens, vocabulary)
        eligible = usable & (starts == starts[old_tokens][:, None])
        uniform = torch.rand(logits.shape, generator=generator, device=logits.device).clamp(min=1e-20)
        gumbel = -torch.log(-torch.log(uniform))
        drawn.append((logits + gumbel).masked_fill(~eligible, -torch.inf).argmax(dim=-1))
    return torch.cat(drawn).cpu().numpy()


def _replace_spans(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """The text with each span replaced by a word; white space at the start of a span stays."""
    for (start, stop), word in sorted(zip(spans, words, strict=True), reverse=True):
        lead = len(text[start:stop]) - len(text[start:stop].lstrip())
        text = text[: start + lead] + word + text[stop:]
    return text
