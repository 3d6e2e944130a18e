"""Gradients of linear layers that the backward pass writes into the optimizer's buffers.

Used with `MasterWeights` by `fused_linear_layers` and `fused_layernorm` in training on one GPU. Otherwise autograd
allocates each gradient, and the optimizer copies it into its buffer.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it a
fine-tuning step takes 2.2% longer, a distillation step 3.5%.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozify.gpu.features import is_enabled


def concat_views(tensors: Sequence[Tensor]) -> Tensor | None:
    """The concatenation of tensors along the first axis as a view; None where they are not contiguous in memory."""
    first, end = tensors[0], tensors[0].storage_offset()
    for tensor in tensors:
        same_storage = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same_storage or tensor.storage_offset() != end:
            return None
        end += tensor.numel()
    return first.as_strided((sum(map(len, tensors)), *first.shape[1:]), first.stride())


class DirectGradients:
    """The gradients of one training step that need not be copied."""

    def __init__(self, views: dict[nn.Parameter, Tensor]) -> None:
        self.views = views  # parameter -> its part of a buffer of gradients
        self.written: set[nn.Parameter] = set()  # in this step
        self._is_enabled = is_enabled("direct_gradients")  # asked here: the backward pass runs in another thread

    def write(
        self, weights: Sequence[Any], biases: Sequence[Any], grad_y: Tensor, x: Tensor, ones: Tensor | None = None
    ) -> bool:
        """Write G^T x and G^T 1, the gradients of the weights and biases of layers that share the input x.

        `grad_y`, G, is (tokens, out), x (tokens, in). Returns False, and writes nothing, before the parameters are in
        a buffer.
        """
        if not self._is_enabled or any(parameter not in self.views for parameter in (*weights, *biases)):
            return False
        grad_weight = concat_views([self.views[weight] for weight in weights])
        grad_bias = concat_views([self.views[bias] for bias in biases]) if biases else None
        if grad_weight is None or (biases and grad_bias is None):
            return False
        beta = int(weights[0] in self.written)  # 1 for a layer that ran twice in this step
        self.written.update(weights, biases)
        torch.addmm(grad_weight, grad_y.T, x, beta=beta, out=grad_weight)
        if grad_bias is not None and ones is not None:
            torch.addmv(grad_bias, grad_y.T, ones, beta=beta, out=grad_bias)
        return True

    def take_written(self) -> set[nn.Parameter]:
        """The parameters whose gradients were written since the last call."""
        written, self.written = self.written, set()
        return written


class _Product(torch.autograd.Function):
    """y = x W^T."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, direct: DirectGradients) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.direct = weight, direct
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        rows, tokens = grad_y.flatten(0, -2), x.flatten(0, -2)
        written = ctx.direct.write([ctx.weight], [], rows, tokens)
        return grad_y @ ctx.weight, None if written else rows.T @ tokens, None


def linear_without_bias(x: Tensor, weight: Tensor, direct: DirectGradients | None) -> Tensor:
    """x W^T; the gradient of W is written into the buffers of `direct` where these have room for it."""
    if direct is None or not torch.is_grad_enabled():
        return functional.linear(x, weight)
    y: Tensor = _Product.apply(x, weight, direct)  # type: ignore[no-untyped-call]
    return y
