"""The training loop of every model: AdamW, linear decay, clipped gradients, exactly the configured number of steps.

A step is a function that returns its loss, which runs eagerly on any device, or a `CapturableStep`, which a GPU records
as a CUDA graph and replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import Dev, Training
from clozify.errors import TrainingError
from clozify.gpu.cuda_graphs import CapturableStep, CudaGraphRunner
from clozify.gpu.fused_layernorm import fused_layernorm
from clozify.gpu.fused_linear import fused_linear_layers
from clozify.gpu.master_weights import MasterWeights
from clozify.training.optim import make_optimizer, make_schedule
from clozify.utils import libraries, memory
from clozify.utils.process_group import current_group

if TYPE_CHECKING:
    from accelerate import Accelerator

LOG_EVERY = 25  # steps between readings of the loss: a reading waits for the device


@dataclass(frozen=True)
class Monitor:
    """Callbacks of a training: steps with their losses, and the score on the development rows."""

    # the step and, every `LOG_EVERY` steps, the mean loss since the last one; other steps, with None, on a CPU alone
    on_step: Callable[[int, float | None], None] = lambda step, loss: None
    dev_score: Callable[[], float] | None = None  # the present weights' score on the development rows; higher is better
    dev: Dev = field(default_factory=Dev)


NO_MONITOR = Monitor()


@dataclass(frozen=True)
class TrainingSetup:
    """What every training takes besides its model and its rows."""

    settings: Training  # a column of appendix B
    rng: np.random.Generator  # draws batches; torch's own generator draws dropout
    accelerator: Accelerator
    monitor: Monitor = NO_MONITOR
    balance: bool = False  # weigh rows so that every label counts the same

    def with_settings(self, settings: Training) -> TrainingSetup:
        """The same with other settings."""
        return replace(self, settings=settings)


def seed_everything(seed: int) -> np.random.Generator:
    """Seed torch, which draws dropout and fresh weights, and return the generator that draws batches."""
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


def cycle_batches(rows: int, batch_size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Endless batches of row indices: epoch after epoch in a new order; a batch may span epochs."""
    if rows == 0:
        raise TrainingError("There are no rows to train on.")
    pending = np.empty(0, dtype=np.int64)
    while True:
        while len(pending) < batch_size:
            order = rng.permutation(rows)
            pending = np.concatenate([pending, order]) if len(pending) else order  # no copy of a long permutation
        yield pending[:batch_size]
        pending = pending[batch_size:]


