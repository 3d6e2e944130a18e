"""Fine-tuning one pattern-verbalizer pair (section 3.1), with auxiliary language modelling (section 3.2).

In: a `ClozeModel` with pretrained weights, labelled rows spliced into the pair's pattern and, for the auxiliary
task, unlabelled ones. Out: the model trained in place, and the course of its loss. A step's labelled and
unlabelled rows share one forward pass; the head reads the cloze slot of the first and the masked tokens of the
second, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from clozify.config.recipe import Finetune, Recipe
from clozify.gpu.cuda_graphs import CapturableStep, pad_last_axis, padded_count, padded_width
from clozify.gpu.packing import pack
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import Batch, EncodedRows, concat_batches
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.prompts.verbalizer import LabelWords
from clozify.training.loop import NO_MONITOR, Monitor, class_weights, cycle_batches, seed_everything, train
from clozify.training.losses import cross_entropy, joint_loss, masked_lm_loss
from clozify.utils.process_group import current_group, zero_loss


@dataclass(frozen=True)
class MaskedTokens:
    """Tokens to be predicted: where they are in a batch, what they were."""

    rows: NDArray[np.int64]  # (masked,)
    positions: NDArray[np.int64]  # (masked,)
    tokens: NDArray[np.int64]  # (masked,)


def mask_tokens(
    batch: Batch, settings: Finetune, tokenizer: PromptTokenizer, rng: np.random.Generator
) -> tuple[Batch, MaskedTokens]:
    """Choose 15% of a batch's tokens; 80% of them become the mask, 10% a random token, 10% stay.

    Never the cloze slot, padding or a special token, unless the recipe asks for the authors' targets.
    """
    ids = batch.input_ids.copy()
    may = batch.attention_mask.astype(bool) & ~tokenizer.is_special[ids]
    if settings.lm_targets == "all":  # the authors' code: padding and the cloze slot too
        may = ~np.isin(ids, tokenizer.boundary_ids)
    rows, positions = np.nonzero(may & (rng.random(ids.shape) < settings.mlm_probability))
    were = ids[rows, positions]
    fate = rng.random(len(rows))
    ids[rows, positions] = np.where(
        fate < 0.8, tokenizer.mask_id, np.where(fate < 0.9, rng.integers(0, len(tokenizer.is_special), len(rows)), were)
    )
    masked = Batch(batch.rows, ids, batch.attention_mask, batch.token_type_ids, batch.mask_positions)
    return masked, MaskedTokens(rows, positions, were)


def finetune(
    model: ClozeModel,
    words: LabelWords,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    unlabeled: EncodedRows | None,
    recipe: Recipe,
    seed: int,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train the model, or its adapter, for one pair; without unlabelled rows by the recipe's `finetune_without_lm`."""
    settings = recipe.member_settings(with_lm=unlabeled is not None)
    rng = seed_everything(seed)
    draw = cycle_batches(len(labeled), settings.rows_per_step, rng)
    help_from = None
    if unlabeled is not None:
        helpers = recipe.finetune.per_gpu_helper_batch_size * settings.gradient_accumulation_steps
        help_from = cycle_batches(len(unlabeled), helpers, rng)
    weights = class_weights(labels, len(words.mean)).to(model.device) if recipe.balance else None

    def drawn() -> tuple[Batch, NDArray[np.int64], Batch | None, MaskedTokens | None]:
        chosen = next(draw)
        truth = labels[chosen].astype(np.int64)
        if unlabeled is None or help_from is None:
            return labeled.batch(chosen), truth, None, None
        width = unlabeled.max_length if recipe.finetune.lm_targets == "all" else None
        masked, targets = mask_tokens(unlabeled.batch(next(help_from), width), recipe.finetune, model.tokenizer, rng)
        return labeled.batch(chosen), truth, masked, targets

    def loss_of_step(_: int) -> Tensor:
        batch, truth, masked, targets = drawn()
        if masked is not None and targets is not None:
            return _joint_loss(model, words, batch, model.tensor(truth), masked, targets, recipe.finetune, weights)
        ours = current_group().local_slice(len(truth))
        if ours.start == ours.stop:
            return zero_loss()
        scores = model.label_scores(model.states_at_mask(batch.slice_rows(ours)), words)
        return len(scores) / len(truth) * cross_entropy(scores, model.tensor(truth[ours]), weights)

    if model.device.type == "cuda" and current_group().size == 1:
        in_line = model.supports_packing and recipe.finetune.lm_targets == "text"
        step = capturable_step(model, words, drawn, recipe.finetune, weights, in_line)
        return train(model.model, step, settings, len(labeled), accelerator, watch)
    return train(model.model, loss_of_step, settings, len(labeled), accelerator, watch)


