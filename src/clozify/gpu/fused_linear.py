"""Linear layers with fewer, larger matrix products: a fused QKV GEMM, and bias gradients as GEMMs.

Replaces `nn.Linear.forward` while an encoder is trained in bf16 on a GPU. An attention's query, key and value layers
read the same input, so they are computed as one product (without copying, since `MasterWeights` stores their weights
contiguously); a bias gradient is the product G^T 1 instead of PyTorch's slower reduction over rows.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it a
fine-tuning step takes 8.7% longer, a distillation step 9.1%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozify.gpu.direct_gradients import DirectGradients, concat_views
from clozify.gpu.features import is_enabled

ROWS = 16_384  # length of the shared vector of ones; a step with more tokens allocates its own
QKV_NAMES = (("query", "key", "value"), ("q", "k", "v"))  # the layers' names in Transformers' attention modules


def concat(tensors: Sequence[Tensor]) -> Tensor:
    """The concatenation of tensors along the first axis: a view where they are contiguous in memory, else a copy."""
    view = concat_views(tensors)
    return torch.cat(list(tensors)) if view is None else view


def concat_columns(tensors: Sequence[Tensor]) -> Tensor:
    """The concatenation of tensors along the last axis: a view where they are columns of one tensor, else a copy."""
    first, end = tensors[0], tensors[0].storage_offset()
    row = sum(tensor.shape[-1] for tensor in tensors)  # entries in a row of the result
    rows = first.shape[:-1].numel()
    for tensor in tensors:
        same_storage = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same_storage or tensor.storage_offset() != end or tensor.flatten(0, -2).stride() != (row, 1):
            return torch.cat(list(tensors), dim=-1)
        end += tensor.shape[-1]
    return first.as_strided((rows, row), (row, 1)).view(*first.shape[:-1], row)


class _FusedLinear(torch.autograd.Function):
    """y1, y2, ... = x (W1, W2, ...)^T + (b1, b2, ...); the gradient of all biases is G^T 1."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, ones: Tensor, direct: DirectGradients | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        ctx.save_for_backward(x, ones, *weights)
        ctx.parameters, ctx.direct = (weights, biases), direct
        ctx.sizes = [len(weight) for weight in weights]
        y = functional.linear(x, concat(weights), concat(biases))
        return tuple(torch.unsafe_split_with_sizes(y, ctx.sizes, dim=-1))  # some attentions change them in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, ones, *weights = ctx.saved_tensors
        grad_y = gradients[0] if len(gradients) == 1 else concat_columns(gradients)
        rows = grad_y.flatten(0, -2)  # (tokens, out)
        ones = ones[: len(rows)] if len(rows) <= len(ones) else ones.new_ones(len(rows))
        tokens = x.flatten(0, -2)  # (tokens, in)
        if ctx.direct is not None and ctx.direct.write(*ctx.parameters, rows, tokens, ones):
            return grad_y @ concat(weights), *[None] * (2 + 2 * len(weights))
        grad_weights, grad_biases = (rows.T @ tokens).split(ctx.sizes), (rows.T @ ones).split(ctx.sizes)
        return grad_y @ concat(weights), None, None, *grad_weights, *grad_biases


class _SharedInputLayers:
    """Linear layers that read the same input: the first one called computes the outputs of all.

    If they turn out to be called with different inputs (cross-attention), each computes its own output from then on.
    """

    def __init__(self, layers: Sequence[nn.Linear], ones: Tensor, direct: DirectGradients | None) -> None:
        self.layers, self.ones, self.direct = layers, ones, direct
        self.separate = False
        self.x: Tensor | None = None
        self.pending: dict[int, Tensor] = {}  # layer index -> output that has not been requested yet

    def forward(self, index: int, x: Tensor) -> Tensor:
        """The output of the layer with this index."""
        layer = self.layers[index]
        casts = torch.is_autocast_enabled(x.device.type) and layer.weight.dtype == torch.float32
        if casts or x.dtype != layer.weight.dtype or x.ndim < 2:  # autocast has to cast
            return functional.linear(x, layer.weight, layer.bias)
        if self.pending and (x is not self.x or index not in self.pending):
            self.separate = True
        if self.separate:
            self.x, self.pending = None, {}
            return self._compute(x, [layer])[0]
        if not self.pending:
            self.x, self.pending = x, dict(enumerate(self._compute(x, self.layers)))
        output = self.pending.pop(index)
        self.x = self.x if self.pending else None
        return output

    def _compute(self, x: Tensor, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
        parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
        outputs: tuple[Tensor, ...] = _FusedLinear.apply(x, self.ones, self.direct, *parameters)  # type: ignore[no-untyped-call]
        return outputs


def _is_trained_linear(layer: Any) -> bool:
    is_linear = type(layer) is nn.Linear and layer.bias is not None
    return is_linear and layer.weight.requires_grad and layer.bias.requires_grad


def group_layers(module: nn.Module) -> list[list[nn.Linear]]:
    """The trained linear layers: query, key and value of an attention as one group, every other layer by itself."""
    groups: list[list[nn.Linear]] = []
    for parent in module.modules():
        for names in QKV_NAMES:
            layers: list[Any] = [getattr(parent, name, None) for name in names]
            if not all(map(_is_trained_linear, layers)):
                continue
            if len({(layer.in_features, layer.weight.dtype) for layer in layers}) == 1:
                groups.append(layers)
    grouped = {layer for layers in groups for layer in layers}
    return groups + [[layer] for layer in module.modules() if _is_trained_linear(layer) and layer not in grouped]  # type: ignore[list-item]


@contextmanager
def fused_linear_layers(module: nn.Module, direct: DirectGradients | None = None) -> Iterator[None]:
    """Replace the forward passes of a module's trained linear layers by fused ones.

    Gradients are written into the buffers of `direct` where these have room for them.
    """
    groups = group_layers(module) if is_enabled("fused_linear") else []
    if not groups:
        yield
        return
    weight = groups[0][0].weight
    ones = torch.ones(ROWS, dtype=weight.dtype, device=weight.device)
    for layers in groups:
        shared = _SharedInputLayers(layers, ones, direct)
        for index, layer in enumerate(layers):
            layer.forward = partial(shared.forward, index)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layers in groups:
            for layer in layers:
                vars(layer).pop("forward", None)  # a layer may occur twice, under two names
