"""Rows end to end in one line, each looking at itself alone: a GPU then computes no padding, and reads no mask.

In: a batch of rows. Out: the line, and where each row begins in it. An encoder can read it when it takes positions and
an attention of our own, as those of Transformers do that most people use; `takes_packed` finds out by trying.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from clozify.prompts.encode import Batch

ATTENTION = "clozify_rows"
STEP = 128  # lines of training are a multiple of it, long ones of its double: each length is recorded by itself
LONG = 1024
HALF = (torch.bfloat16, torch.float16)  # what flash attention computes in
UNKNOWN = ("sliding_window", "softcap", "position_bias", "s_aux")  # what some attentions have besides


@dataclass(frozen=True)
class PackedBatch:
    """A line of rows, and the place in it where each begins."""

    arrays: dict[str, NDArray[Any]]  # (1, tokens) each, and `bounds`, (rows + 1,)
    start: NDArray[np.int64]  # (rows,)


def pack(batch: Batch, pad_id: int, in_steps: bool = False) -> PackedBatch:
    """Lay rows end to end; `in_steps`, padding follows as one more row, up to one of a few lengths."""
    lengths = batch.attention_mask.sum(axis=1)
    ends = np.cumsum(lengths)
    tokens, bounds = int(ends[-1]), [0, *ends]
    if in_steps:
        step = STEP if tokens < LONG else 2 * STEP
        tokens = (tokens // step + 1) * step  # at least one token of padding: a row without any is not for a kernel
        bounds.append(tokens)
    rows, within = np.nonzero(batch.attention_mask)
    start = ends - lengths
    at = start[rows] + within
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": np.full((1, tokens), pad_id, dtype=np.int64),
        "token_type_ids": np.zeros((1, tokens), dtype=np.int64),
        "positions_in_row": np.zeros((1, tokens), dtype=np.int64),
        "bounds": np.array(bounds, dtype=np.int32),
    }
    arrays["input_ids"][0, at] = batch.input_ids[rows, within]
    arrays["token_type_ids"][0, at] = batch.token_type_ids[rows, within]
    arrays["positions_in_row"][0, at] = within
    return PackedBatch(arrays, start)


def varlen_attention(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    __: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    **more: Any,
) -> tuple[Tensor, None]:
    """Each row's attention to itself, (1, heads, tokens, size) -> (1, tokens, heads, size), as Transformers asks."""
    if asked := [name for name in UNKNOWN if more.get(name) is not None]:
        raise TypeError(f"rows in a line are read without {asked[0]}")
    if query.is_cuda and query.dtype in HALF:
        rows = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))  # (tokens, heads, size)
        bounds, longest = (cu_seq_lens_q, cu_seq_lens_q), (max_length_q, max_length_q)
        found = torch.ops.aten._flash_attention_forward(*rows, *bounds, *longest, dropout, False, False, scale=scaling)
        return found[0][None], None
    places = torch.arange(query.shape[2], dtype=cu_seq_lens_q.dtype, device=query.device)
    of = torch.searchsorted(cu_seq_lens_q, places, right=True)  # whose token it is
    mask = (of[:, None] == of[None, :])[None, None]
    out = functional.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling)
    return out.transpose(1, 2), None


@contextmanager
def _attending(encoder: Any) -> Iterator[None]:
    """Within, the encoder's attention is `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, varlen_attention)
    before = encoder.config._attn_implementation
    encoder.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        encoder.config._attn_implementation = before


def first_position(encoder: nn.Module) -> int:
    """The number of a row's first position: RoBERTa and its kin count on from the padding id."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def encode_packed(encoder: nn.Module, inputs: Mapping[str, Tensor], typed: bool, longest: int) -> Tensor:
    """An encoder's states for a line of rows of at most `longest` tokens: (tokens, hidden)."""
    given = {
        "input_ids": inputs["input_ids"],
        "position_ids": inputs["positions_in_row"] + first_position(encoder),
        "cu_seq_lens_q": inputs["bounds"],
        "max_length_q": max(longest, 2 * STEP),
    }
    with _attending(encoder), autocast_disabled(encoder):
        states: Tensor = encoder(**given, **({"token_type_ids": inputs["token_type_ids"]} if typed else {}))[0]
    return states.squeeze(0)


def is_half_precision(encoder: nn.Module) -> bool:
    """Whether an encoder computes in 16 bits now; in 32 a long line would need a mask of its length squared."""
    first = next(encoder.parameters())
    return first.dtype in HALF or torch.is_autocast_enabled(first.device.type)


@contextmanager
def autocast_disabled(encoder: nn.Module) -> Iterator[None]:
    """An encoder in bf16 computes in bf16: autocast has nothing to do there."""
    first = next(encoder.parameters())
    if first.dtype == torch.float32:
        yield
        return
    with torch.autocast(first.device.type, enabled=False):
        yield


@torch.inference_mode()
def supports_packing(encoder: nn.Module, typed: bool, pad_id: int) -> bool:
    """Whether an encoder's states are the same for rows in a line as for rows by themselves.

    And whether a row's states stay what they are, to the last bit, when its neighbour changes.
    """
    device = next(encoder.parameters()).device
    ids = np.arange(24, dtype=np.int64).reshape(3, 8) + pad_id + 1
    attention = (np.arange(8) < np.array([8, 5, 3])[:, None]).astype(np.int64)
    batch = Batch(np.arange(3), np.where(attention, ids, pad_id), attention, np.zeros_like(ids), np.zeros(3, np.int64))
    packed = pack(batch, pad_id)
    plain = {"input_ids": batch.input_ids, "attention_mask": attention}
    inputs = {name: torch.from_numpy(array).to(device) for name, array in packed.arrays.items()}
    other = inputs | {"input_ids": inputs["input_ids"].clone()}
    other["input_ids"][0, 8:] += 1
    try:
        alone = encoder(**{name: torch.from_numpy(array).to(device) for name, array in plain.items()})[0]
        together, neighboured = (encode_packed(encoder, line, typed, 8) for line in (inputs, other))
        if device.type == "cuda":  # what trains there: another kernel
            with torch.autocast(device.type, torch.bfloat16):
                encode_packed(encoder, inputs, typed, 8)
    except (AttributeError, RuntimeError, ValueError, IndexError, TypeError):
        return False
    rows, within = (torch.from_numpy(part).to(device) for part in np.nonzero(attention))
    start = torch.from_numpy(packed.start).to(device)
    return torch.allclose(alone[rows, within], together[start[rows] + within], atol=1e-3) and torch.equal(
        together[:8], neighboured[:8]
    )
