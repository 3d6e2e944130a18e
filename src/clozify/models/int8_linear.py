"""Scores in int8 on a CPU: the encoder's linear layers with 8-bit weights and activations, by PyTorch alone.

A weight has one scale for each output, an activation one for each token, so that a row's scores hardly depend on the
rows that share its batch. Products are summed in 32 bits. Whether the processor does that exactly and faster is tried
first (processors without VNNI add pairs of products in 16 bits, which overflow), and how far the probabilities move is
measured with the model itself. The gain over float32 is in benchmarks/RESULTS.md, by benchmarks/prediction.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from clozify.models.modules import replace_module

MAX_INT8 = 127
MAX_TOKENS = 512  # of a forward pass: the activations stay in the processor's cache
MIN_WIDTH = 256  # of a layer: below, rounding the activations takes as long as the product
MIN_GAIN = 1.2  # float32's seconds / int8's seconds, at least
MAX_DISTANCE = 0.03  # mean total variation distance of int8's probabilities from float32's
TRIAL_TOKENS, TRIAL_REPEATS, TRIAL_WIDTH = 64, 5, 768


class Int8Linear(nn.Module):
    """A linear layer whose weights and inputs are rounded to 8 bits."""

    weight: Tensor  # (inputs, outputs), int8
    scale: Tensor  # (outputs,)
    bias: Tensor  # (outputs,)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp_min(1e-12) / MAX_INT8
        bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8).T.contiguous())
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs in float32: (..., outputs)."""
        tokens = inputs.reshape(-1, inputs.shape[-1])  # (tokens, inputs)
        scale = tokens.abs().amax(dim=1, keepdim=True).clamp_min_(1e-12).div_(MAX_INT8)  # (tokens, 1)
        sums = torch._int_mm((tokens / scale).round_().to(torch.int8), self.weight)  # (tokens, outputs), int32
        return torch.addcmul(self.bias, sums.float().mul_(self.scale), scale).view(*inputs.shape[:-1], -1)


def quantized(encoder: nn.Module) -> nn.Module:
    """A copy of an encoder whose large linear layers are `Int8Linear`; it shares all other weights."""
    for name, layer in quantizable_layers(encoder).items():
        encoder = replace_module(encoder, name, Int8Linear(layer))
    return encoder


@cache
@torch.inference_mode()
def suits_processor() -> bool:
    """Whether this processor sums products of 8-bit numbers without overflow, and faster than float32.

    With VNNI it is two to three times as fast; without, PyTorch's product may be exact and 20 to 50 times as slow. So
    the clock decides between cases that are far apart, and always decides the same.
    """
    layer = nn.Linear(TRIAL_WIDTH, TRIAL_WIDTH)
    try:
        trial = try_int8(layer)
        return trial.exact and trial.gain > 1
    except (AttributeError, NotImplementedError, RuntimeError):  # of PyTorch on other processors
        return False


@dataclass(frozen=True)
class Int8Trial:
    """How int8 does on this processor."""

    exact: bool  # whether sums of products do not overflow
    gain: float  # float32's seconds / int8's seconds


def quantizable_layers(encoder: nn.Module) -> dict[str, nn.Linear]:
    """The encoder's large linear layers by name; a pooler, which reads one token of a row, is none of them."""
    return {
        name: module
        for name, module in encoder.named_modules()
        if type(module) is nn.Linear and min(module.weight.shape) >= MIN_WIDTH and "pooler" not in name
    }


@torch.inference_mode()
def try_int8(layer: nn.Linear) -> Int8Trial:
    """Run a layer in both precisions: whether int8 is exact on this processor, and how much faster it is."""
    rng = torch.Generator().manual_seed(0)
    quantized = Int8Linear(layer)
    largest = torch.randint(0, 2, (16, layer.in_features), generator=rng).mul(2 * MAX_INT8).sub(MAX_INT8)
    weight = torch.full_like(quantized.weight, MAX_INT8)
    sums = torch._int_mm(largest.to(torch.int8), weight)
    exact = torch.equal(sums.double(), largest.double() @ weight.double())
    inputs = torch.randn(TRIAL_TOKENS, layer.in_features, generator=rng)
    seconds: dict[nn.Module, list[float]] = {layer: [], quantized: []}
    for _ in range(TRIAL_REPEATS):
        for module, durations in seconds.items():
            started = time.perf_counter()
            module(inputs)
            durations.append(time.perf_counter() - started)
    return Int8Trial(exact, min(seconds[layer]) / min(seconds[quantized]))


@torch.inference_mode()
def use_int8(encoder: nn.Module, scores: Callable[[], Tensor], forced: bool) -> str:
    """Replace the encoder's large linear layers by `Int8Linear`; returns why not, or an empty string.

    `scores` returns the model's scores of some rows, (rows, labels), for the comparison with float32. `forced`, neither
    the gain nor the comparison matters.
    """
    layers = quantizable_layers(encoder)
    if not layers:
        return f"it has no linear layers of {MIN_WIDTH} units or more"
    try:
        trial = try_int8(max(layers.values(), key=lambda layer: layer.weight.numel()))
        if not trial.exact:
            return "the processor adds 8-bit products in too few bits"
        if trial.gain < MIN_GAIN and not forced:
            return f"it is {trial.gain:.1f} times as fast as float32"
        expected = scores().softmax(dim=-1)
        for name, layer in layers.items():
            encoder.set_submodule(name, Int8Linear(layer))
        distance = float((scores().softmax(dim=-1) - expected).abs().sum(dim=-1).mean() / 2)
        if distance <= MAX_DISTANCE or forced:
            return ""
        problem = f"its probabilities are {distance:.2f} away from float32's"
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:  # of a model, or of PyTorch
        problem = f"it fails with: {error}"
    for name, layer in layers.items():
        encoder.set_submodule(name, layer)
    return problem
