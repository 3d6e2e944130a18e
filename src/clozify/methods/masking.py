"""Masks tokens for the masked-LM loss: in the auxiliary task (section 3.2) and in in-domain pretraining (section 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clozify.prompts.encode import Batch
from clozify.prompts.tokenizer import PromptTokenizer

MASKED, RANDOM = 0.8, 0.1  # fractions of the chosen tokens that become the mask, or a random token; the others stay


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens to predict: their rows and positions in a batch, and their original ids."""

    rows: NDArray[np.int64]  # (masked,)
    positions: NDArray[np.int64]  # (masked,)
    tokens: NDArray[np.int64]  # (masked,)


def mask_tokens(
    batch: Batch, tokenizer: PromptTokenizer, rng: np.random.Generator, probability: float, targets: str = "text"
) -> tuple[Batch, MaskedTokens]:
    """Choose tokens of a batch to predict; 80% of them become the mask, 10% a random token, 10% stay as they are.

    With the targets "text", special tokens, padding and the cloze slot are never chosen; with "all", as in the authors'
    code, only the tokens at a segment's ends are not.
    """
    ids = batch.input_ids.copy()
    if targets == "all":
        eligible = ~np.isin(ids, tokenizer.boundary_ids)
    else:
        eligible = batch.attention_mask.astype(bool) & ~tokenizer.is_special[ids]
    rows, positions = np.nonzero(eligible & (rng.random(ids.shape) < probability))
    original = ids[rows, positions]
    draw = rng.random(len(rows))
    random_ids = rng.integers(0, len(tokenizer.is_special), len(rows))
    ids[rows, positions] = np.where(
        draw < MASKED, tokenizer.mask_id, np.where(draw < MASKED + RANDOM, random_ids, original)
    )
    return replace(batch, input_ids=ids), MaskedTokens(rows, positions, original)
