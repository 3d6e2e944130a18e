"""The kernels behind `sublayers` on a GPU, in Triton: a bias, dropout, the residual sum and its layer norm.

In: (rows, size) arrays. Out: the same of the next states, or of gradients. All is computed in float32. Gradients of
biases and norms are summed up by rows in one kernel, and these sums in another, always in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

FORWARD, BACKWARD = 256, 256  # entries of a row that a warp looks after
AT_ONCE = 4  # programs for each of a GPU's processors, which share the rows when gradients are computed
SUMS, WIDE = 256, 8  # sums that are summed up at a time, and columns of a program


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def chances(seed, row, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number between 0 and 1 for each entry of a row: the same ones whenever they are asked for."""
    a, b, c, d = tl.rand4x(tl.load(seed), row * (block // 4) + tl.arange(0, block // 4))
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (block,))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def forward_kernel(  # type: ignore[no-untyped-def]
    x, before, residual, weight, bias, seed, y, total, mean, scale, size, epsilon, dropout,
    drops: tl.constexpr, keeps: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A row: z = dropout(x + before) + residual; y = (z - mean) scale weight + bias. What a gradient needs is kept."""
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < size
    place = row.to(tl.int64) * size + at
    z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    z = z + tl.load(before + at, mask=inside, other=0.0).to(tl.float32)
    if drops:
        z = tl.where(chances(seed, row, block) < dropout, 0.0, z / (1 - dropout))
    z = z + tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    z = z.to(y.dtype.element_ty).to(tl.float32)  # as it is kept
    m = tl.sum(z, axis=0) / size
    apart = tl.where(inside, z - m, 0.0)
    r = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / size + epsilon)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, (apart * r * w + b).to(y.dtype.element_ty), mask=inside)
    if keeps:
        tl.store(total + place, z.to(y.dtype.element_ty), mask=inside)
        tl.store(mean + row, m)
        tl.store(scale + row, r)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def backward_kernel(  # type: ignore[no-untyped-def]
    gradient, total, weight, seed, mean, scale, of_x, of_residual, sums, rows, size, dropout,
    drops: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some rows' gradients, and these rows' sums of the gradients of weight, bias and the bias before."""
    first = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < size
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((block,), dtype=tl.float32)
    of_bias = tl.zeros((block,), dtype=tl.float32)
    of_before = tl.zeros((block,), dtype=tl.float32)
    row = first
    while row < rows:
        place = row.to(tl.int64) * size + at
        g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(total + place, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(scale + row)
        normed = tl.where(inside, (z - tl.load(mean + row)) * r, 0.0)
        along = tl.sum(normed * g * w, axis=0) / size
        found = tl.where(inside, (g * w - normed * along - tl.sum(g * w, axis=0) / size) * r, 0.0)
        tl.store(of_residual + place, found.to(of_residual.dtype.element_ty), mask=inside)
        if drops:
            found = tl.where(chances(seed, row, block) < dropout, 0.0, found / (1 - dropout))
            tl.store(of_x + place, found.to(of_x.dtype.element_ty), mask=inside)
        of_weight += g * normed
        of_bias += g
        of_before += found
        row += tl.num_programs(0)
    tl.store(sums + 3 * first * size + at, of_weight, mask=inside)
    tl.store(sums + (3 * first + 1) * size + at, of_bias, mask=inside)
    tl.store(sums + (3 * first + 2) * size + at, of_before, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def sum_kernel(sums, out, count, length, high: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of columns, always in the same order."""
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    found = tl.zeros((high, wide), dtype=tl.float32)
    first = tl.program_id(0) * 0  # not plain 0, which would be fixed when it is compiled
    while first < count:
        row = first + tl.arange(0, high)
        inside = (row[:, None] < count) & (column[None, :] < length)
        found += tl.load(sums + row[:, None] * length + column[None, :], mask=inside, other=0.0)
        first += high
    tl.store(out + column, tl.sum(found, axis=0).to(out.dtype.element_ty), mask=column < length)


def _shape(size: int, of_a_warp: int) -> dict[str, Any]:
    block = max(16, triton.next_power_of_2(size))
    return {"block": block, "num_warps": min(16, max(1, block // of_a_warp))}


def forward(
    x: Tensor, before: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, seed: Tensor,
    dropout: float, epsilon: float, keeps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The next states; and, where it `keeps` them for a gradient, the sum, each row's mean and 1 / its deviation."""
    rows, size = x.shape
    y, total = torch.empty_like(x), torch.empty_like(x) if keeps else x
    mean, scale = (torch.empty(rows if keeps else 1, device=x.device) for _ in range(2))
    arrays = x, before, residual, weight, bias, seed, y, total, mean, scale
    forward_kernel[(rows,)](*arrays, size, epsilon, dropout, drops=dropout > 0, keeps=keeps, **_shape(size, FORWARD))
    return y, total, mean, scale


def backward(
    gradient: Tensor, total: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, the bias before, residual, weight and bias."""
    rows, size = total.shape
    here = torch.cuda.get_device_properties(total.device).multi_processor_count if total.is_cuda else 1
    count = min(rows, AT_ONCE * here)
    of_residual = torch.empty_like(total)
    of_x = torch.empty_like(total) if dropout > 0 else of_residual
    sums = torch.empty(count, 3 * size, device=total.device)
    arrays = gradient, total, weight, seed, mean, scale, of_x, of_residual, sums
    backward_kernel[(count,)](*arrays, rows, size, dropout, drops=dropout > 0, **_shape(size, BACKWARD))
    of_weight, of_bias, of_before = out = weight.new_empty(3, size)
    sum_kernel[(triton.cdiv(3 * size, WIDE),)](sums, out, count, 3 * size, SUMS, WIDE)
    return of_x, of_before, of_residual, of_weight, of_bias
