"""Rewriting by the masked language model itself: augmented text where there is no translation model at hand.

In: texts and a `ClozeModel`. Out: each text with a share of its tokens masked and drawn anew from M(w | z), the rest
untouched to the letter. A token that starts a word is replaced by one that does, and one inside a word by another
such. What the model cannot read, beyond its longest row, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.recipe import Augment
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import Batch

NUMBERS = 2**25  # scores of words held at a time


@dataclass(frozen=True)
class Vocabulary:
    """What may stand in a token's place."""

    starts: NDArray[np.bool_]  # by id: whether it starts a word
    usable: NDArray[np.bool_]  # by id: whether it is a piece of text by itself
    surface: list[str]  # by id

    @staticmethod
    def of(model: ClozeModel) -> Vocabulary:
        """Found from the tokenizer's entries and what they decode to."""
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
    """One rewriting of each text; same seed, same texts, same machine: the same rewriting."""
    vocabulary, rng = Vocabulary.of(model), np.random.default_rng(seed)
    generator = torch.Generator(model.device).manual_seed(seed)
    before, after = (list(ids) for ids in model.tokenizer.special_tokens(1).specials)
    room = max(1, min(max_length, model.max_length) - len(before) - len(after))
    encoded = model.tokenizer.encode_with_offsets(texts)
    lengths = np.array([min(room, len(ids)) for ids, _ in encoded], dtype=np.int64)
    written = list(texts)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    done = 0
    with model.scoring():
        while done < len(order):
            most = int(lengths[order[done]]) + len(before) + len(after)
            chosen = order[done : done + max(1, TOKENS_PER_BATCH[model.device.type] // most)]
            rows = [encoded[row][0][: lengths[row]] for row in chosen]
            ids, attention = (
                np.full((len(rows), most), model.tokenizer.pad_id),
                np.zeros((len(rows), most), dtype=np.int64),
            )
            for place, row in enumerate(rows):
                whole = [*before, *row, *after]
                ids[place, : len(whole)], attention[place, : len(whole)] = whole, 1
            row_of, at = _masked(rows, vocabulary, settings.mask_share, rng)
            old = ids[row_of, at + len(before)]
            ids[row_of, at + len(before)] = model.tokenizer.mask_id
            batch = Batch(np.arange(len(rows)), ids, attention, np.zeros_like(ids), np.zeros(len(rows), dtype=np.int64))
            new = _drawn(model, batch, row_of, at + len(before), old, vocabulary, settings.temperature, generator)
            for place, number in enumerate(chosen):
                mine = row_of == place
                spans = [encoded[number][1][token] for token in at[mine]]
                words = [vocabulary.surface[token] for token in new[mine]]
                written[number] = _spliced(texts[number], spans, words)
            done += len(chosen)
            advance(len(chosen))
    return written


def _masked(
    rows: Sequence[NDArray[np.int64]], vocabulary: Vocabulary, share: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which tokens are masked: their rows and their places, at least one in a row that has any to mask."""
    lengths = np.array([len(row) for row in rows])
    row_of = np.repeat(np.arange(len(rows)), lengths)
    at = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    luck = np.where(vocabulary.usable[np.concatenate(rows)], rng.random(len(row_of)), np.inf)
    order = np.lexsort((luck, row_of))  # each row's tokens, the luckiest first
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = at  # within the row
    wanted = np.maximum(1, np.round(share * lengths))[row_of]
    masked = (rank < wanted) & np.isfinite(luck)
    return row_of[masked], at[masked]


def _drawn(
    model: ClozeModel,
    batch: Batch,
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
    old: NDArray[np.int64],
    vocabulary: Vocabulary,
    temperature: float,
    generator: torch.Generator,
) -> NDArray[np.int64]:
    """A token for each masked place, drawn from softmax(scores / temperature) over those that may stand there."""
    if not len(rows):
        return old
    states = model.states(batch, model.to_device(rows), model.to_device(places)).to(model.model.dtype)
    starts, usable = model.to_device(vocabulary.starts), model.to_device(vocabulary.usable)
    drawn, at_once = [], max(1, NUMBERS // model.head.vocabulary)
    for part, was in zip(torch.split(states, at_once), torch.split(model.to_device(old), at_once), strict=True):
        scores = model.head(part)[:, : len(usable)].float() / temperature  # (places, words)
        may = usable & (starts == starts[was][:, None])
        luck = torch.rand(scores.shape, generator=generator, device=scores.device).clamp(min=1e-20)
        drawn.append((scores - torch.log(-torch.log(luck))).masked_fill(~may, -torch.inf).argmax(dim=-1))  # Gumbel
    return torch.cat(drawn).cpu().numpy()


def _spliced(text: str, spans: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """The text with each span's words replaced; white space that a span starts with stays."""
    for (start, stop), word in sorted(zip(spans, words, strict=True), reverse=True):
        lead = len(text[start:stop]) - len(text[start:stop].lstrip())
        text = text[: start + lead] + word + text[stop:]
    return text
