"""What an encoder does between its matrix products, as one kernel of a GPU each time instead of two to four.

In: an encoder with layers like those of BERT, RoBERTa and their kin: GELU(x + bias) in the midst of a layer, and
LayerNorm(dropout(x + bias) + residual) at the end of a sublayer. Out: the same encoder, which computes the same, with a
dropout drawn from seeds of its own. Where Triton does not run, or an encoder is built otherwise, all stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLOSE = 0.03  # |one kernel - several| / |several| of a trial's states, in bf16, at most
_runs: dict[tuple[type, int, int], bool] = {}  # what trials in this process have shown, by a layer's class and sizes


class _Ended(torch.autograd.Function):
    """y = LayerNorm(dropout(x + bias) + residual), for x and residual of (rows, size)."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        from clozify.sublayers_kernel import forward

        y, total, mean, scale = forward(*given)
        _, _, _, weight, _, seed, ctx.dropout, _, keeps = given
        if keeps:
            ctx.save_for_backward(total, weight, seed, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from clozify.sublayers_kernel import backward

        total, weight, seed, mean, scale = ctx.saved_tensors
        found = backward(gradient.contiguous(), total, weight, seed, mean, scale, ctx.dropout)
        return *found, None, None, None, None


class _Activated(torch.autograd.Function):
    """y = GELU(x + bias), for x of (rows, size)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from clozify.sublayers_kernel import gelu

        ctx.save_for_backward(x, bias)
        return gelu(x, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from clozify.sublayers_kernel import gelu_backward

        x, bias = ctx.saved_tensors
        return gelu_backward(gradient.contiguous(), x, bias)


def _lines(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def ended(x: Tensor, bias: Tensor, residual: Tensor, norm: nn.LayerNorm, seed: Tensor, dropout: float) -> Tensor:
    """LayerNorm(dropout(x + bias) + residual); what is dropped hangs on `seed` alone, a whole number on the device."""
    given = _lines(x), bias, _lines(residual), norm.weight, norm.bias, seed, dropout, norm.eps, torch.is_grad_enabled()
    found: Tensor = _Ended.apply(*given)  # type: ignore[no-untyped-call]
    return found.view(x.shape)


def activated(x: Tensor, bias: Tensor) -> Tensor:
    """GELU(x + bias)."""
    found: Tensor = _Activated.apply(_lines(x), bias)  # type: ignore[no-untyped-call]
    return found.view(x.shape)


class _Seeds:
    """A seed for every layer, drawn anew whenever the encoder is called."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.count, self.now = count, torch.zeros(count, dtype=torch.int64, device=device)

    def draw(self, module: nn.Module, _: Any) -> None:
        if module.training:
            self.now = torch.randint(2**31, (self.count,), device=self.now.device)


def _end(layer: Any, seeds: _Seeds, number: int, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
    """What a layer that ends a sublayer computes."""
    if not hidden_states.dtype == input_tensor.dtype == layer.dense.weight.dtype:  # autocast has something to do
        found: Tensor = type(layer).forward(layer, hidden_states, input_tensor)
        return found
    x = functional.linear(hidden_states, layer.dense.weight)
    dropout = layer.dropout.p if layer.training else 0.0
    return ended(x, layer.dense.bias, input_tensor, layer.LayerNorm, seeds.now[number], dropout)


def _middle(layer: Any, _: _Seeds, __: int, hidden_states: Tensor) -> Tensor:
    """What a layer with GELU computes."""
    if hidden_states.dtype != layer.dense.weight.dtype:
        found: Tensor = type(layer).forward(layer, hidden_states)
        return found
    return activated(functional.linear(hidden_states, layer.dense.weight), layer.dense.bias)


def way_of(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Which of the two a layer looks like."""
    from transformers.activations import GELUActivation

    parts: dict[str, Any] = dict(layer.named_children())
    kinds = {name: type(part) for name, part in parts.items()}
    if kinds.get("dense") is not nn.Linear or parts["dense"].bias is None:
        return None
    takes = list(inspect.signature(layer.forward).parameters)
    if kinds == {"dense": nn.Linear, "intermediate_act_fn": GELUActivation} and takes == ["hidden_states"]:
        return _middle if parts["intermediate_act_fn"].act is functional.gelu else None
    ends = {"dense": nn.Linear, "dropout": nn.Dropout, "LayerNorm": nn.LayerNorm}
    if kinds == ends and takes == ["hidden_states", "input_tensor"]:
        norm = parts["LayerNorm"]
        return _end if norm.weight is not None and norm.bias is not None and len(norm.normalized_shape) == 1 else None
    return None


def _on_gpu(layer: Any) -> bool:
    return bool(layer.dense.weight.is_cuda)


@torch.no_grad()
def _try(layer: Any, way: Callable[..., Tensor]) -> bool:
    """Whether a layer computes what it looks like, and whether Triton runs here; once for its kind."""
    weight = layer.dense.weight
    key = (type(layer), *weight.shape)
    if key not in _runs:
        training = layer.training
        inputs = [torch.linspace(-3, 3, 3 * n, device=weight.device).sin().view(3, n) for n in weight.shape[::-1]]
        inputs = [part.to(weight.dtype) for part in (inputs if way is _end else inputs[:1])]
        try:
            layer.eval()
            one, several = way(layer, _Seeds(1, weight.device), 0, *inputs), type(layer).forward(layer, *inputs)
            _runs[key] = bool((one - several).norm() <= CLOSE * several.norm())
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever keeps Triton from compiling
            _runs[key] = False
        finally:
            layer.train(training)
    return _runs[key]


@contextmanager
def as_one(encoder: nn.Module) -> Iterator[None]:
    """Within, an encoder on a GPU computes with these kernels."""
    ways = {layer: way for layer in encoder.modules() if (way := way_of(layer)) is not None and _on_gpu(layer)}
    ways = {layer: way for layer, way in ways.items() if _try(layer, way)}
    if not ways:
        yield
        return
    seeds = _Seeds(len(ways), next(encoder.parameters()).device)
    hook = encoder.register_forward_pre_hook(seeds.draw)
    for number, (layer, way) in enumerate(ways.items()):
        layer.forward = partial(way, layer, seeds, number)
    try:
        yield
    finally:
        hook.remove()
        for layer in ways:
            del layer.forward
