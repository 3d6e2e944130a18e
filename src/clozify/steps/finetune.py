"""Fine-tuning one pattern-verbalizer pair (section 3.1), with auxiliary language modelling (section 3.2).

In: a `ClozeModel` with pretrained weights, labelled rows spliced into the pair's pattern and, for the auxiliary
task, unlabelled ones. Out: the model trained in place, and the course of its loss. A step's labelled and
unlabelled rows share one forward pass; the head reads the cloze slot of the first and the masked tokens of the
second, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozify.cloze import ClozeModel
from clozify.encode import Batch, Encoded, join
from clozify.losses import cross_entropy, joint, masked_lm
from clozify.recipe import Finetune, Recipe
from clozify.tokens import Tokens
from clozify.training import UNWATCHED, Watch, balancing, endless, seed_everything, train
from clozify.verbalize import LabelWords


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens to be predicted: where they are in a batch, what they were."""

    rows: NDArray[np.int64]  # (masked,)
    positions: NDArray[np.int64]  # (masked,)
    tokens: NDArray[np.int64]  # (masked,)


def mask_tokens(
    batch: Batch, settings: Finetune, tokens: Tokens, chance: np.random.Generator
) -> tuple[Batch, MaskedTokens]:
    """Choose 15% of a batch's tokens; 80% of them become the mask, 10% a random token, 10% stay.

    Never the cloze slot, padding or a special token, unless the recipe asks for the authors' targets.
    """
    ids = batch.input_ids.copy()
    may = batch.attention_mask.astype(bool) & ~tokens.special[ids]
    if settings.lm_targets == "all":  # the authors' code: padding and the cloze slot too
        may = ~np.isin(ids, tokens.ends)
    rows, positions = np.nonzero(may & (chance.random(ids.shape) < settings.mlm_probability))
    were = ids[rows, positions]
    fate = chance.random(len(rows))
    ids[rows, positions] = np.where(
        fate < 0.8, tokens.mask_id, np.where(fate < 0.9, chance.integers(0, len(tokens.special), len(rows)), were)
    )
    masked = Batch(batch.rows, ids, batch.attention_mask, batch.token_type_ids, batch.mask_at)
    return masked, MaskedTokens(rows, positions, were)


def finetune(
    model: ClozeModel,
    words: LabelWords,
    labeled: Encoded,
    labels: NDArray[np.int16],
    unlabeled: Encoded | None,
    recipe: Recipe,
    seed: int,
    accelerator: Any,
    watch: Watch = UNWATCHED,
) -> list[float]:
    """Train the model for one pair; without unlabelled rows it is the recipe's `finetune_without_lm`."""
    settings = recipe.finetune if unlabeled is not None else recipe.finetune_without_lm
    chance = seed_everything(seed)
    draw = endless(len(labeled), settings.rows_a_step, chance)
    help_from = None
    if unlabeled is not None:
        helpers = recipe.finetune.per_gpu_helper_batch_size * settings.gradient_accumulation_steps
        help_from = endless(len(unlabeled), helpers, chance)
    weights = balancing(labels, len(words.mean)).to(model.device) if recipe.balance else None

    def loss_of_step(_: int) -> Tensor:
        chosen = next(draw)
        truth = model.tensor(labels[chosen].astype(np.int64))
        batch = labeled.batch(chosen)
        if unlabeled is None or help_from is None:
            return cross_entropy(model.label_scores(model.states_at_mask(batch), words), truth, weights)
        drawn = unlabeled.batch(next(help_from), unlabeled.max_length if recipe.finetune.lm_targets == "all" else None)
        masked, targets = mask_tokens(drawn, recipe.finetune, model.tokens, chance)
        return _joint_loss(model, words, batch, truth, masked, targets, recipe.finetune, weights)

    return train(model.model, loss_of_step, settings, len(labeled), accelerator, watch)


def _joint_loss(
    model: ClozeModel,
    words: LabelWords,
    batch: Batch,
    truth: Tensor,
    masked: Batch,
    targets: MaskedTokens,
    settings: Finetune,
    weights: Tensor | None,
) -> Tensor:
    """(1 - alpha) L_CE + alpha L_MLM of one step, in one forward pass."""
    labeled_rows = len(batch.rows)
    both = join([batch, masked], model.tokens.pad_id)
    rows = np.concatenate([np.arange(labeled_rows), labeled_rows + targets.rows])
    positions = np.concatenate([batch.mask_at, targets.positions])
    states = model.states(both, model.tensor(rows), model.tensor(positions))  # (labelled + masked, hidden)
    ce = cross_entropy(model.label_scores(states[:labeled_rows], words), truth, weights)
    micro = model.tensor(targets.rows // settings.per_gpu_helper_batch_size)  # which micro-batch a token belongs to
    scores = model.head(states[labeled_rows:])  # (masked, vocabulary)
    mlm = masked_lm(scores, model.tensor(targets.tokens), micro, settings.gradient_accumulation_steps)
    return joint(ce, mlm, settings.alpha)
