"""Additive attention masks computed on the device, so that a training step can be captured as a CUDA graph.

For encoders without a fused attention (MPNet), some versions of Transformers build the additive mask from a number on
the host, which a graph cannot capture. Such encoders also accept a mask that is additive already;
`accepts_additive_mask` tests it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def additive_mask(attention_mask: Tensor, encoder: nn.Module) -> Tensor:
    """A mask of ones and zeros, (batch, width), as a term of the attention scores: (batch, 1, 1, width)."""
    dtype = next(encoder.parameters()).dtype
    zeros = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    return zeros.masked_fill(attention_mask == 0, torch.finfo(dtype).min)[:, None, None, :]


@torch.inference_mode()
def accepts_additive_mask(encoder: nn.Module, pad_id: int, ids: NDArray[np.int64]) -> bool:
    """Whether an encoder uses eager attention and computes the same states with an additive mask.

    It is tried with 8 `ids` of ordinary tokens.
    """
    if getattr(encoder.config, "_attn_implementation", None) != "eager":
        return False
    device = next(encoder.parameters()).device
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3], device=device)
    input_ids = torch.where(mask == 1, torch.from_numpy(ids).to(device), pad_id)
    try:
        expected = encoder(input_ids=input_ids, attention_mask=mask)[0]
        states = encoder(input_ids=input_ids, attention_mask=additive_mask(mask, encoder))[0]
    except (AttributeError, RuntimeError, ValueError, IndexError, TypeError):
        return False
    return torch.allclose(expected[mask == 1], states[mask == 1], atol=1e-5)
