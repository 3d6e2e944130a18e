"""The optimizer and the learning-rate schedule of appendix B: AdamW, linear warm-up, linear decay to 0.

In bf16 on one GPU, the encoder is updated by `gpu/flat_adamw.py` instead; `training/loop.py` chooses.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from clozify.config.recipe import Training


def make_optimizer(
    module: nn.Module,
    settings: Training,
    learning_rates: Mapping[nn.Module, float] | None = None,
    exclude: Container[nn.Parameter] = (),
    capturable: bool = False,
) -> torch.optim.AdamW:
    """AdamW without weight decay on biases and layer norms, as in Transformers' scripts of the paper's time.

    `learning_rates` override `settings.learning_rate` for submodules; `exclude` are parameters that
    another optimizer updates. A `capturable` optimizer keeps its learning rates in tensors, which a CUDA graph reads.
    """
    rate_of = {p: rate for submodule, rate in (learning_rates or {}).items() for p in submodule.parameters()}
    device = next(module.parameters()).device
    trainable = [p for p in module.parameters() if p.requires_grad and p not in exclude]
    groups: list[dict[str, Any]] = []
    for peak in dict.fromkeys([settings.learning_rate, *rate_of.values()]):
        parameters = [p for p in trainable if rate_of.get(p, settings.learning_rate) == peak]
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
        for params, decay in ((matrices, settings.weight_decay), (vectors, 0.0)):
            rate = torch.tensor(peak, device=device) if capturable else peak
            # the schedule multiplies `initial_lr`, a float, whatever `lr` is
            groups.append({"params": params, "weight_decay": decay, "lr": rate, "initial_lr": peak})
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        eps=settings.adam_epsilon,
        fused=device.type == "cuda",
        capturable=capturable,
    )


def make_schedule(optimizer: torch.optim.Optimizer, settings: Training, rows: int) -> LambdaLR:
    """The settings' learning-rate schedule: linear warm-up, then linear decay to 0, or constant."""
    from transformers import get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

    decay_steps = settings.decay_steps(rows)
    schedule: LambdaLR
    if decay_steps is None:
        schedule = get_constant_schedule_with_warmup(optimizer, settings.warmup_steps)
    else:
        schedule = get_linear_schedule_with_warmup(optimizer, settings.warmup_steps, decay_steps)
    return schedule
