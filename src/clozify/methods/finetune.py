"""Fine-tuning of one pattern-verbalizer pair (section 3.1), with auxiliary language modelling (section 3.2).

L = (1 - alpha) L_CE + alpha L_MLM. With several labels a row, L_CE is a binary cross-entropy. A step's labelled and
unlabelled rows share one forward pass; the head reads the states at the cloze slots of the labelled rows and at the
masked tokens of the unlabelled ones, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import Finetune, MemberTraining
from clozify.gpu.cuda_graphs import CapturableStep, pad_last_axis, padded_count
from clozify.methods.masking import MaskedTokens, mask_tokens
from clozify.models.cloze import ClozeModel, mean_over_masks
from clozify.models.generative import GenerativeModel
from clozify.models.language_model import LanguageModel
from clozify.prompts.encode import Batch, EncodedRows, concat_batches
from clozify.prompts.sequences import LabelSequences, as_sequences
from clozify.prompts.verbalizer import LabelWords
from clozify.training.loop import TrainingSetup, balanced_batches, class_weights, cycle_batches, train
from clozify.training.losses import contrastive_loss, joint_loss, label_loss, label_targets, masked_lm_loss
from clozify.utils.process_group import current_group, zero_loss


@dataclass(frozen=True)
class StepRows:
    """The rows of one step: labelled ones and, for the auxiliary task, unlabelled ones in which tokens are masked."""

    labeled: Batch
    labels: NDArray[Any]  # indices, (labelled,), or with several labels a row 0 and 1, (labelled, labels)
    masked: Batch | None = None
    targets: MaskedTokens | None = None

    def batch(self, pad_id: int) -> Batch:
        """The labelled rows, then the masked ones."""
        return self.labeled if self.masked is None else concat_batches([self.labeled, self.masked], pad_id)

    def read_positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows and columns of `batch` whose states are read: all masks, then all masked tokens."""
        rows, positions = self.labeled.all_masks()
        if self.targets is None:
            return rows, positions
        rows = np.concatenate([rows, len(self.labels) + self.targets.rows])
        return rows, np.concatenate([positions, self.targets.positions])


def finetune(
    model: LanguageModel,
    words: LabelWords,
    labeled: EncodedRows,
    labels: NDArray[Any],
    unlabeled: EncodedRows | None,
    setup: TrainingSetup,
) -> list[float]:
    """Train the model, or its adapter, in place for one pair; returns the losses.

    With unlabelled rows, for the auxiliary task, the setup's settings are a `Finetune` section.
    """
    settings = setup.settings
    assert isinstance(settings, MemberTraining)
    if isinstance(model, GenerativeModel):
        return _finetune_generative(model, as_sequences(words), labeled, labels, setup)
    rates = dict[nn.Module, float]()
    if settings.label_learning_rate is not None and not model.has_adapter:
        rates[model.add_label_offsets(len(words.mean))] = settings.label_learning_rate
    loss = PairLoss(model, words, settings, label_weights(model, labels, len(words.mean), setup))
    next_rows = row_sampler(model, labeled, labels, unlabeled, setup)
    if model.trains_with_cuda_graphs:
        packed = loss.trains_packed(unlabeled is not None)
        step: Callable[[int], Tensor] | CapturableStep = loss.capturable_step(next_rows, packed)
    else:
        step = lambda _: loss(next_rows())  # noqa: E731
    with model.frozen_layers(settings.frozen_layers, labeled if unlabeled is None else None):
        return train(model.model, step, setup, len(labeled), rates, bf16=model.trains_in_bf16)


def _finetune_generative(
    model: GenerativeModel, words: LabelSequences, labeled: EncodedRows, labels: NDArray[Any], setup: TrainingSetup
) -> list[float]:
    """The same for a model that writes from left to right: L_CE of the labels' scores alone."""
    next_rows = row_sampler(model, labeled, labels, None, setup)
    weights = label_weights(model, labels, len(words.mean), setup)

    def step(_: int) -> Tensor:
        rows = next_rows()
        local = current_group().local_slice(len(rows.labels))
        if local.start == local.stop:
            return zero_loss()
        scores = model.label_scores(model.states_at_mask(rows.labeled.slice_rows(local)), words)
        loss = label_loss(scores, model.to_device(rows.labels[local]), weights)
        return len(scores) / len(rows.labels) * loss

    return train(model.model, step, setup, len(labeled), bf16=model.trains_in_bf16)


