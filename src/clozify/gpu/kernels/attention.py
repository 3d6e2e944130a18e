"""The Triton kernels of `short_attention`: attention within each row of a packed batch, forward and backward.

q, k and v are (tokens, heads, size) with any strides of tokens and heads; the tokens of row i are those from
`cu_seqlens[i]` to `cu_seqlens[i + 1]`. For a row's queries Q, keys K and values V of one head:

    S = scale Q K^T,  P = softmax(S),  O = D(P) V

where D zeroes entries with probability `dropout` and divides the others by 1 - `dropout`. Backward, from dO:

    dV = D(P)^T dO,  dP = D(dO V^T),  dS = P (dP - rowsum(dO O)),  dQ = scale dS K,  dK = scale dS^T Q

One program computes a tile of a row's queries, or of its keys, for one head, and nothing is added up between programs,
so results are deterministic. Exponentials are to the base 2. Keys beyond a row's end are loaded as zeros: they
contribute nothing to gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634
FORWARD = {"block_m": 64, "block_n": 32, "num_warps": 4, "num_stages": 3}  # queries and keys of a tile
BACKWARD = {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 1}
MAX_KEYS: tl.constexpr = tl.constexpr(1024)  # of a row


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def first_counters(seed, tokens, heads, head):  # type: ignore[no-untyped-def]
    """The counter of every query's first key for one head; MAX_KEYS of them are a query's own."""
    return ((tokens * heads + head) * MAX_KEYS).to(tl.uint32) ^ tl.load(seed).to(tl.uint32)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def is_kept(counters, keys, threshold):  # type: ignore[no-untyped-def]
    """Whether dropout keeps an entry, by a 32-bit hash; `counters` of queries and positions of keys are broadcast."""
    x = counters + keys.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= threshold


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def load_tile(x, token_stride, head_stride, head, tokens, mask, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """The vectors of some tokens, (tokens, size); zeros where `mask` is false."""
    offsets = tokens.to(tl.int64)[:, None] * token_stride + head * head_stride + tl.arange(0, size)[None, :]
    return tl.load(x + offsets, mask=mask[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def store_tile(x, y, token_stride, head_stride, head, tokens, mask, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store y, (tokens, size), as the vectors of some tokens."""
    offsets = tokens.to(tl.int64)[:, None] * token_stride + head * head_stride + tl.arange(0, size)[None, :]
    tl.store(x + offsets, y.to(x.dtype.element_ty), mask=mask[:, None])


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def attention_forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, o, logsumexp, cu_seqlens, seed, q_token, q_head, k_token, k_head, v_token, v_head, heads, scale, threshold,
    keep_scale, has_dropout: tl.constexpr, needs_gradient: tl.constexpr, size: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr,
):  # fmt: skip
    """O for one tile of queries, with a running maximum m and sum l of the softmax."""
    head, row = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    queries = tl.program_id(0) * block_m + tl.arange(0, block_m)
    if tl.program_id(0) * block_m < length:
        is_query = queries < length
        q_tile = load_tile(q, q_token, q_head, head, start + queries, is_query, size)
        m = tl.full((block_m,), -float("inf"), dtype=tl.float32)
        total = tl.zeros((block_m,), dtype=tl.float32)
        out = tl.zeros((block_m, size), dtype=tl.float32)
        counters = tl.zeros((block_m,), dtype=tl.uint32)
        if has_dropout:
            counters = first_counters(seed, start + queries, heads, head)
        for first in range(0, length, block_n):
            keys = first + tl.arange(0, block_n)
            is_key = keys < length
            k_tile = load_tile(k, k_token, k_head, head, start + keys, is_key, size)
            v_tile = load_tile(v, v_token, v_head, head, start + keys, is_key, size)
            scores = tl.dot(q_tile, tl.trans(k_tile)) * scale  # (block_m, block_n)
            scores = tl.where(is_key[None, :], scores, -float("inf"))
            new_m = tl.maximum(m, tl.max(scores, axis=1))
            p = tl.exp2(scores - new_m[:, None])
            correction = tl.exp2(m - new_m)
            total = total * correction + tl.sum(p, axis=1)
            if has_dropout:
                p = tl.where(is_kept(counters[:, None], keys[None, :], threshold), p, 0.0)
            out = tl.dot(p.to(v_tile.dtype), v_tile, out * correction[:, None])
            m = new_m
        out = out * (keep_scale / total)[:, None]
        store_tile(o, out, heads * size, size, head, start + queries, is_query, size)
        if needs_gradient:
            tl.store(logsumexp + (start + queries) * heads + head, m + tl.log2(total), mask=is_query)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def attention_backward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, o, grad_o, logsumexp, grad_qkv, cu_seqlens, seed, q_token, q_head, k_token, k_head, v_token, v_head, heads,
    scale, grad_scale, threshold, keep_scale, has_dropout: tl.constexpr, size: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr,
):  # fmt: skip
    """dK and dV for one tile of keys, or dQ for one tile of queries; `grad_qkv` is (tokens, 3, heads, size)."""
    head, row = tl.program_id(1), tl.program_id(2)
    start = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - start
    tile = tl.program_id(0) // 2
    stride = 3 * heads * size  # of a token in grad_qkv
    if tl.program_id(0) % 2 == 0:
        if tile * block_n < length:
            keys = tile * block_n + tl.arange(0, block_n)
            is_key = keys < length
            k_tile = load_tile(k, k_token, k_head, head, start + keys, is_key, size)
            v_tile = load_tile(v, v_token, v_head, head, start + keys, is_key, size)
            grad_k = tl.zeros((block_n, size), dtype=tl.float32)
            grad_v = tl.zeros((block_n, size), dtype=tl.float32)
            for first in range(0, length, block_m):
                queries = first + tl.arange(0, block_m)
                is_query = queries < length
                q_tile = load_tile(q, q_token, q_head, head, start + queries, is_query, size)
                grad_tile = load_tile(grad_o, heads * size, size, head, start + queries, is_query, size)
                o_tile = load_tile(o, heads * size, size, head, start + queries, is_query, size)
                base = tl.load(logsumexp + (start + queries) * heads + head, mask=is_query, other=float("inf"))
                delta = tl.sum(grad_tile.to(tl.float32) * o_tile.to(tl.float32), axis=1)
                p = tl.exp2(tl.dot(k_tile, tl.trans(q_tile)) * scale - base[None, :])  # (block_n, block_m)
                grad_p = tl.dot(v_tile, tl.trans(grad_tile))
                dropped = p
                if has_dropout:
                    counters = first_counters(seed, start + queries, heads, head)
                    kept = is_kept(counters[None, :], keys[:, None], threshold)
                    dropped = tl.where(kept, p, 0.0)
                    grad_p = tl.where(kept, grad_p * keep_scale, 0.0)
                grad_v = tl.dot(dropped.to(grad_tile.dtype), grad_tile, grad_v)
                grad_s = p * (grad_p - delta[None, :])
                grad_k = tl.dot(grad_s.to(q_tile.dtype), q_tile, grad_k)
            grad = grad_qkv + heads * size
            store_tile(grad, grad_k * grad_scale, stride, size, head, start + keys, is_key, size)
            store_tile(grad + heads * size, grad_v * keep_scale, stride, size, head, start + keys, is_key, size)
    else:
        if tile * block_m < length:
            queries = tile * block_m + tl.arange(0, block_m)
            is_query = queries < length
            q_tile = load_tile(q, q_token, q_head, head, start + queries, is_query, size)
            grad_tile = load_tile(grad_o, heads * size, size, head, start + queries, is_query, size)
            o_tile = load_tile(o, heads * size, size, head, start + queries, is_query, size)
            base = tl.load(logsumexp + (start + queries) * heads + head, mask=is_query, other=float("inf"))
            delta = tl.sum(grad_tile.to(tl.float32) * o_tile.to(tl.float32), axis=1)
            counters = tl.zeros((block_m,), dtype=tl.uint32)
            if has_dropout:
                counters = first_counters(seed, start + queries, heads, head)
            grad_q = tl.zeros((block_m, size), dtype=tl.float32)
            for first in range(0, length, block_n):
                keys = first + tl.arange(0, block_n)
                is_key = keys < length
                k_tile = load_tile(k, k_token, k_head, head, start + keys, is_key, size)
                v_tile = load_tile(v, v_token, v_head, head, start + keys, is_key, size)
                p = tl.exp2(tl.dot(q_tile, tl.trans(k_tile)) * scale - base[:, None])  # (block_m, block_n)
                grad_p = tl.dot(grad_tile, tl.trans(v_tile))
                if has_dropout:
                    kept = is_kept(counters[:, None], keys[None, :], threshold)
                    grad_p = tl.where(kept, grad_p * keep_scale, 0.0)
                grad_s = p * (grad_p - delta[:, None])
                grad_q = tl.dot(grad_s.to(k_tile.dtype), k_tile, grad_q)
            store_tile(grad_qkv, grad_q * grad_scale, stride, size, head, start + queries, is_query, size)