def balanced_batches(
    labels: NDArray[Any], batch_size: int, rng: np.random.Generator, rows_per_label: int = 1
) -> Iterator[NDArray[np.int64]]:
    """Endless batches of row indices with every label equally often: labels and each label's rows in random order.

    `rows_per_label` rows of a label follow each other. Of a label matrix, (rows, labels), rows without any label are
    drawn as often as those of a label.
    """
    if labels.ndim == 2:
        rows = [np.flatnonzero(column) for column in [*labels.T, ~labels.any(axis=1)] if column.any()]
    else:
        rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    next_labels = cycle_batches(len(rows), -(-batch_size // rows_per_label), rng)
    next_rows = [cycle_batches(len(of_label), 1, rng) for of_label in rows]
    while True:
        drawn = np.repeat(next(next_labels), rows_per_label)[:batch_size]
        yield np.array([rows[label][next(next_rows[label])[0]] for label in drawn], dtype=np.int64)


def class_weights(labels: NDArray[Any], count: int) -> Tensor:
    """Weights that make every label count the same: rows / (labels * rows with the label), (labels,).

    Of a label matrix, (rows, labels), they are divided by their mean.
    """
    frequencies = np.bincount(labels, minlength=count) if labels.ndim == 1 else labels.sum(axis=0)
    frequencies = frequencies.astype(np.float32)
    weights = len(labels) / (count * np.maximum(frequencies, 1))
    return torch.from_numpy(weights if labels.ndim == 1 else weights / weights.mean())


@dataclass(frozen=True)
class _Stepper:
    """How one training takes a step, copies its float32 weights, and loads such a copy."""

    step: Callable[[int], Tensor]  # the loss of the step with this index
    copy_weights: Callable[[], dict[str, Tensor]]
    load_weights: Callable[[dict[str, Tensor]], None]


@libraries.without_cudnn_attention()
def train(
    module: nn.Module,
    loss_of_step: Callable[[int], Tensor] | CapturableStep,
    setup: TrainingSetup,
    rows: int,
    learning_rates: Mapping[nn.Module, float] | None = None,
    bf16: bool = False,
) -> list[float]:
    """Train a module in place on a data set of `rows` rows; returns the mean loss of each `LOG_EVERY` steps.

    `learning_rates` are peak rates of submodules. In `bf16` the module computes in bf16 and its float32 weights are
    updated. With development rows, the weights with the best score on them are kept, and training may stop early.
    """
    if current_group().rank:  # each rank has its own rows, so its own dropout
        torch.manual_seed(torch.initial_seed() + current_group().rank)
    if isinstance(loss_of_step, CapturableStep):
        with _captured_stepper(module, loss_of_step, setup, rows, learning_rates, bf16) as stepper:
            return _run_steps(module, stepper, setup, rows)
    stepper = _eager_stepper(module, loss_of_step, setup, rows, learning_rates, bf16)
    return _run_steps(module, stepper, setup, rows)


def autocast_to_bf16(module: nn.Module, bf16: bool) -> Callable[[], AbstractContextManager[Any]]:
    """A context manager in which a module computes in bf16 where `bf16`; else it changes nothing."""
    device = next(module.parameters()).device.type
    return partial(torch.autocast, device, torch.bfloat16) if bf16 else nullcontext


def _eager_stepper(
    module: nn.Module,
    loss_of_step: Callable[[int], Tensor],
    setup: TrainingSetup,
    rows: int,
    learning_rates: Mapping[nn.Module, float] | None,
    bf16: bool,
) -> _Stepper:
    """Steps in plain PyTorch."""
    accelerator, settings, autocast = setup.accelerator, setup.settings, autocast_to_bf16(module, bf16)
    optimizer = make_optimizer(module, settings, learning_rates)
    schedule = make_schedule(optimizer, settings, rows)

    def step(index: int) -> Tensor:
        with autocast():
            loss = loss_of_step(index)
        accelerator.backward(loss)
        loss = current_group().sum_gradients(module.parameters(), loss)
        if settings.max_grad_norm:  # 0 turns clipping off
            accelerator.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
        optimizer.step()
        module.zero_grad(set_to_none=True)
        schedule.step()
        return loss

    def copy_weights() -> dict[str, Tensor]:
        state = module.state_dict(keep_vars=True).items()
        return {name: t.detach().clone() for name, t in state if t.requires_grad or not isinstance(t, nn.Parameter)}

    def load_weights(weights: dict[str, Tensor]) -> None:
        module.load_state_dict(weights, strict=False)  # frozen weights were not copied

    return _Stepper(step, copy_weights, load_weights)


@contextmanager
def _captured_stepper(
    module: nn.Module,
    captured: CapturableStep,
    setup: TrainingSetup,
    rows: int,
    learning_rates: Mapping[nn.Module, float] | None,
    bf16: bool,
) -> Iterator[_Stepper]:
    """Steps that a GPU replays as CUDA graphs; in bf16 the encoder computes with copies of its float32 weights."""
    accelerator, settings = setup.accelerator, setup.settings
    encoder = getattr(module, "base_model", module) if bf16 else nn.Module()
    try:
        with MasterWeights(module, encoder, settings).low_precision() as master:
            fused = encoder if master.float32 else nn.Module()
            optimizer = make_optimizer(module, settings, learning_rates, master.float32, capturable=True)
            schedule = make_schedule(optimizer, settings, rows)
            remaining = [p for p in module.parameters() if p not in master.float32]

            def update() -> None:
                if master.float32:
                    master.step([p.grad for p in remaining if p.grad is not None])
                elif settings.max_grad_norm:
                    accelerator.clip_grad_norm_(remaining, settings.max_grad_norm)
                optimizer.step()
                module.zero_grad(set_to_none=True)

            def step(index: int) -> Tensor:
                master.set_learning_rate(settings.learning_rate * schedule.lr_lambdas[0](index))
                loss = runner.step()
                schedule.step()
                return loss

            with (
                fused_linear_layers(fused, master.direct_gradients),
                fused_layernorm(fused, master.direct_gradients),
                CudaGraphRunner(module, captured, update, autocast_to_bf16(module, bf16)).side_stream() as runner,
            ):
                yield _Stepper(step, master.state_dict, master.load_state_dict)
    finally:
        torch.cuda.empty_cache()  # the next training, on a stream of its own, could not use this one's memory


class _BestWeights:
    """The weights with the best score on the development rows so far."""

    def __init__(self, module: nn.Module, stepper: _Stepper, monitor: Monitor) -> None:
        self.module, self.stepper, self.monitor = module, stepper, monitor
        self.score, self.evaluations_since_best = -np.inf, 0
        self.weights: dict[str, Tensor] = {}

    def evaluate(self) -> bool:
        """Score the present weights, keep them if they are the best; whether to stop."""
        assert self.monitor.dev_score is not None
        self.module.eval()
        score = self.monitor.dev_score()
        self.module.train()
        self.evaluations_since_best += 1
        if score > self.score:
            self.score, self.evaluations_since_best = score, 0
            self.weights = self.stepper.copy_weights()
        return 0 < self.monitor.dev.patience <= self.evaluations_since_best


def check_loss(loss: float, step: int, settings: Training) -> None:
    """Raise where a loss is not a number."""
    if not np.isfinite(loss):
        raise TrainingError(
            f"The loss is {loss} at step {step}; lower the learning rate ({settings.learning_rate:g}) or check the "
            "data. What is finished is kept: the same command resumes."
        )


def _run_steps(module: nn.Module, stepper: _Stepper, setup: TrainingSetup, rows: int) -> list[float]:
    """Take all steps, read the loss every `LOG_EVERY` of them, evaluate on development rows; returns the losses."""
    monitor, steps = setup.monitor, setup.settings.steps(rows)
    best = _BestWeights(module, stepper, monitor) if monitor.dev_score is not None else None
    module.train()
    losses: list[float] = []
    device = next(module.parameters()).device
    total, counted = torch.zeros((), device=device), 0
    for step in range(1, steps + 1):
        total, counted = total + stepper.step(step - 1), counted + 1
        if counted == LOG_EVERY or step == steps:
            mean = float(total) / counted
            check_loss(mean, step, setup.settings)
            losses.append(mean)
            monitor.on_step(step, mean)
            total, counted = torch.zeros_like(total), 0
            if device.type == "cpu":
                memory.return_freed_memory()
        elif device.type == "cpu":  # a step may take seconds
            monitor.on_step(step, None)
        if best is not None and (step % monitor.dev.every == 0 or step == steps) and best.evaluate():
            break
    if best is not None and best.weights:
        stepper.load_weights(best.weights)
    module.eval()
    return losses
