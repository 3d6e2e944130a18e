"""Scores in fp8 on a GPU: the encoder's linear layers with 8-bit weights and activations.

Used by `ClozeModel.scoring` on GPUs of compute capability 8.9 and above. Weights have one scale for each output and
activations one for each token. In encoders that are built like BERT, the kernels that compute a layer norm or a GELU
round their results to fp8 as well, so rounding reads no memory of its own; query, key and value are one product.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it labelling takes 37.5% longer
(4,920 instead of 6,763 rows/s; measured with the exact GELU, which `kernels/fp8.py` approximates since). Soft labels
differ by 0.003 on average (`benchmarks/fp8.py`). An MPNet of 768 columns,
whose batches are padded, gains nothing, so by default it is used from `FAST_WIDTH` on with padding-free batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from clozify.gpu.fallback import warn_fallback
from clozify.gpu.features import is_enabled
from clozify.gpu.fused_layernorm import is_output_layer
from clozify.gpu.fused_linear import QKV_NAMES

MIN_CAPABILITY = (8, 9)
FAST_WIDTH = 1024  # columns of the narrowest encoder that is faster in fp8
MIN_WIDTH = 512  # of a layer; narrower ones stay in bf16
WIDTH_MULTIPLE = 16  # of products in fp8
MAX_RELATIVE_ERROR = 0.1  # of the kernels with a probe; fp8 has an error of about 0.03


class _Rows(NamedTuple):
    """Activations in fp8."""

    values: Tensor  # (tokens, size)
    scales: Tensor  # (tokens, 1)


class _LastRounded:
    """The last tensor that a kernel rounded to fp8: the layers that read it do not round it again."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.rows: _Rows | None = None

    def keep(self, tensor: Tensor, rows: _Rows) -> Tensor:
        """Remember a tensor's rows in fp8; returns the tensor."""
        self.tensor, self.rows = tensor, rows
        return tensor

    def rows_of(self, tensor: Tensor) -> _Rows:
        """A tensor's rows in fp8, rounded now unless a kernel did."""
        if tensor is self.tensor and self.rows is not None:
            return self.rows
        from clozify.gpu.kernels.fp8 import quantize

        return _Rows(*quantize(tensor.reshape(-1, tensor.shape[-1]).contiguous()))


class Fp8Linear(nn.Module):
    """Linear layers with the same input as one product in fp8."""

    weight: Tensor  # (outputs, inputs), e4m3
    scales: Tensor  # (1, outputs)
    bias: Tensor  # (outputs,)

    def __init__(self, layers: Sequence[nn.Linear], last: _LastRounded) -> None:
        super().__init__()
        from clozify.gpu.kernels.fp8 import quantize

        values, scales = quantize(torch.cat([layer.weight.detach() for layer in layers]))
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales.T.contiguous())
        biases: list[Tensor] = [
            layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers
        ]
        self.register_buffer("bias", torch.cat(biases).detach())
        self.last = last

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + bias, (tokens, outputs)."""
        rows = self.last.rows_of(x)
        return torch._scaled_mm(
            rows.values,
            self.weight.T,
            rows.scales,
            self.scales,
            bias,
            out_dtype=self.bias.dtype,
            use_fast_accum=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        """The layers' outputs: (..., outputs)."""
        return self.product(x, self.bias).view(*x.shape[:-1], -1)


class _SharedProduct:
    """Query, key and value: the first that is called computes all three."""

    def __init__(self, linear: Fp8Linear, sizes: list[int]) -> None:
        self.linear, self.sizes = linear, sizes
        self.x: Tensor | None = None
        self.pending: dict[int, Tensor] = {}  # index -> output that has not been requested yet

    def output(self, index: int, x: Tensor) -> Tensor:
        """The output of the layer with this index."""
        if x is not self.x or index not in self.pending:
            self.x, self.pending = x, dict(enumerate(self.linear(x).split(self.sizes, dim=-1)))
        result = self.pending.pop(index)
        self.x = self.x if self.pending else None
        return result


class _SharedOutput(nn.Module):
    """One of the layers of a `_SharedProduct`."""

    def __init__(self, shared: _SharedProduct, index: int) -> None:
        super().__init__()
        self.shared, self.index = shared, index

    def forward(self, x: Tensor) -> Tensor:
        """This layer's output."""
        return self.shared.output(self.index, x)


