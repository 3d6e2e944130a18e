"""The kernel behind `LineAdamW` on a GPU, in Triton.

In: a line's arrays. Out: the same arrays, changed in place.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # weights that one program looks after


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def adamw_kernel(  # type: ignore[no-untyped-def]
    weights, copies, gradients, mean, mean_square, scale, rate, corrected, decay, new1, beta2, new2, epsilon, length,
    block: tl.constexpr,
):  # fmt: skip
    """w <- (1 - rate decay) w - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon), in float32.

    `new1` and `new2` are 1 - beta1 and 1 - beta2, which in float32 would be off in the fifth digit.
    """
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < length
    g = tl.load(gradients + at, mask=inside).to(tl.float32) * tl.load(scale)
    w = tl.load(weights + at, mask=inside)
    m = tl.load(mean + at, mask=inside)
    v = tl.load(mean_square + at, mask=inside)
    w = w - tl.load(rate) * decay * w
    m = m + new1 * (g - m)
    v = beta2 * v + new2 * g * g
    w = w - tl.load(corrected) * m / (tl.sqrt(v) / tl.load(corrected + 1) + epsilon)
    tl.store(weights + at, w, mask=inside)
    tl.store(mean + at, m, mask=inside)
    tl.store(mean_square + at, v, mask=inside)
    tl.store(copies + at, w.to(copies.dtype.element_ty), mask=inside)


def launch(
    arrays: tuple[Tensor, ...], changing: tuple[Tensor, ...], decay: float, betas: tuple[float, float], epsilon: float
) -> None:
    """One line's step: weights, copies, gradients, means; `changing`: scale, rate and the two corrections for bias."""
    length = len(arrays[0])
    grid: Any = (triton.cdiv(length, BLOCK),)
    adamw_kernel[grid](*arrays, *changing, decay, 1 - betas[0], betas[1], 1 - betas[1], epsilon, length, BLOCK)
