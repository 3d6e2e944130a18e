"""The attention mask of padded rows, made where the weights are: a step that a GPU replays cannot ask the host.

In: a mask of ones and zeros. Out: what is added to the attention's scores. For encoders that write their attention out
(MPNet), some versions of Transformers make it from a number of the host; they also take it ready made: `takes_added`
finds out by trying.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def added(attention_mask: Tensor, encoder: nn.Module) -> Tensor:
    """A mask, (rows, width), as what is added to scores: (rows, 1, 1, width)."""
    dtype = next(encoder.parameters()).dtype
    nothing = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    return nothing.masked_fill(attention_mask == 0, torch.finfo(dtype).min)[:, None, None, :]


@torch.inference_mode()
def accepts_additive_mask(encoder: nn.Module, pad_id: int) -> bool:
    """Whether an encoder writes its attention out, and has the same states with a mask that is added."""
    if getattr(encoder.config, "_attn_implementation", None) != "eager":
        return False
    device = next(encoder.parameters()).device
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3], device=device)
    ids = torch.where(mask == 1, torch.arange(8, device=device) + pad_id + 1, pad_id)
    try:
        plain = encoder(input_ids=ids, attention_mask=mask)[0]
        ready = encoder(input_ids=ids, attention_mask=added(mask, encoder))[0]
    except (AttributeError, RuntimeError, ValueError, IndexError, TypeError):
        return False
    return torch.allclose(plain[mask == 1], ready[mask == 1], atol=1e-5)