def capturable_step(
    model: ClozeModel,
    words: LabelWords,
    drawn: Callable[[], tuple[Batch, NDArray[np.int64], Batch | None, MaskedTokens | None]],
    settings: Finetune,
    weights: Tensor | None,
    in_line: bool = False,
) -> CapturableStep:
    """A step in shapes that come again and again: rows padded to a few widths, masked tokens to a few numbers.

    Or the rows lie in one line, padded to a few lengths.
    """
    counts: dict[int, int] = {}

    def arrays() -> dict[str, NDArray[Any]]:
        batch, truth, masked, targets = drawn()
        both = batch if masked is None else concat_batches([batch, masked], model.tokenizer.pad_id)
        rows, positions = np.arange(len(truth)), batch.mask_positions
        if targets is not None:
            rows, positions = (
                np.concatenate([rows, len(truth) + targets.rows]),
                np.concatenate([positions, targets.positions]),
            )
        found: dict[str, NDArray[Any]]
        if not in_line:
            width = padded_width(both.input_ids.shape[1], model.max_length)
            fill = {"input_ids": model.tokenizer.pad_id}
            found = {name: pad_last_axis(getattr(both, name), width, fill.get(name, 0)) for name in model.input_names}
        else:
            packed = pack(both, model.tokenizer.pad_id, pad_length=True)
            found, width = dict(packed.arrays), packed.arrays["input_ids"].shape[1]
            positions = packed.start[rows] + positions
        found |= {"rows": rows, "positions": positions, "truth": truth}
        if targets is None:
            return found
        micro = targets.rows // settings.per_gpu_helper_batch_size
        micro_batches = settings.gradient_accumulation_steps
        # a token's share of the loss: the mean within its micro-batch, then over these; what is padded on has none
        share = 1 / (np.bincount(micro, minlength=micro_batches)[micro] * micro_batches)
        count = padded_count(len(micro), counts, width)
        found |= {
            "rows": pad_last_axis(rows, len(truth) + count),
            "positions": pad_last_axis(positions, len(truth) + count),
        }
        return found | {
            "tokens": pad_last_axis(targets.tokens, count),
            "share": pad_last_axis(share.astype(np.float32), count),
        }

    def loss(inputs: Mapping[str, Tensor]) -> Tensor:
        states = model.states_of(inputs, model.max_length)  # (labelled + masked, hidden)
        labeled_rows = len(inputs["truth"])
        ce = cross_entropy(model.label_scores(states[:labeled_rows], words), inputs["truth"], weights)
        if "tokens" not in inputs:
            return ce
        scores = model.head(states[labeled_rows:])  # (masked, vocabulary)
        each = functional.cross_entropy(scores, inputs["tokens"], reduction="none")
        return joint_loss(ce, (each * inputs["share"]).sum(), settings.alpha)

    return CapturableStep(arrays, loss)


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
    """(1 - alpha) L_CE + alpha L_MLM of one step, in one forward pass; of several processes, this one's part of it."""
    ours, helpers = current_group().local_slice(len(truth)), current_group().local_slice(len(masked.rows))
    share = (ours.stop - ours.start) / len(truth)
    micro = targets.rows // settings.per_gpu_helper_batch_size  # which micro-batch a token belongs to
    counts = np.bincount(micro, minlength=settings.gradient_accumulation_steps)
    here = (targets.rows >= helpers.start) & (targets.rows < helpers.stop)
    both = concat_batches([batch.slice_rows(ours), masked.slice_rows(helpers)], model.tokenizer.pad_id)
    if len(both.rows) == 0:
        return zero_loss()
    labeled_rows = ours.stop - ours.start
    rows = np.concatenate([np.arange(labeled_rows), labeled_rows + targets.rows[here] - helpers.start])
    positions = np.concatenate([batch.mask_positions[ours], targets.positions[here]])
    states = model.states(both, model.tensor(rows), model.tensor(positions))  # (labelled + masked, hidden)
    answers = model.label_scores(states[:labeled_rows], words)
    ce = share * cross_entropy(answers, truth[ours], weights) if labeled_rows else answers.sum()
    scores = model.head(states[labeled_rows:])  # (masked, vocabulary)
    tokens, of_micro = model.tensor(targets.tokens[here]), model.tensor(micro[here])
    mlm = masked_lm_loss(scores, tokens, of_micro, settings.gradient_accumulation_steps, model.tensor(counts))
    return joint_loss(ce, mlm, settings.alpha)
