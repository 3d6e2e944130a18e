"""Trains the upper layers of an encoder on the states of its lower layers, which stay as pretrained.

The lower layers run without dropout, once for each row where the rows' states fit into memory. The encoder is split
without knowing its architecture: the upper part is the encoder with fewer layers, whose embeddings return the
lower part's states. An encoder that gives other states in two parts is not split: its lower layers are frozen only.
Where one state of each row is read, the last layer's feed-forward network runs at that position alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.models.int8_linear import quantized
from clozify.models.modules import replace_module
from clozify.prompts.encode import EncodedRows, forward_batches

MAX_CACHE_BYTES = 2**30
TOKENS_PER_BATCH = 2048


class PrecomputedEmbeddings(nn.Module):
    """Takes the place of an encoder's embeddings: returns the states that it was given."""

    states: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """The states: (rows, width, hidden)."""
        return self.states


class GatherOutput(nn.Module):
    """An attention module followed by a selection of one position of each row; all where `positions` is None."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.positions: Tensor | None = None  # (rows,)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The attention's output: (rows, width, hidden), or (rows, 1, hidden)."""
        output = self.attention(*args, **kwargs)
        if self.positions is None:
            return output
        states = output[0] if isinstance(output, tuple) else output
        states = states[torch.arange(len(states), device=states.device), self.positions][:, None]
        return (states, *output[1:]) if isinstance(output, tuple) else states


def layer_list(encoder: Any) -> tuple[str, nn.ModuleList] | None:
    """The name and the list of an encoder's layers; None where it has no such list."""
    count = getattr(encoder.config, "num_hidden_layers", 0)
    lists = [(name, module) for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)]
    matching = [(name, module) for name, module in lists if len(module) == count]
    return matching[0] if len(matching) == 1 else None


def frozen_parameters(encoder: Any, frozen: int) -> list[nn.Parameter]:
    """The parameters of the embeddings, of the first `frozen` layers, and those that all layers share."""
    layers_by_name = layer_list(encoder)
    trained = [] if layers_by_name is None else [p for layer in layers_by_name[1][frozen:] for p in layer.parameters()]
    pooler = getattr(encoder, "pooler", None)
    trained += [] if pooler is None else list(pooler.parameters())
    kept = {id(parameter) for parameter in trained}
    return [parameter for parameter in encoder.parameters() if id(parameter) not in kept]


@dataclass
class SplitEncoder:
    """An encoder in two parts, and the lower part's states of some rows."""

    lower: nn.Module
    upper: nn.Module
    embeddings: PrecomputedEmbeddings
    gather: GatherOutput | None = None  # within the last layer; None where that has no attention module
    states: list[Tensor] | None = None  # of each row: (tokens, hidden)

    @torch.no_grad()
    def lower_states(self, rows: NDArray[np.int64], inputs: Mapping[str, Tensor]) -> Tensor:
        """The lower part's states of a forward pass's rows: (rows, width, hidden)."""
        if self.states is None:
            self.lower.eval()  # `train` of the whole model turned its dropout on
            states: Tensor = self.lower(**inputs)[0]
            return states
        width = inputs["input_ids"].shape[1]
        padded = self.states[0].new_zeros(len(rows), width, self.states[0].shape[1])
        for index, row in enumerate(rows.tolist()):
            padded[index, : len(self.states[row])] = self.states[row]
        return padded

    def run(
        self,
        module: nn.Module,
        rows: NDArray[np.int64],
        inputs: Mapping[str, Tensor],
        positions: Tensor | None = None,
    ) -> Any:
        """The output of `module`, which contains the upper part, for a forward pass's inputs.

        With `positions`, (rows,), which needs `self.gather`, its states are those at them: (rows, 1, hidden).
        """
        self.embeddings.states = self.lower_states(rows, inputs)
        if self.gather is not None:
            self.gather.positions = positions
        return module(**inputs)


def split_encoder(encoder: Any, frozen: int, sample_ids: Tensor) -> SplitEncoder | None:
    """The encoder in two parts, the lower one with `frozen` layers; None if the parts give other states."""
    layers_by_name = layer_list(encoder)
    if layers_by_name is None or not hasattr(encoder, "embeddings"):
        return None
    name, layers = layers_by_name
    embeddings = PrecomputedEmbeddings()
    lower = replace_module(encoder, name, layers[:frozen])
    training = encoder.training
    encoder.eval()
    try:
        attention = getattr(layers[-1], "attention", None)
        gathers: list[GatherOutput | None] = [] if attention is None else [GatherOutput(attention)]
        for gather in [*gathers, None]:
            last = layers[-1] if gather is None else replace_module(layers[-1], "attention", gather)
            upper_layers = nn.ModuleList([*layers[frozen:-1], last])
            upper = replace_module(replace_module(encoder, name, upper_layers), "embeddings", embeddings)
            split = SplitEncoder(lower, upper, embeddings, gather)
            if _gives_same_states(encoder, split, sample_ids):
                return split
    finally:
        encoder.train(training)
    return None


@torch.no_grad()
def _gives_same_states(encoder: Any, split: SplitEncoder, sample_ids: Tensor) -> bool:
    """Whether the two parts give the encoder's states of the sample rows, all of them and one of each row."""
    mask = torch.ones_like(sample_ids)
    mask[0, -2:] = 0
    inputs, rows = {"input_ids": sample_ids, "attention_mask": mask}, np.arange(len(sample_ids))
    try:
        expected, states = encoder(**inputs)[0], split.run(split.upper, rows, inputs)[0]
        same = torch.allclose(states[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-3)
        if same and split.gather is not None:
            positions = torch.arange(1, len(sample_ids) + 1, device=sample_ids.device)
            states = split.run(split.upper, rows, inputs, positions)[0]
            at_positions = expected[torch.arange(len(rows), device=sample_ids.device), positions][:, None]
            same = states.shape == at_positions.shape and torch.allclose(states, at_positions, atol=1e-4, rtol=1e-3)
        return same
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return False


def quantize_lower(split: SplitEncoder) -> None:
    """Let the lower part run in int8."""
    split.lower = quantized(split.lower)


def fits_into_memory(rows: EncodedRows, hidden: int) -> bool:
    """Whether the lower part's states of these rows may be kept."""
    return int(rows.lengths.sum()) * hidden * 4 <= MAX_CACHE_BYTES


@torch.no_grad()
def compute_states(
    split: SplitEncoder, rows: EncodedRows, pad_id: int, token_types: bool, device: torch.device
) -> None:
    """Compute the lower part's states of all rows."""
    split.lower.eval()
    states: list[Tensor] = [torch.empty(0)] * len(rows)
    for batch in rows.batches(TOKENS_PER_BATCH):
        lengths = batch.attention_mask.sum(axis=1)
        for group, arrays in forward_batches(batch, lengths, True, pad_id, token_types):
            inputs = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
            output = split.lower(**inputs)[0]  # (rows, width, hidden)
            for index, position in enumerate(group.tolist()):
                states[int(batch.rows[position])] = output[index, : int(lengths[position])].clone()
    split.states = states


@contextmanager
def without_gradients(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Within the block these parameters are not trained."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
