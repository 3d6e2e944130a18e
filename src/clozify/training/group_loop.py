"""The training loop of several members at once, whose adapters are stacked (`models/lora_group.py`).

Every step has a loss for each member. A member's gradients depend on its own loss alone, are clipped to their own norm,
and AdamW, which treats every weight by itself, is the same as an optimizer for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clozify.config.recipe import Training
from clozify.gpu.cuda_graphs import CapturableStep, CudaGraphRunner
from clozify.training.loop import LOG_EVERY, autocast_to_bf16, check_loss
from clozify.training.optim import make_optimizer, make_schedule
from clozify.utils import libraries

OnStep = Callable[[int, Sequence[float]], None]  # (step, each member's mean loss since the last call)


@torch.no_grad()
def clip_member_norms(gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale each member's gradients to a norm of at most `max_norm`, in place: (members, ...) each.

    The formula is that of `torch.nn.utils.clip_grad_norm_`.
    """
    of_tensors = torch.stack([torch.linalg.vector_norm(each.flatten(1), dim=1) for each in gradients])
    norms = torch.linalg.vector_norm(of_tensors, dim=0)  # (members,)
    scale = (max_norm / (norms + 1e-6)).clamp(max=1)
    for each in gradients:
        each.mul_(scale.view(-1, *[1] * (each.ndim - 1)))


@libraries.without_cudnn_attention()
def train_group(
    module: nn.Module,
    step: CapturableStep,
    settings: Training,
    rows: int,
    on_step: OnStep,
    bf16: bool = False,
    cuda_graphs: bool = False,
) -> list[list[float]]:
    """Train stacked adapters in place, each on `rows` rows; returns each reading of the members' mean losses.

    `step` returns the members' losses, (members,). With `cuda_graphs` a GPU records and replays the steps.
    """
    optimizer = make_optimizer(module, settings, capturable=cuda_graphs)
    schedule = make_schedule(optimizer, settings, rows)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def update() -> None:
        clip_member_norms([p.grad for p in parameters if p.grad is not None], settings.max_grad_norm)
        optimizer.step()
        module.zero_grad(set_to_none=True)

    readings: list[list[float]] = []
    steps, total, counted = settings.steps(rows), torch.zeros(()), 0
    module.train()
    try:
        with _stepper(module, step, update, bf16, cuda_graphs) as take_step:
            for number in range(1, steps + 1):
                losses = take_step()  # (members,)
                schedule.step()
                total, counted = (total + losses if counted else losses.clone()), counted + 1
                if counted == LOG_EVERY or number == steps:
                    readings.append((total.cpu().double() / counted).tolist())
                    for loss in readings[-1]:
                        check_loss(loss, number, settings)
                    on_step(number, readings[-1])
                    counted = 0
    finally:
        module.eval()
    return readings


@contextmanager
def _stepper(
    module: nn.Module, step: CapturableStep, update: Callable[[], None], bf16: bool, cuda_graphs: bool
) -> Iterator[Callable[[], Tensor]]:
    """Yields a function that takes a step and returns the members' losses, as a CUDA graph or in plain PyTorch."""
    autocast = autocast_to_bf16(module, bf16)
    device = next(module.parameters()).device
    if cuda_graphs:
        try:
            with CudaGraphRunner(module, step, update, autocast).side_stream() as runner:
                yield runner.step
        finally:
            torch.cuda.empty_cache()  # the next training, on a stream of its own, could not use this one's memory
        return

    def eager_step() -> Tensor:
        with autocast():
            losses = step.loss({name: torch.from_numpy(array).to(device) for name, array in step.arrays().items()})
        losses.sum().backward()  # type: ignore[no-untyped-call]
        update()
        return losses.detach()

    yield eager_step
