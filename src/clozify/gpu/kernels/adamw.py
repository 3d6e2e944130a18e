"""The Triton kernel of `FlatAdamW`: one AdamW step over a flat buffer, in place."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # weights per program


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def adamw_kernel(  # type: ignore[no-untyped-def]
    weights, copies, gradients, exp_avg, exp_avg_sq, gradient_scale, learning_rate, corrections, weight_decay,
    one_minus_beta1, beta2, one_minus_beta2, epsilon, length, block: tl.constexpr,
):  # fmt: skip
    """w <- (1 - rate decay) w - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon), in float32.

    1 - beta1 and 1 - beta2 are arguments, since computed in float32 they would be wrong in the fifth digit.
    """
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    mask = offsets < length
    g = tl.load(gradients + offsets, mask=mask).to(tl.float32) * tl.load(gradient_scale)
    w = tl.load(weights + offsets, mask=mask)
    m = tl.load(exp_avg + offsets, mask=mask)
    v = tl.load(exp_avg_sq + offsets, mask=mask)
    w = w - tl.load(learning_rate) * weight_decay * w
    m = m + one_minus_beta1 * (g - m)
    v = beta2 * v + one_minus_beta2 * g * g
    w = w - tl.load(corrections) * m / (tl.sqrt(v) / tl.load(corrections + 1) + epsilon)
    tl.store(weights + offsets, w, mask=mask)
    tl.store(exp_avg + offsets, m, mask=mask)
    tl.store(exp_avg_sq + offsets, v, mask=mask)
    tl.store(copies + offsets, w.to(copies.dtype.element_ty), mask=mask)


def launch(
    tensors: tuple[Tensor, ...],
    scalars: tuple[Tensor, ...],
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """One step for a buffer's `tensors` (weights, copies, gradients, exp_avg, exp_avg_sq).

    `scalars` are tensors, since they change between replays of a CUDA graph: gradient scale, learning rate, and the
    two bias corrections.
    """
    length = len(tensors[0])
    grid: Any = (triton.cdiv(length, BLOCK),)
    numbers = weight_decay, 1 - betas[0], betas[1], 1 - betas[1], epsilon
    adamw_kernel[grid](*tensors, *scalars, *numbers, length, BLOCK)
