"""Scores of words of several tokens, their masks filled one after the other (Schick and Schuetze, 2021, section 3.1).

A word of n tokens is scored at n masks. The token with the highest probability at its mask is filled in, and the others
are predicted again with it in place, until all are there. s(l | x) is the mean of the tokens' log-probabilities, over
several words the mean of that: the authors' product of probabilities would favour short words. There is a forward
pass for every token of every label; training scores all masks in one pass (`ClozeModel.label_scores`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import Batch


def token_by_token_scores(model: ClozeModel, tokens: Mapping[str, Mapping[str, list[int]]], batch: Batch) -> Tensor:
    """The scores of a batch whose rows have a mask for every token of the longest word: (batch, labels).

    `tokens` are those of `label_tokens`: label -> word -> ids.
    """
    labels = []
    for words in tokens.values():
        scores = [_word_scores(model, keep_masks(batch, len(ids)), ids) for ids in words.values()]
        labels.append(torch.stack(scores).mean(dim=0))
    return torch.stack(labels, dim=1)


def keep_masks(batch: Batch, count: int) -> Batch:
    """The batch with the first `count` of each row's masks."""
    width = batch.input_ids.shape[1]
    columns, first = np.arange(width), batch.mask_positions[:, None]
    keep = (columns < first + count) | (columns >= first + batch.masks)  # (batch, width)

    def take(array: NDArray[np.int64]) -> NDArray[np.int64]:
        return array[keep].reshape(len(array), width - batch.masks + count)

    return replace(
        batch,
        input_ids=take(batch.input_ids),
        attention_mask=take(batch.attention_mask),
        token_type_ids=take(batch.token_type_ids),
        masks=count,
    )


def _word_scores(model: ClozeModel, batch: Batch, tokens: list[int]) -> Tensor:
    """The mean log-probability of a word's tokens, filled in from the most to the least probable: (batch,)."""
    count = len(batch.rows)
    rows, ids = torch.arange(count, device=model.device), model.to_device(np.array(tokens, dtype=np.int64))
    total = torch.zeros(count, device=model.device)
    open_masks = torch.ones(count, len(tokens), dtype=torch.bool, device=model.device)
    for _ in tokens:
        states = model.states_at_mask(batch).reshape(count * len(tokens), -1).to(model.dtype)
        log_probabilities = torch.log_softmax(model.head(states), dim=-1).view(count, len(tokens), -1)
        of_tokens = log_probabilities[:, torch.arange(len(tokens), device=model.device), ids]  # (batch, tokens)
        best, chosen = of_tokens.masked_fill(~open_masks, -torch.inf).max(dim=1)
        total += best
        open_masks[rows, chosen] = False
        filled = batch.input_ids.copy()
        filled[np.arange(count), batch.mask_positions + chosen.cpu().numpy()] = ids[chosen].cpu().numpy()
        batch = replace(batch, input_ids=filled)
    return total / len(tokens)
