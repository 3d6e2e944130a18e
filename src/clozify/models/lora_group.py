"""Several LoRA adapters of one frozen model in one batch, for training them together.

A batch has the members' rows one member after another, with the same number of tokens for each. In an adapted layer all
rows share the product with the frozen weight W, and the members' updates are batched products: of x, (members, tokens,
in), with A, (members, r, in), and with B, (members, out, r).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozify.models.cloze import ClozeModel
from clozify.models.lora import TRAINED, lora_layers, reset_adapter

SAMPLE_MEMBERS, SAMPLE_LENGTH = 3, 8  # that a model is tried with


class AdapterGroup:
    """The adapters of several members, A and B of each layer stacked over the members."""

    def __init__(self, module: nn.Module, seeds: Sequence[int]) -> None:
        self.module, self.seeds = module, seeds
        self.member: int | None = None  # the only member whose rows are computed now; None: those of all

    @contextmanager
    def stacked(self) -> Iterator[AdapterGroup]:
        """Within the block the adapter's weights are the members' stacked ones, each initialised from its seed."""
        layers = list(lora_layers(self.module))
        weights = [linear for layer in layers for linear in _matrices(layer)]
        originals = [linear.weight for linear in weights]
        drawn: list[list[Tensor]] = []
        for seed in self.seeds:
            reset_adapter(self.module, seed)
            drawn.append([weight.detach().clone() for weight in originals])
        try:
            for linear, of_members in zip(weights, zip(*drawn, strict=True), strict=True):
                linear.weight = nn.Parameter(torch.stack(of_members))
            for layer in layers:
                layer.forward = partial(self._forward, layer)
            yield self
        finally:
            for layer in layers:
                layer.__dict__.pop("forward", None)
            for linear, original in zip(weights, originals, strict=True):
                linear.weight = original

    @contextmanager
    def only(self, member: int) -> Iterator[None]:
        """Within the block all rows are this member's."""
        self.member = member
        try:
            yield
        finally:
            self.member = None

    def _forward(self, layer: Any, x: Tensor) -> Tensor:
        """W x + (alpha / r) B A x of an adapted layer, with each member's own A and B: (..., in) -> (..., out)."""
        y: Tensor = layer.base_layer(x)
        a: Tensor = layer.lora_A[TRAINED].weight
        b: Tensor = layer.lora_B[TRAINED].weight
        scale: float = layer.scaling[TRAINED]
        x = layer.lora_dropout[TRAINED](x)
        if self.member is not None:
            return y + functional.linear(functional.linear(x, a[self.member]), b[self.member]) * scale
        of_members = x.reshape(len(self.seeds), -1, x.shape[-1])  # (members, tokens, in)
        low_rank = torch.bmm(of_members, a.transpose(1, 2))  # (members, tokens, r)
        frozen = y.reshape(len(self.seeds), -1, y.shape[-1])  # (members, tokens, out)
        return torch.baddbmm(frozen, low_rank, b.transpose(1, 2), alpha=scale).view(y.shape)

    def member_weights(self) -> list[dict[str, Tensor]]:
        """For each member its A and B by their names in the model, for `load_state_dict`; within `stacked`."""
        stacked = {id(linear.weight) for layer in lora_layers(self.module) for linear in _matrices(layer)}
        named = [(name, p.detach()) for name, p in self.module.named_parameters() if id(p) in stacked]
        return [{name: tensor[member].clone() for name, tensor in named} for member in range(len(self.seeds))]


def _matrices(layer: Any) -> tuple[nn.Linear, nn.Linear]:
    return layer.lora_A[TRAINED], layer.lora_B[TRAINED]


@torch.no_grad()
def supports_groups(model: ClozeModel) -> bool:
    """Whether rows of several members have the same states in one batch as each member's alone.

    False where an adapted layer reads more than the rows' tokens: DeBERTa's reads relative positions. This is tried
    with random adapters, which are thrown away, on a model in evaluation mode.
    """
    rng = torch.Generator().manual_seed(0)
    ids = torch.from_numpy(model.sample_ids(SAMPLE_MEMBERS * 2 * SAMPLE_LENGTH)).to(model.device)
    ids = ids.view(SAMPLE_MEMBERS, 2, SAMPLE_LENGTH)
    with AdapterGroup(model.model, range(SAMPLE_MEMBERS)).stacked() as group:
        for layer in lora_layers(model.model):
            b = layer.lora_B[TRAINED].weight
            b.copy_(0.1 * torch.randn(b.shape, generator=rng))
        try:
            together = model.encoder(input_ids=ids.flatten(0, 1))[0].view(*ids.shape, -1)
        except RuntimeError:  # a layer's input is no multiple of the members
            return False
        for member, of_member in enumerate(ids):
            with group.only(member):
                alone = model.encoder(input_ids=of_member)[0]
            if not torch.allclose(alone, together[member], atol=1e-3, rtol=1e-3):
                return False
    return True