def label_weights(model: LanguageModel, labels: NDArray[Any], count: int, setup: TrainingSetup) -> Tensor | None:
    """The weights of the labels in the loss, (labels,), where the setup asks for them."""
    return class_weights(labels, count).to(model.device) if setup.balance else None


def row_sampler(
    model: LanguageModel,
    labeled: EncodedRows,
    labels: NDArray[Any],
    unlabeled: EncodedRows | None,
    setup: TrainingSetup,
) -> Callable[[], StepRows]:
    """A function that draws the next step's rows and masks tokens of the unlabelled ones."""
    settings, rng = setup.settings, setup.rng
    assert isinstance(settings, MemberTraining)
    if settings.balanced_batches:
        labeled_batches = balanced_batches(labels, settings.rows_per_step, rng, settings.rows_per_label)
    else:
        labeled_batches = cycle_batches(len(labeled), settings.rows_per_step, rng)
    if unlabeled is None:

        def next_labeled_rows() -> StepRows:
            chosen = next(labeled_batches)
            return StepRows(labeled.batch(chosen), label_targets(labels[chosen]))

        return next_labeled_rows
    assert isinstance(settings, Finetune)
    batch_size = settings.per_gpu_helper_batch_size * settings.gradient_accumulation_steps
    unlabeled_batches = cycle_batches(len(unlabeled), batch_size, rng)
    width = unlabeled.max_length if settings.lm_targets == "all" else None  # the authors' code predicts padding too

    def next_rows() -> StepRows:
        chosen = next(labeled_batches)
        batch = unlabeled.batch(next(unlabeled_batches), width)
        masked, targets = mask_tokens(batch, model.tokenizer, rng, settings.mlm_probability, settings.lm_targets)
        return StepRows(labeled.batch(chosen), label_targets(labels[chosen]), masked, targets)

    return next_rows


