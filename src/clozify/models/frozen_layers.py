"""Trains the upper layers of an encoder on the states of its lower layers, which stay as pretrained.

The lower layers run without dropout, once for each row where the rows' states fit into memory. The encoder is split
without knowing its architecture: the upper part is the encoder with fewer layers, whose embeddings return the
lower part's states. An encoder that gives other states in two parts is not split: its lower layers are frozen only.
Where one state of each row is read, what follows the last layer's attention runs at that position alone.
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
from clozify.models.last_layer import GatherOutput, LastLayer, find_last_layer, layer_list
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
    last: LastLayer | None = None  # of the upper part, where it can compute one position of each row
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
    ) -> Any:
        """The output of `module`, which contains the upper part, for a forward pass's inputs."""
        self.embeddings.states = self.lower_states(rows, inputs)
        return module(**inputs)


def split_encoder(encoder: Any, frozen: int, sample_ids: Tensor) -> SplitEncoder | None:
    """The encoder in two parts, the lower one with `frozen` layers; None if the parts give other states."""
    layers_by_name = layer_list(encoder)
    if layers_by_name is None or not hasattr(encoder, "embeddings"):
        return None
    name, layers = layers_by_name
    embeddings, upper_layers = PrecomputedEmbeddings(), layers[frozen:]
    lower = replace_module(encoder, name, layers[:frozen])
    upper = replace_module(replace_module(encoder, name, upper_layers), "embeddings", embeddings)
    split, rows = SplitEncoder(lower, upper, embeddings), np.arange(len(sample_ids))
    inputs = {"input_ids": sample_ids, "attention_mask": torch.ones_like(sample_ids)}
    inputs["attention_mask"][0, -2:] = 0
    training = encoder.training
    encoder.eval()
    try:
        if not _gives_same_states(encoder, split, rows, inputs):
            return None
        split.last = find_last_layer(
            upper, (name, upper_layers), lambda module: split.run(module, rows, inputs)[0], (GatherOutput,)
        )
        return split
    finally:
        encoder.train(training)


@torch.no_grad()
def _gives_same_states(
    encoder: Any, split: SplitEncoder, rows: NDArray[np.int64], inputs: Mapping[str, Tensor]
) -> bool:
    """Whether the two parts give the encoder's states of the sample rows."""
    try:
        expected, states = encoder(**inputs)[0], split.run(split.upper, rows, inputs)[0]
        is_text = inputs["attention_mask"].bool()
        return torch.allclose(states[is_text], expected[is_text], atol=1e-4, rtol=1e-3)
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
