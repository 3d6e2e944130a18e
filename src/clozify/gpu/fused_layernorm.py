"""The end of an encoder's sublayers, LayerNorm(dropout(x + bias) + residual), as one kernel of a GPU instead of four.

In: an encoder whose sublayers end so, as those of BERT, RoBERTa and their kin do. Out: the same encoder, which computes
the same, with a dropout drawn from seeds of its own. Where Triton does not run, or an encoder is built otherwise, all
stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PARTS = {"dense": nn.Linear, "dropout": nn.Dropout, "LayerNorm": nn.LayerNorm}
ROWS = 16  # of a trial; Triton compiles a kernel once for all multiples of it
CLOSE = 0.03  # |one kernel - four| / |four| of a trial's states, in bf16, at most
_runs: dict[tuple[Any, ...], bool] = {}  # what trials in this process have shown, by a layer's class and sizes


class _Ended(torch.autograd.Function):
    """y = LayerNorm(dropout(x + bias) + residual), for x and residual of (rows, size)."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        from clozify.gpu.kernels.layernorm import forward

        y, total, mean, scale = forward(*given)
        _, _, _, weight, _, seed, ctx.dropout, _, keeps = given
        if keeps:
            ctx.save_for_backward(total, weight, seed, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from clozify.gpu.kernels.layernorm import backward

        total, weight, seed, mean, scale = ctx.saved_tensors
        found = backward(gradient.contiguous(), total, weight, seed, mean, scale, ctx.dropout)
        return *found, None, None, None, None


def _lines(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def ended(x: Tensor, bias: Tensor, residual: Tensor, norm: nn.LayerNorm, seed: Tensor, dropout: float) -> Tensor:
    """LayerNorm(dropout(x + bias) + residual); what is dropped hangs on `seed` alone, a whole number on the device."""
    given = _lines(x), bias, _lines(residual), norm.weight, norm.bias, seed, dropout, norm.eps, torch.is_grad_enabled()
    found: Tensor = _Ended.apply(*given)  # type: ignore[no-untyped-call]
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


def _fits(layer: nn.Module) -> bool:
    """Whether a layer looks like the end of a sublayer."""
    parts: dict[str, Any] = dict(layer.named_children())
    if {name: type(part) for name, part in parts.items()} != PARTS:
        return False
    norm = parts["LayerNorm"]
    whole = None not in (parts["dense"].bias, norm.weight, norm.bias) and len(norm.normalized_shape) == 1
    return whole and list(inspect.signature(layer.forward).parameters) == ["hidden_states", "input_tensor"]


def _on_gpu(layer: Any) -> bool:
    """Whether a layer is on the GPU that Triton starts kernels on."""
    weight = layer.dense.weight
    return bool(weight.is_cuda and weight.get_device() == torch.cuda.current_device())


def _try(layer: Any) -> bool:
    """Whether a layer computes what it looks like, and whether Triton runs here; once for its kind.

    Where gradients are wanted, those are computed too, with dropout.
    """
    weight, trains = layer.dense.weight, torch.is_grad_enabled()
    key = (type(layer), *weight.shape, trains)
    if key not in _runs:
        training = layer.training
        inputs = [torch.linspace(-9, 9, ROWS * n, device=weight.device).sin().view(ROWS, n) for n in weight.shape[::-1]]
        inputs, seeds = [part.to(weight.dtype) for part in inputs], _Seeds(1, weight.device)
        try:
            with torch.no_grad():
                layer.eval()
                one, four = _end(layer, seeds, 0, *inputs), type(layer).forward(layer, *inputs)
            _runs[key] = bool((one - four).norm() <= CLOSE * four.norm())
            if trains:
                layer.train()
                torch.autograd.grad(_end(layer, seeds, 0, *inputs).sum(), layer.LayerNorm.weight)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever keeps Triton from compiling
            _runs[key] = False
        finally:
            layer.train(training)
    return _runs[key]


@contextmanager
def fused_layernorm(encoder: nn.Module) -> Iterator[None]:
    """Within, an encoder's sublayers on a GPU end with one kernel."""
    layers: list[Any] = [layer for layer in encoder.modules() if _fits(layer) and _on_gpu(layer) and _try(layer)]
    if not layers:
        yield
        return
    seeds = _Seeds(len(layers), layers[0].dense.weight.device)
    hook = encoder.register_forward_pre_hook(seeds.draw)
    for number, layer in enumerate(layers):
        layer.forward = partial(_end, layer, seeds, number)
    try:
        yield
    finally:
        hook.remove()
        for layer in layers:
            del layer.forward