@dataclass(frozen=True)
class PairLoss:
    """The loss of one step of a pair: L_CE, or with masked rows (1 - alpha) L_CE + alpha L_MLM."""

    model: ClozeModel
    words: LabelWords
    settings: MemberTraining
    label_weights: Tensor | None = None  # (labels,)

    @property
    def mlm_settings(self) -> Finetune:
        """The settings of the auxiliary task."""
        assert isinstance(self.settings, Finetune)
        return self.settings

    def trains_packed(self, with_masked: bool) -> bool:
        """Whether steps in CUDA graphs take packed batches; padding that is predicted needs padded ones."""
        only_text = not with_masked or self.mlm_settings.lm_targets == "text"
        return self.model.trains_in_bf16 and only_text and self.model.supports_packing

    def __call__(self, rows: StepRows) -> Tensor:
        """The loss, computed eagerly; with several processes, this process's share of it."""
        if rows.masked is not None and rows.targets is not None:
            return self._joint_loss(rows, rows.masked, rows.targets)
        local = current_group().local_slice(len(rows.labels))
        if local.start == local.stop:
            return zero_loss()
        states = self.model.states_at_mask(rows.labeled.slice_rows(local))
        return len(states) / len(rows.labels) * self._labeled_loss(states, self.model.to_device(rows.labels[local]))

    def _labeled_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """L_CE, and the contrastive loss where it has a weight, of states at the mask, (labelled, [masks,] hidden)."""
        ce = label_loss(self.model.label_scores(states, self.words), labels, self.label_weights)
        if not self.settings.contrastive:
            return ce
        return ce + self.settings.contrastive * contrastive_loss(mean_over_masks(states).float(), labels)

    def _at_masks(self, states: Tensor, rows: int) -> Tensor:
        """The first states of a forward pass, which are those at the labelled rows' masks: (rows, [masks,] hidden)."""
        masks = 1 if self.words.masks is None else int(self.words.masks.max()) + 1
        states = states[: rows * masks]
        return states if masks == 1 else states.view(rows, masks, -1)

    def _joint_loss(self, rows: StepRows, masked: Batch, targets: MaskedTokens) -> Tensor:
        """(1 - alpha) L_CE + alpha L_MLM in one forward pass."""
        model, settings = self.model, self.mlm_settings
        local, local_masked = (current_group().local_slice(len(batch.rows)) for batch in (rows.labeled, masked))
        batches = [rows.labeled.slice_rows(local), masked.slice_rows(local_masked)]
        batch = concat_batches(batches, model.tokenizer.pad_id)
        if len(batch.rows) == 0:
            return zero_loss()
        labeled_rows = local.stop - local.start
        is_local = (targets.rows >= local_masked.start) & (targets.rows < local_masked.stop)
        mask_rows, mask_positions = batches[0].all_masks()
        row_index = np.concatenate([mask_rows, labeled_rows + targets.rows[is_local] - local_masked.start])
        positions = np.concatenate([mask_positions, targets.positions[is_local]])
        states = model.states(
            batch, model.to_device(row_index), model.to_device(positions)
        )  # (labelled * masks + masked, hidden)
        labels = model.to_device(rows.labels)[local]
        fraction = labeled_rows / len(rows.labels)
        at_masks = self._at_masks(states, labeled_rows)
        ce = fraction * self._labeled_loss(at_masks, labels) if labeled_rows else 0 * states.sum()
        token_scores = model.head(states[len(mask_rows) :])  # (masked, vocabulary)
        tokens, counts = (model.to_device(a[is_local]) for a in (targets.tokens, self._micro_batch_counts(targets)))
        mlm = masked_lm_loss(token_scores, tokens, counts, settings.gradient_accumulation_steps)
        return joint_loss(ce, mlm, settings.alpha)

    def _micro_batch_counts(self, targets: MaskedTokens) -> NDArray[np.float32]:
        """For each masked token the number of masked tokens in its micro-batch: (masked,)."""
        micro_batch = targets.rows // self.mlm_settings.per_gpu_helper_batch_size
        return np.bincount(micro_batch)[micro_batch].astype(np.float32)

    def capturable_step(self, next_rows: Callable[[], StepRows], packed: bool = False) -> CapturableStep:
        """The same loss for a CUDA graph: batches are padded, or packed, and masked tokens padded to a few counts."""
        token_counts: dict[int, int] = {}

        def arrays() -> dict[str, NDArray[Any]]:
            rows = next_rows()
            inputs, starts = self.model.fixed_shape_inputs(rows.batch(self.model.tokenizer.pad_id), packed)
            row_index, positions = rows.read_positions()
            positions = positions if starts is None else starts[row_index] + positions
            inputs |= {"rows": row_index, "positions": positions, "labels": rows.labels}
            if rows.targets is None:
                return inputs
            count = padded_count(len(rows.targets.rows), token_counts, inputs["input_ids"].shape[1])
            read = len(rows.labels) * rows.labeled.masks + count
            return inputs | {
                "rows": pad_last_axis(row_index, read),
                "positions": pad_last_axis(positions, read),
                **self.target_arrays(rows.targets, count),
            }

        return CapturableStep(arrays, lambda inputs: self.of_states(self.model.gather_states(inputs), inputs))

    def target_arrays(self, targets: MaskedTokens, count: int) -> dict[str, NDArray[Any]]:
        """The masked tokens and their micro-batches' numbers of masked tokens, padded: (count,) each."""
        counts = np.full(count, np.inf, dtype=np.float32)  # tokens that pad the list are left out of the loss
        counts[: len(targets.rows)] = self._micro_batch_counts(targets)
        return {"tokens": pad_last_axis(targets.tokens, count), "counts": counts}

    def of_states(self, states: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of a step by the states at its masks and its masked tokens, (read, hidden), and its targets."""
        ce = self._labeled_loss(self._at_masks(states, len(inputs["labels"])), inputs["labels"])
        if "tokens" not in inputs:
            return ce
        token_scores = self.model.head(states[-len(inputs["tokens"]) :])  # (masked, vocabulary)
        micro_batches = self.settings.gradient_accumulation_steps
        mlm = masked_lm_loss(token_scores, inputs["tokens"], inputs["counts"], micro_batches)
        return joint_loss(ce, mlm, self.mlm_settings.alpha)
