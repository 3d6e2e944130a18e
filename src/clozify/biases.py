"""Gradients of biases as matrix-vector products: a GPU takes them sooner than the sums that PyTorch asks for.

In: a module with linear layers. Out: the same, with the same results, for as long as it is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 16_384  # as many as a step may have; with more, ones are made anew


class _Linear(torch.autograd.Function):
    """y = x W^T + b; the gradient of b is G^T 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, ones: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ones)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, ones = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        ones = ones[: len(rows)] if len(rows) <= len(ones) else ones.new_ones(len(rows))
        return gradient @ weight, rows.T @ x.flatten(0, -2), rows.T @ ones, None


def _forward(layer: nn.Linear, ones: Tensor, x: Tensor) -> Tensor:
    casts = torch.is_autocast_enabled(x.device.type) and layer.weight.dtype == torch.float32
    if casts or x.dtype != layer.weight.dtype or x.ndim < 2:  # autocast has something to do
        return functional.linear(x, layer.weight, layer.bias)
    found: Tensor = _Linear.apply(x, layer.weight, layer.bias, ones)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def by_products(module: nn.Module) -> Iterator[None]:
    """Within, linear layers with a bias sum up its gradient so."""
    linear = [layer for layer in module.modules() if type(layer) is nn.Linear and layer.bias is not None]
    layers = [layer for layer in linear if layer.weight.requires_grad and layer.bias.requires_grad]
    if not layers:
        yield
        return
    ones = torch.ones(ROWS, dtype=layers[0].weight.dtype, device=layers[0].weight.device)
    for layer in layers:
        layer.forward = partial(_forward, layer, ones)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
