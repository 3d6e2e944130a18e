"""Linear layers as few, large matrix products: a GPU takes them sooner than many small ones, and than PyTorch's sums.

In: a module with linear layers. Out: the same, with the same results, for as long as it is trained: layers that read
the same (an attention's query, key and value) are one product, and the gradients of biases are products too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 16_384  # as many as a step may have; with more, ones are made anew
READ_THE_SAME = (("query", "key", "value"), ("q", "k", "v"))  # as attentions call them


def concat_views(parts: Sequence[Tensor]) -> Tensor:
    """Arrays as one; they are not copied where they lie end to end already, as `Masters` lays them."""
    first, end = parts[0], parts[0].storage_offset()
    for part in parts:
        if part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or part.storage_offset() != end:
            return torch.cat(list(parts))
        end += part.numel()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


class _Joint(torch.autograd.Function):
    """y1, y2, ... = x (W1, W2, ...)^T + (b1, b2, ...); the gradient of all biases is G^T 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ones: Tensor, *of_layers: Tensor) -> tuple[Tensor, ...]:
        weights, biases = of_layers[: len(of_layers) // 2], of_layers[len(of_layers) // 2 :]
        ctx.save_for_backward(x, ones, *weights)
        ctx.sizes = [len(weight) for weight in weights]
        y = functional.linear(x, concat_views(weights), concat_views(biases))
        return tuple(torch.unsafe_split_with_sizes(y, ctx.sizes, dim=-1))  # some attentions change them in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, ones, *weights = ctx.saved_tensors
        gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients, dim=-1)
        rows = gradient.flatten(0, -2)
        ones = ones[: len(rows)] if len(rows) <= len(ones) else ones.new_ones(len(rows))
        of_weights, of_biases = (rows.T @ x.flatten(0, -2)).split(ctx.sizes), (rows.T @ ones).split(ctx.sizes)
        return gradient @ concat_views(weights), None, *of_weights, *of_biases


class _Together:
    """Layers that read the same: whichever is asked first computes what all answer.

    Should they be asked in another way, an attention to something else say, each answers for itself from then on.
    """

    def __init__(self, layers: Sequence[nn.Linear], ones: Tensor) -> None:
        self.layers, self.ones = layers, ones
        self.apart = False
        self.x: Tensor | None = None
        self.waiting: dict[int, Tensor] = {}  # answers that nobody has asked for yet, by the layers' numbers

    def answer(self, number: int, x: Tensor) -> Tensor:
        layer = self.layers[number]
        casts = torch.is_autocast_enabled(x.device.type) and layer.weight.dtype == torch.float32
        if casts or x.dtype != layer.weight.dtype or x.ndim < 2:  # autocast has something to do
            return functional.linear(x, layer.weight, layer.bias)
        if self.waiting and (x is not self.x or number not in self.waiting):
            self.apart = True
        if self.apart:
            self.x, self.waiting = None, {}
            return self._joint(x, [layer])[0]
        if not self.waiting:
            self.x, self.waiting = x, dict(enumerate(self._joint(x, self.layers)))
        answer = self.waiting.pop(number)
        self.x = self.x if self.waiting else None
        return answer

    def _joint(self, x: Tensor, layers: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
        parts = [layer.weight for layer in layers] + [layer.bias for layer in layers]
        found: tuple[Tensor, ...] = _Joint.apply(x, self.ones, *parts)  # type: ignore[no-untyped-call]
        return found


def _fits(layer: Any) -> bool:
    trained = type(layer) is nn.Linear and layer.bias is not None
    return trained and layer.weight.requires_grad and layer.bias.requires_grad


def groups(module: nn.Module) -> list[list[nn.Linear]]:
    """Linear layers that read the same, and each of the others by itself."""
    found: list[list[nn.Linear]] = []
    for parent in module.modules():
        for names in READ_THE_SAME:
            layers: list[Any] = [getattr(parent, name, None) for name in names]
            if all(map(_fits, layers)) and len({(layer.in_features, layer.weight.dtype) for layer in layers}) == 1:
                found.append(layers)
    known = {layer for layers in found for layer in layers}
    return found + [[layer] for layer in module.modules() if _fits(layer) and layer not in known]  # type: ignore[list-item]


@contextmanager
def fused_linear_layers(module: nn.Module) -> Iterator[None]:
    """Within, linear layers with a bias compute so."""
    together = groups(module)
    if not together:
        yield
        return
    first = together[0][0].weight
    ones = torch.ones(ROWS, dtype=first.dtype, device=first.device)
    for layers in together:
        joint_loss = _Together(layers, ones)
        for number, layer in enumerate(layers):
            layer.forward = partial(joint_loss.answer, number)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layers in together:
            for layer in layers:
                vars(layer).pop("forward", None)  # a layer may have several names