def _output_forward(layer: Any, last: _LastRounded, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
    """The forward pass that replaces that of an output layer: product, bias, residual sum, layer norm."""
    from clozify.gpu.kernels.fp8 import layernorm

    norm, shape = layer.LayerNorm, input_tensor.shape
    residual = input_tensor.reshape(-1, shape[-1]).contiguous()
    x = layer.dense.product(hidden_states)
    y, *rows = layernorm(x, layer.dense.bias, residual, norm.weight, norm.bias, norm.eps)
    return last.keep(y.view(shape), _Rows(*rows))


def _intermediate_forward(layer: Any, last: _LastRounded, hidden_states: Tensor) -> Tensor:
    """The forward pass that replaces that of a layer with a GELU; its result is in fp8."""
    from clozify.gpu.kernels.fp8 import gelu

    rows = _Rows(*gelu(layer.dense.product(hidden_states), layer.dense.bias))
    return last.keep(rows.values.view(*hidden_states.shape[:-1], -1), rows)


def _is_wide(layer: Any) -> bool:
    """Whether a layer is a linear one that is worth a product in fp8."""
    if type(layer) is not nn.Linear or layer.weight.dtype != torch.bfloat16:
        return False
    return min(layer.weight.shape) >= MIN_WIDTH and not any(size % WIDTH_MULTIPLE for size in layer.weight.shape)


def is_gelu_layer(layer: Any) -> bool:
    """Whether a layer is built like BERT's intermediate one, with the exact GELU."""
    if type(getattr(layer, "dense", None)) is not nn.Linear or layer.dense.bias is None:
        return False
    activation = getattr(layer, "intermediate_act_fn", None)
    if activation is None or list(inspect.signature(layer.forward).parameters) != ["hidden_states"]:
        return False
    x = torch.linspace(-4, 4, 32, device=layer.dense.weight.device)
    return torch.equal(activation(x), functional.gelu(x))


def _round_layers(encoder: nn.Module) -> None:
    """Replace an encoder's wide linear layers, in place."""
    last = _LastRounded()
    modules: list[Any] = list(encoder.modules())
    output_layers = [layer for layer in modules if is_output_layer(layer) and _is_wide(layer.dense)]
    blocks = [block for block in modules if getattr(block, "output", None) in output_layers]
    candidates: list[Any] = [getattr(block, "intermediate", None) for block in blocks]
    gelu_layers = [layer for layer in candidates if is_gelu_layer(layer) and _is_wide(layer.dense)]
    for parent in modules:
        for names in QKV_NAMES:
            layers: list[Any] = [getattr(parent, name, None) for name in names]
            if all(map(_is_wide, layers)) and len({layer.in_features for layer in layers}) == 1:
                shared = _SharedProduct(Fp8Linear(layers, last), [layer.out_features for layer in layers])
                for index, name in enumerate(names):
                    setattr(parent, name, _SharedOutput(shared, index))
        for name, layer in list(parent.named_children()):
            if _is_wide(layer):
                setattr(parent, name, Fp8Linear([layer], last))
    for layer in gelu_layers:
        layer.forward = partial(_intermediate_forward, layer, last)
    for layer in output_layers:
        layer.forward = partial(_output_forward, layer, last)


@cache
@torch.inference_mode()
def _is_usable(device: torch.device) -> bool:
    """Whether a GPU has fp8 and the kernels run there and compute what they should; tried once."""
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        warn_fallback("scores in fp8", "the GPU has no matrix products in fp8")
        return False
    generator = torch.Generator(device).manual_seed(0)
    sizes = (64, MIN_WIDTH), (MIN_WIDTH, MIN_WIDTH), (MIN_WIDTH,), (64, MIN_WIDTH)
    x, weight, bias, residual = (torch.randn(size, generator=generator, device=device).bfloat16() for size in sizes)
    layer = nn.Linear(MIN_WIDTH, MIN_WIDTH, device=device, dtype=torch.bfloat16)
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    try:
        from clozify.gpu.kernels import fp8

        fp8_layer = Fp8Linear([layer], _LastRounded())
        y, *rows = fp8.layernorm(x, bias, residual, bias, bias, 1e-5)
        activated, scales = fp8.gelu(x, bias)
        pairs = [
            (fp8_layer(x), layer(x)),
            (y, functional.layer_norm(x + bias + residual, (MIN_WIDTH,), bias, bias, 1e-5)),
            (rows[0].float() * rows[1], y),
            (activated.float() * scales, functional.gelu(x + bias)),
        ]
        wrong = any(bool((one - other).norm() > MAX_RELATIVE_ERROR * other.norm()) for one, other in pairs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # e.g. Triton is not installed, or there is no C compiler
        warn_fallback("scores in fp8", f"a kernel fails with: {error}")
        return False
    if wrong:
        warn_fallback("scores in fp8", "a kernel computes something else")
    return not wrong


def round_to_fp8(encoder: nn.Module) -> None:
    """Let an encoder's wide linear layers compute in fp8, where the GPU does; the encoder is changed."""
    device = next(encoder.parameters()).device
    if is_enabled("fp8_scoring") and device.type == "cuda" and _is_usable(device):
        _round_layers(encoder)
