"""The Triton kernels of `fused_layernorm`: LayerNorm(dropout(x + linear_bias) + residual), forward and backward.

Tensors are (rows, size), computed in float32. Gradients of biases and norm weights are summed in two stages, by program
and then over programs, always in the same order, so they are deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD_ENTRIES, BACKWARD_ENTRIES = 256, 256  # entries of a row per warp
PROGRAMS_PER_SM = 4  # of the backward kernel, which divide the rows among them
SUM_ROWS, SUM_COLUMNS = 256, 8  # tile of the kernel that adds up the partial sums


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def uniform_random(seed, row, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Uniform random numbers in [0, 1) for the entries of a row; they depend on the seed and the row alone."""
    a, b, c, d = tl.rand4x(tl.load(seed), row * (block // 4) + tl.arange(0, block // 4))
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (block,))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def forward_kernel(  # type: ignore[no-untyped-def]
    x, linear_bias, residual, weight, bias, seed, y, summed, mean, inverse_std, size, epsilon, dropout,
    has_dropout: tl.constexpr, needs_gradient: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row: z = dropout(x + linear_bias) + residual; y = (z - mean) inverse_std weight + bias."""
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    mask = columns < size
    offsets = row.to(tl.int64) * size + columns
    z = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    z = z + tl.load(linear_bias + columns, mask=mask, other=0.0).to(tl.float32)
    if has_dropout:
        z = tl.where(uniform_random(seed, row, block) < dropout, 0.0, z / (1 - dropout))
    z = z + tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    z = z.to(y.dtype.element_ty).to(tl.float32)  # rounded as the backward pass will read it
    m = tl.sum(z, axis=0) / size
    centered = tl.where(mask, z - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / size + epsilon)
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + offsets, (centered * r * w + b).to(y.dtype.element_ty), mask=mask)
    if needs_gradient:
        tl.store(summed + offsets, z.to(y.dtype.element_ty), mask=mask)
        tl.store(mean + row, m)
        tl.store(inverse_std + row, r)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def backward_kernel(  # type: ignore[no-untyped-def]
    grad_y, summed, weight, seed, mean, inverse_std, grad_x, grad_residual, partial_sums, rows, size, dropout,
    has_dropout: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradients of some rows, and these rows' sums for the gradients of weight, bias and linear_bias."""
    program = tl.program_id(0)
    columns = tl.arange(0, block)
    mask = columns < size
    w = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((block,), dtype=tl.float32)
    grad_bias = tl.zeros((block,), dtype=tl.float32)
    grad_linear_bias = tl.zeros((block,), dtype=tl.float32)
    row = program
    while row < rows:
        offsets = row.to(tl.int64) * size + columns
        g = tl.load(grad_y + offsets, mask=mask, other=0.0).to(tl.float32)
        z = tl.load(summed + offsets, mask=mask, other=0.0).to(tl.float32)
        r = tl.load(inverse_std + row)
        normed = tl.where(mask, (z - tl.load(mean + row)) * r, 0.0)
        projection = tl.sum(normed * g * w, axis=0) / size
        grad_z = tl.where(mask, (g * w - normed * projection - tl.sum(g * w, axis=0) / size) * r, 0.0)
        tl.store(grad_residual + offsets, grad_z.to(grad_residual.dtype.element_ty), mask=mask)
        if has_dropout:
            grad_z = tl.where(uniform_random(seed, row, block) < dropout, 0.0, grad_z / (1 - dropout))
            tl.store(grad_x + offsets, grad_z.to(grad_x.dtype.element_ty), mask=mask)
        grad_weight += g * normed
        grad_bias += g
        grad_linear_bias += grad_z
        row += tl.num_programs(0)
    tl.store(partial_sums + 3 * program * size + columns, grad_weight, mask=mask)
    tl.store(partial_sums + (3 * program + 1) * size + columns, grad_bias, mask=mask)
    tl.store(partial_sums + (3 * program + 2) * size + columns, grad_linear_bias, mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def sum_kernel(partial_sums, out, count, length, tile_rows: tl.constexpr, tile_columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """Column sums of a (count, length) tensor, always in the same order."""
    column = tl.program_id(0) * tile_columns + tl.arange(0, tile_columns)
    total = tl.zeros((tile_rows, tile_columns), dtype=tl.float32)
    first = tl.program_id(0) * 0  # not the literal 0, which Triton would make a compile-time constant
    while first < count:
        row = first + tl.arange(0, tile_rows)
        mask = (row[:, None] < count) & (column[None, :] < length)
        total += tl.load(partial_sums + row[:, None] * length + column[None, :], mask=mask, other=0.0)
        first += tile_rows
    tl.store(out + column, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=column < length)


def _launch_options(size: int, entries_per_warp: int) -> dict[str, Any]:
    block = max(16, triton.next_power_of_2(size))
    return {"block": block, "num_warps": min(16, max(1, block // entries_per_warp))}


def forward(
    x: Tensor, linear_bias: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, seed: Tensor,
    dropout: float, epsilon: float, needs_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y; and, where a gradient is needed, dropout(x + linear_bias) + residual, its mean and 1 / deviation by row."""
    rows, size = x.shape
    y, summed = torch.empty_like(x), torch.empty_like(x) if needs_gradient else x
    mean, inverse_std = (torch.empty(rows if needs_gradient else 1, device=x.device) for _ in range(2))
    tensors = x, linear_bias, residual, weight, bias, seed, y, summed, mean, inverse_std
    flags = {"has_dropout": dropout > 0, "needs_gradient": needs_gradient}
    forward_kernel[(rows,)](*tensors, size, epsilon, dropout, **flags, **_launch_options(size, FORWARD_ENTRIES))
    return y, summed, mean, inverse_std


def backward(
    grad_y: Tensor, summed: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, inverse_std: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, linear_bias, residual, weight and bias."""
    rows, size = summed.shape
    sm_count = torch.cuda.get_device_properties(summed.device).multi_processor_count if summed.is_cuda else 1
    programs = min(rows, PROGRAMS_PER_SM * sm_count)
    grad_residual = torch.empty_like(summed)
    grad_x = torch.empty_like(summed) if dropout > 0 else grad_residual
    partial_sums = torch.empty(programs, 3 * size, device=summed.device)
    tensors = grad_y, summed, weight, seed, mean, inverse_std, grad_x, grad_residual, partial_sums
    options = _launch_options(size, BACKWARD_ENTRIES)
    backward_kernel[(programs,)](*tensors, rows, size, dropout, has_dropout=dropout > 0, **options)
    grad_weight, grad_bias, grad_linear_bias = out = weight.new_empty(3, size)
    sum_kernel[(triton.cdiv(3 * size, SUM_COLUMNS),)](partial_sums, out, programs, 3 * size, SUM_ROWS, SUM_COLUMNS)
    return grad_x, grad_linear_bias, grad_residual, grad_weight, grad_bias
