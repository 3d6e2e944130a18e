"""Fine-tuning of several members' LoRA adapters at once: their rows share each forward pass of the frozen model.

A GPU computes one large batch faster than several small ones. Each member has the loss, the rows and the order of rows
that it has in `finetune.py`; dropout alone is drawn for all members together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import MemberTraining
from clozify.gpu.cuda_graphs import CapturableStep, padded_count
from clozify.gpu.packing import LENGTH_MULTIPLE, pack_parts
from clozify.methods.finetune import PairLoss, StepRows, label_weights, row_sampler
from clozify.models.cloze import ClozeModel
from clozify.models.lora_group import AdapterGroup
from clozify.prompts.encode import Batch, EncodedRows, concat_batches
from clozify.prompts.verbalizer import LabelWords
from clozify.training.group_loop import OnStep, train_group
from clozify.training.loop import TrainingSetup


@dataclass(frozen=True)
class GroupMember:
    """What one member of a group is trained on; the settings of all setups are the same."""

    words: LabelWords
    labeled: EncodedRows
    labels: NDArray[Any]
    unlabeled: EncodedRows | None  # for the auxiliary task
    seed: int  # initialises the adapter
    setup: TrainingSetup  # without development rows


@dataclass(frozen=True)
class TrainedAdapter:
    """A member's losses, as `finetune` returns them, and its weights by their names in the model."""

    losses: list[float]
    weights: dict[str, Tensor]


def finetune_group(
    model: ClozeModel, members: Sequence[GroupMember], on_step: OnStep = lambda step, losses: None
) -> list[TrainedAdapter]:
    """Train an adapter for each member, all for the same number of steps; none is loaded into the model."""
    first = members[0]
    settings = first.setup.settings
    assert isinstance(settings, MemberTraining)
    torch.manual_seed(first.seed)  # draws dropout
    weights = [label_weights(model, each.labels, len(each.words.mean), each.setup) for each in members]
    losses = [PairLoss(model, each.words, settings, weight) for each, weight in zip(members, weights, strict=True)]
    packed = model.trains_with_cuda_graphs and losses[0].trains_packed(first.unlabeled is not None)
    samplers = [row_sampler(model, each.labeled, each.labels, each.unlabeled, each.setup) for each in members]
    with AdapterGroup(model.model, [each.seed for each in members]).stacked() as adapters:
        step = GroupLoss(adapters, losses).capturable_step(samplers, packed)
        readings = train_group(
            model.model,
            step,
            settings,
            len(first.labeled),
            on_step,
            bf16=model.trains_in_bf16,
            cuda_graphs=model.trains_with_cuda_graphs,
        )
        of_members = adapters.member_weights()
    member_losses = [[reading[index] for reading in readings] for index in range(len(members))]
    return [TrainedAdapter(*each) for each in zip(member_losses, of_members, strict=True)]


@dataclass(frozen=True)
class GroupLoss:
    """The members' losses of one step, (members,)."""

    adapters: AdapterGroup
    losses: Sequence[PairLoss]  # of each member

    @property
    def model(self) -> ClozeModel:
        """The frozen model."""
        return self.losses[0].model

    def capturable_step(self, samplers: Sequence[Callable[[], StepRows]], packed: bool = False) -> CapturableStep:
        """A step as in `PairLoss.capturable_step`, with an axis of members before all others."""
        token_counts: dict[int, int] = {}

        def arrays() -> dict[str, NDArray[Any]]:
            steps = [next_rows() for next_rows in samplers]
            batches = [rows.batch(self.model.tokenizer.pad_id) for rows in steps]
            inputs, starts = self._model_inputs(batches, packed)
            inputs |= {"labels": np.stack([rows.labels for rows in steps])}
            targets = [rows.targets for rows in steps if rows.targets is not None]
            count = 0
            if targets:
                most_targets = max(len(of_member.rows) for of_member in targets)
                count = padded_count(most_targets, token_counts, inputs["input_ids"].shape[1])
                padded = [loss.target_arrays(each, count) for loss, each in zip(self.losses, targets, strict=True)]
                inputs |= {name: np.stack([each[name] for each in padded]) for name in ("tokens", "counts")}
            rows, positions = _read_positions(steps, count)
            return inputs | {"rows": rows, "positions": positions if starts is None else starts[rows] + positions}

        return CapturableStep(arrays, self._member_losses)

    def _model_inputs(
        self, batches: Sequence[Batch], packed: bool
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64] | None]:
        """The batches as one, in which every member has the same number of tokens; as `fixed_shape_inputs`."""
        pad_id = self.model.tokenizer.pad_id
        if not packed:
            return self.model.fixed_shape_inputs(concat_batches(batches, pad_id), packed=False)
        parts = pack_parts(batches, pad_id, max(self.model.max_length, 2 * LENGTH_MULTIPLE))
        return parts.arrays, parts.start

    def _member_losses(self, inputs: Mapping[str, Tensor]) -> Tensor:
        states = self.model.gather_states(inputs)  # (members, read, hidden)
        names = [name for name in ("labels", "tokens", "counts") if name in inputs]
        losses = []
        for index, loss in enumerate(self.losses):
            with self.adapters.only(index):  # the head's adapter; members may have other words
                losses.append(loss.of_states(states[index], {name: inputs[name][index] for name in names}))
        return torch.stack(losses)


def _read_positions(steps: Sequence[StepRows], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the whole batch and the columns that are read: (members, masks + count) each.

    A member's masks come first, its masked tokens begin at `-count`; what is left refers to its first token.
    """
    masks = max(len(rows.labels) * rows.labeled.masks for rows in steps)
    all_rows = np.zeros((len(steps), masks + count), dtype=np.int64)
    all_positions = np.zeros_like(all_rows)
    first = 0  # of the member's rows in the batch
    for index, step in enumerate(steps):
        rows, positions = step.read_positions()
        labeled = len(step.labels) * step.labeled.masks
        masked = len(rows) - labeled
        columns = np.concatenate([np.arange(labeled), masks + np.arange(masked)])
        all_rows[index, columns], all_positions[index, columns] = rows, positions
        all_rows[index] += first
        first += len(step.labeled.rows) + (0 if step.masked is None else len(step.masked.rows))
    return all_rows, all_positions