def _numbers(scale: float, dropout: float) -> tuple[float, int, float]:
    """The scale to the base 2, the smallest random number of an entry that is kept, and 1 / (1 - dropout)."""
    return scale * LOG2_E, min(int(dropout * 2**32), 2**32 - 1), 1 / (1 - dropout)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


def forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_length: int, seed: Tensor, dropout: float, scale: float,
    needs_gradient: bool, options: dict[str, int] = FORWARD,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """O, (tokens, heads, size), and, where a gradient is needed, log2 sum 2^S of each query: (tokens, heads)."""
    tokens, heads, size = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    logsumexp = torch.empty((tokens, heads) if needs_gradient else 1, device=q.device)
    grid: Any = (triton.cdiv(max_length, options["block_m"]), heads, len(cu_seqlens) - 1)
    flags = {"has_dropout": dropout > 0, "needs_gradient": needs_gradient, "size": size}
    tensors = q, k, v, o, logsumexp, cu_seqlens, seed
    attention_forward_kernel[grid](*tensors, *_strides(q, k, v), heads, *_numbers(scale, dropout), **flags, **options)
    return o, logsumexp


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsumexp: Tensor, cu_seqlens: Tensor, max_length: int,
    seed: Tensor, dropout: float, scale: float, options: dict[str, int] = BACKWARD,
) -> Tensor:  # fmt: skip
    """The gradients of q, k and v in one tensor: (tokens, 3, heads, size)."""
    tokens, heads, size = q.shape
    grad_qkv = torch.empty((tokens, 3, heads, size), dtype=q.dtype, device=q.device)
    tiles = triton.cdiv(max_length, min(options["block_m"], options["block_n"]))
    grid: Any = (2 * tiles, heads, len(cu_seqlens) - 1)
    tensors = q, k, v, o, grad_o, logsumexp, grad_qkv, cu_seqlens, seed
    base2, threshold, keep_scale = _numbers(scale, dropout)
    numbers = base2, scale, threshold, keep_scale
    flags = {"has_dropout": dropout > 0, "size": size}
    attention_backward_kernel[grid](*tensors, *_strides(q, k, v), heads, *numbers, **flags, **options)
    return grad_qkv
