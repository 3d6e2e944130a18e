"""Several rows end to end in one line of a batch, each looking at itself alone: a GPU then computes no padding.

In: a batch of rows. Out: a few lines of one width, and where each row lies in them. An encoder can read them when it
takes positions and a mask of its own; `takes_packed` finds out by trying.
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

from clozify.encode import Batch, Encoded


@dataclass(frozen=True)
class Packed:
    """Lines of rows, and the line and the place in it where each row begins."""

    arrays: dict[str, NDArray[np.int64]]  # each (lines, width)
    line: NDArray[np.int64]  # (rows,)
    start: NDArray[np.int64]  # (rows,)


def line_width(*sets: Encoded) -> int:
    """How wide lines are for such rows: one row of the greatest length fits, short ones fill it well."""
    longest = max(encoded.max_length for encoded in sets)
    usual = max(float(np.mean(encoded.lengths)) for encoded in sets)
    return longest if 3 * usual <= longest else 2 * longest


def pack(batch: Batch, width: int, pad_id: int) -> Packed:
    """Lay rows into lines of a width, the longest first, each into the first line with room."""
    lengths = batch.attention_mask.sum(axis=1)
    line, start = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
    filled: list[int] = []
    for row in np.argsort(-lengths, kind="stable"):
        place = next((n for n, taken in enumerate(filled) if taken + lengths[row] <= width), len(filled))
        if place == len(filled):
            filled.append(0)
        line[row], start[row] = place, filled[place]
        filled[place] += int(lengths[row])
    rows, within = np.nonzero(batch.attention_mask)
    at = line[rows], start[rows] + within
    shape = (len(filled), width)
    arrays = {
        "input_ids": np.full(shape, pad_id, dtype=np.int64),
        "token_type_ids": np.zeros(shape, dtype=np.int64),
        "positions_in_row": np.zeros(shape, dtype=np.int64),
        "row": np.full(shape, -1, dtype=np.int64),  # whose token it is
    }
    arrays["input_ids"][at] = batch.input_ids[rows, within]
    arrays["token_type_ids"][at] = batch.token_type_ids[rows, within]
    arrays["positions_in_row"][at] = within
    arrays["row"][at] = rows
    return Packed(arrays, line, start)


def first_position(encoder: nn.Module) -> int:
    """The number of a row's first position: RoBERTa and its kin count on from the padding id."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def read_packed(encoder: nn.Module, inputs: Mapping[str, Tensor], typed: bool, first: int) -> Any:
    """What an encoder makes of lines of rows."""
    of = inputs["row"]
    mask = (of[:, :, None] == of[:, None, :])[:, None]  # (lines, 1, width, width)
    dtype = next(encoder.parameters()).dtype
    if dtype != torch.float32:  # as a number to add, once for all layers
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    given = {
        "input_ids": inputs["input_ids"],
        "position_ids": inputs["positions_in_row"] + first,
        "attention_mask": mask,
    }
    with as_it_is(encoder):
        return encoder(**given, **({"token_type_ids": inputs["token_type_ids"]} if typed else {}))


@contextmanager
def as_it_is(encoder: nn.Module) -> Iterator[None]:
    """An encoder in bf16 computes in bf16: autocast has nothing to do there."""
    first = next(encoder.parameters())
    if first.dtype == torch.float32:
        yield
        return
    with torch.autocast(first.device.type, enabled=False):
        yield


@torch.inference_mode()
def takes_packed(encoder: nn.Module, typed: bool, pad_id: int) -> bool:
    """Whether an encoder's states are the same for rows in lines as for rows by themselves."""
    device = next(encoder.parameters()).device
    ids = np.arange(24, dtype=np.int64).reshape(3, 8) + pad_id + 1
    attention = (np.arange(8) < np.array([8, 5, 3])[:, None]).astype(np.int64)
    batch = Batch(np.arange(3), np.where(attention, ids, pad_id), attention, np.zeros_like(ids), np.zeros(3, np.int64))
    packed = pack(batch, 13, pad_id)
    plain = {"input_ids": batch.input_ids, "attention_mask": attention}
    try:
        alone = encoder(**{name: torch.from_numpy(array).to(device) for name, array in plain.items()})[0]
        inputs = {name: torch.from_numpy(array).to(device) for name, array in packed.arrays.items()}
        together = read_packed(encoder, inputs, typed, first_position(encoder))[0]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    rows, within = (torch.from_numpy(part).to(device) for part in np.nonzero(attention))
    line, start = torch.from_numpy(packed.line).to(device), torch.from_numpy(packed.start).to(device)
    return torch.allclose(alone[rows, within], together[line[rows], start[rows] + within], atol=1e-3)
