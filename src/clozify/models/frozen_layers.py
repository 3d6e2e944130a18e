"""Trains the upper layers of an encoder on the states of its lower layers, which stay as pretrained.

The lower layers run without dropout, once for each row where the rows' states fit into memory. The encoder is split
without knowing its architecture: the upper part is the encoder with fewer layers, whose embeddings return the
lower part's states. An encoder that gives other states in two parts is not split: its lower layers are frozen only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.prompts.encode import EncodedRows, forward_batches

MAX_CACHE_BYTES = 2**30
TOKENS_PER_BATCH = 2048


class PrecomputedEmbeddings(nn.Module):
    """Takes the place of an encoder's embeddings: returns the states that it was given."""

    states: Tensor

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """The states: (rows, width, hidden)."""
        return self.states


def layer_list(encoder: Any) -> tuple[str, nn.ModuleList] | None:
    """The name and the list of an encoder's layers; None where it has no such list."""
    count = getattr(encoder.config, "num_hidden_layers", 0)
    lists = [(name, module) for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)]
    matching = [(name, module) for name, module in lists if len(module) == count]
    return matching[0] if len(matching) == 1 else None


def with_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """A shallow copy of `root` in which the submodule `name` is replaced; all weights are shared."""
    clone = copy.copy(root)
    clone._modules = dict(root._modules)
    first, _, rest = name.partition(".")
    child = clone._modules[first]
    assert child is not None
    clone._modules[first] = with_module(child, rest, module) if rest else module
    return clone


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

    def run(self, module: nn.Module, rows: NDArray[np.int64], inputs: Mapping[str, Tensor]) -> Any:
        """The output of `module`, which reads `self.embeddings`, for a forward pass's inputs."""
        self.embeddings.states = self.lower_states(rows, inputs)
        return module(**inputs)


def split_encoder(encoder: Any, frozen: int, sample_ids: Tensor) -> SplitEncoder | None:
    """The encoder in two parts, the lower one with `frozen` layers; None if the parts give other states."""
    layers_by_name = layer_list(encoder)
    if layers_by_name is None or not hasattr(encoder, "embeddings"):
        return None
    name, layers = layers_by_name
    embeddings = PrecomputedEmbeddings()
    lower = with_module(encoder, name, layers[:frozen])
    upper = with_module(with_module(encoder, name, layers[frozen:]), "embeddings", embeddings)
    split = SplitEncoder(lower, upper, embeddings)
    mask = torch.ones_like(sample_ids)
    mask[0, -2:] = 0
    inputs = {"input_ids": sample_ids, "attention_mask": mask}
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            expected, states = encoder(**inputs)[0], split.run(upper, np.arange(len(sample_ids)), inputs)[0]
        real = mask.bool()
        return split if torch.allclose(states[real], expected[real], atol=1e-4, rtol=1e-3) else None
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    finally:
        encoder.train(training)


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
