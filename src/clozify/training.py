"""The one training loop, on Accelerate: AdamW, linear decay, clipped gradients, exactly the steps asked for.

In: a module and a function that gives a step's loss. Out: the module trained in place and the course of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.errors import TrainingError
from clozify.recipe import Training

CHECK_EVERY = 25  # steps between looks at the loss: a look waits for the device


def seed_everything(seed: int) -> np.random.Generator:
    """Same seed, same machine: the same dropout, the same batches. Returns the source of chance for batches."""
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


def endless(rows: int, count: int, chance: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """`count` row numbers at a time, for ever: pass after pass in a new order, also when there are fewer rows."""
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < count:
            waiting = np.concatenate([waiting, chance.permutation(rows)])
        yield waiting[:count]
        waiting = waiting[count:]


def make_optimizer(module: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """AdamW without weight decay on biases and layer norms (as Transformers' scripts of the paper's time)."""
    decayed = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in module.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=next(module.parameters()).is_cuda
    )


def learning_rate_at(step: int, steps: int, warmup: int) -> float:
    """The share of the peak learning rate at a step: up over the warm-up, then down to 0 in a line."""
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (steps - step) / max(1, steps - warmup))


def train(
    module: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    settings: Training,
    steps: int,
    accelerator: Any,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train for exactly `steps` steps; returns the mean loss of each stretch of `CHECK_EVERY` steps."""
    optimizer = make_optimizer(module, settings)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_at(step, steps, settings.warmup_steps)
    )
    module.train()
    course: list[float] = []
    total, counted = torch.zeros((), device=next(module.parameters()).device), 0
    for step in range(1, steps + 1):
        with accelerator.autocast():
            loss = loss_of_step(step - 1)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        total, counted = total + loss.detach(), counted + 1
        if counted == CHECK_EVERY or step == steps:
            mean = float(total) / counted
            if not np.isfinite(mean):
                raise TrainingError(
                    f"The loss is {mean} at step {step}; lower the learning rate ({settings.learning_rate:g}) or check "
                    "the data. What is finished is kept: the same command goes on from there."
                )
            course.append(mean)
            on_step(step, mean)
            total, counted = torch.zeros_like(total), 0
    module.eval()
    return course
