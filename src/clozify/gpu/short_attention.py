"""Attention for packed batches of short rows, as two Triton kernels, one for each direction.

Replaces PyTorch's flash attention in `packing` for rows of at most `MAX_LENGTH` tokens in 16 bits. Flash attention's
tiles of 128 are made for long rows; these have 64, need no second and third kernel for the gradients, and write the
gradients of query, key and value where one product reads them. The results are the same, but for the dropout mask,
which comes from seeds of its own. Where Triton does not run, flash attention computes.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it a
fine-tuning step takes 4.2% longer, a distillation step 2.7%, labelling in fp8 2.9%.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clozify.gpu.fallback import warn_fallback
from clozify.gpu.features import is_enabled

MAX_LENGTH = 512  # tokens of the longest row
SIZES = (16, 32, 64, 128)  # of a head
SEEDS_AT_ONCE = 32  # one for each layer
MAX_RELATIVE_ERROR = 0.03  # |fused - flash| / |flash| of a probe in 16 bits
_probe_results: dict[tuple[Any, ...], bool] = {}  # of this process


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_length: int, dropout: float, scale: float | None
) -> Tensor:
    """PyTorch's attention within each row: (tokens, heads, size)."""
    bounds = cu_seqlens, cu_seqlens, max_length, max_length  # of queries and of keys
    output: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *bounds, dropout, False, False, scale=scale)[0]
    return output


class _ShortAttention(torch.autograd.Function):
    """O = D(softmax(scale Q K^T)) V within each row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> Tensor:
        from clozify.gpu.kernels.attention import forward

        o, logsumexp = forward(q, k, v, *arguments)
        cu_seqlens, ctx.max_length, seed, ctx.dropout, ctx.scale, needs_gradient = arguments
        if needs_gradient:
            ctx.save_for_backward(q, k, v, o, logsumexp, cu_seqlens, seed)
        return o

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:
        from clozify.gpu.kernels.attention import backward

        q, k, v, o, logsumexp, cu_seqlens, seed = ctx.saved_tensors
        saved = q, k, v, o, logsumexp, cu_seqlens
        gradients = backward(grad_o.contiguous(), *saved, ctx.max_length, seed, ctx.dropout, ctx.scale)
        return *gradients.unbind(1), *[None] * 6


def dropout_seeds(device: torch.device) -> Iterator[Tensor]:
    """Random integers on a device, without end."""
    while True:
        yield from torch.randint(2**31, (SEEDS_AT_ONCE,), device=device).unbind()


def short_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_length: int, dropout: float, scale: float | None,
    seeds: Iterator[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Attention within each row, (tokens, heads, size); `seeds` determine the dropout mask."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    seed = next(seeds or dropout_seeds(q.device)) if dropout else cu_seqlens  # not read without dropout
    arguments = cu_seqlens, max_length, seed, dropout, scale, torch.is_grad_enabled()
    o: Tensor = _ShortAttention.apply(q, k, v, *arguments)  # type: ignore[no-untyped-call]
    return o


def uses_short_attention(q: Tensor, max_length: int, dropout: float) -> bool:
    """Whether the kernels fit a batch and run on its device; the latter is tried once."""
    if not is_enabled("short_attention") or max_length > MAX_LENGTH or q.shape[-1] not in SIZES:
        return False
    if q.get_device() != torch.cuda.current_device():  # Triton launches kernels there
        return False
    key = (q.device, q.dtype, q.shape[-1], dropout > 0, torch.is_grad_enabled())
    if key not in _probe_results:
        _probe_results[key] = _probe(q, dropout > 0)
    return _probe_results[key]


def _probe(q: Tensor, has_dropout: bool) -> bool:
    """Whether the kernels compute what flash attention does, and its gradients where these are enabled."""
    heads, lengths = 2, (70, 3)
    cu_seqlens = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device=q.device)
    count = 3 * sum(lengths) * heads * q.shape[-1]
    x = (torch.arange(count, device=q.device) * 0.37).sin().to(q.dtype)
    x = x.view(sum(lengths), 3, heads, q.shape[-1]).requires_grad_(torch.is_grad_enabled())
    q, k, v = x.unbind(1)
    rows = cu_seqlens, max(lengths)
    seeds = iter([torch.zeros((), dtype=torch.int64, device=q.device)])  # none are drawn: training would use others
    try:
        # so small a probability drops nothing
        results = [short_attention(q, k, v, *rows, 1e-9 if has_dropout else 0.0, None, seeds)]
        expected = [flash_attention(q, k, v, *rows, 0.0, None)]
        if torch.is_grad_enabled():
            gradient = expected[0].detach().cos()
            results += torch.autograd.grad(results[0], x, gradient)
            expected += torch.autograd.grad(expected[0], x, gradient)
        pairs = zip(results, expected, strict=True)
        wrong = any(bool((one - other).norm() > MAX_RELATIVE_ERROR * other.norm()) for one, other in pairs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # e.g. Triton is not installed, or there is no C compiler
        warn_fallback("attention kernel for short rows", f"Triton fails with: {error}")
        return False
    if wrong:
        warn_fallback("attention kernel for short rows", "it computes something else than flash attention")
    return not wrong
