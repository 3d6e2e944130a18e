"""The one training loop, on Accelerate: AdamW, linear decay, clipped gradients, exactly the steps asked for.

In: a module and a function that gives a step's loss. Out: the module trained in place and the course of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.utils import libraries
from clozify.utils.process_group import current_group, zero_loss

CHECK_EVERY = 25  # steps between looks at the loss: a look waits for the device


@dataclass(frozen=True)
class Monitor:
    """What happens beside training: somebody is told the loss now and then; development rows may decide the end."""

    on_step: Callable[[int, float], None] = lambda step, loss: None
    look: Callable[[], float] | None = None  # how good the module is on the development rows; more is better
    dev: Dev = field(default_factory=Dev)


NO_MONITOR = Monitor()


def seed_everything(seed: int) -> np.random.Generator:
    """Same seed, same machine: the same dropout, the same batches. Returns the source of chance for batches."""
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


def cycle_batches(rows: int, count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """`count` row numbers at a time, for ever: pass after pass in a new order, also when there are fewer rows."""
    if rows == 0:
        raise TrainingError("There are no rows to train on.")
    waiting = np.empty(0, dtype=np.int64)
    while True:
        while len(waiting) < count:
            order = rng.permutation(rows)
            waiting = np.concatenate([waiting, order]) if len(waiting) else order  # a copy of a large pile costs
        yield waiting[:count]
        waiting = waiting[count:]


def make_optimizer(
    module: nn.Module,
    settings: Training,
    rate_of: Mapping[nn.Module, float] | None = None,
    without: Container[nn.Parameter] = (),
) -> torch.optim.Optimizer:
    """AdamW without weight decay on biases and layer norms (as Transformers' scripts of the paper's time).

    `rate_of` gives parts of the module a learning rate of their own; `without` names what is changed otherwise. Each
    group knows its `peak` rate.
    """
    own = {parameter: rate for part, rate in (rate_of or {}).items() for parameter in part.parameters()}
    device = next(module.parameters()).device
    groups: list[dict[str, Any]] = []
    for rate in dict.fromkeys([settings.learning_rate, *own.values()]):
        here = [p for p in module.parameters() if p.requires_grad and own.get(p, settings.learning_rate) == rate]
        here = [p for p in here if p not in without]
        decayed, others = [p for p in here if p.ndim > 1], [p for p in here if p.ndim <= 1]
        for parameters, decay in ((decayed, settings.weight_decay), (others, 0.0)):
            # on a GPU the rate is changed in place, where a recorded step reads it
            now = torch.tensor(rate, device=device) if device.type == "cuda" else rate
            groups.append({"params": parameters, "weight_decay": decay, "lr": now, "peak": rate})
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=on_gpu, capturable=on_gpu
    )


def learning_rate_at(step: int, steps: int | None, warmup: int) -> float:
    """The share of the peak learning rate at a step: up over the warm-up, then down to 0 in a line, or as it is."""
    if step < warmup:
        return step / max(1, warmup)
    if steps is None:
        return 1.0
    return max(0.0, (steps - step) / max(1, steps - warmup))


def class_weights(labels: NDArray[np.int16], count: int) -> Tensor:
    """Weights that make every label count the same: rows / (labels * rows with the label)."""
    found = np.bincount(labels, minlength=count).astype(np.float32)
    return torch.from_numpy(len(labels) / (count * np.maximum(found, 1)))


class _Best:
    """The best weights so far, by looks at the development rows."""

    def __init__(self, module: nn.Module, watch: Monitor, master_weights: MasterWeights) -> None:
        self.module, self.watch, self.master_weights = module, watch, master_weights
        self.score, self.waited = -np.inf, 0
        self.weights: dict[str, Tensor] = {}

    def look(self) -> bool:
        """Look once more; whether to stop."""
        assert self.watch.look is not None
        self.module.eval()
        score = self.watch.look()
        self.module.train()
        self.waited += 1
        if score > self.score:
            self.score, self.waited = score, 0
            self.weights = self.master_weights.state_dict()
        return 0 < self.watch.dev.patience <= self.waited


@contextmanager
def _tidied(on_gpu: bool) -> Iterator[None]:
    """At the end a GPU's memory is given back: the next training, on a stream of its own, could not use it."""
    try:
        yield
    finally:
        if on_gpu:
            torch.cuda.empty_cache()


@libraries.without_cudnn_attention()
def train(
    module: nn.Module,
    loss_of_step: Callable[[int], Tensor] | CapturableStep,
    settings: Training,
    rows: int,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
    rate_of: Mapping[nn.Module, float] | None = None,
) -> list[float]:
    """Train on so many rows, for exactly the steps asked for; returns the mean loss of each `CHECK_EVERY` steps.

    `rate_of` gives parts of the module a learning rate of their own. With development rows to look at, the weights that
    were best on them are kept, and training may stop early. A `CapturableStep` runs on a GPU as CUDA graphs.
    """
    steps, decay = settings.steps(rows), settings.decay_steps(rows)
    own = current_group()
    if own.rank:  # other rows, so another dropout
        torch.manual_seed(torch.initial_seed() + own.rank)
    on_gpu = isinstance(loss_of_step, CapturableStep)
    part = getattr(module, "base_model", module) if on_gpu else nn.Module()
    with (
        _tidied(on_gpu),
        MasterWeights(module, part, settings).low_precision() as master_weights,
        fused_linear_layers(part if master_weights.float32 else nn.Module()),
        fused_layernorm(part if master_weights.float32 else nn.Module()),
    ):
        optimizer = make_optimizer(module, settings, rate_of, master_weights.float32)
        others = [p for p in module.parameters() if p not in master_weights.float32]

        def finish() -> None:
            if master_weights.float32:
                master_weights.step([p.grad for p in others if p.grad is not None])
            elif settings.max_grad_norm:
                accelerator.clip_grad_norm_(others, settings.max_grad_norm)
            optimizer.step()
            module.zero_grad(set_to_none=True)

        def set_rate(step: int) -> None:
            for group in optimizer.param_groups:
                now = group["peak"] * learning_rate_at(step, decay, settings.warmup_steps)
                group["lr"] = group["lr"].fill_(now) if isinstance(group["lr"], Tensor) else now
            master_weights.set_learning_rate(
                settings.learning_rate * learning_rate_at(step, decay, settings.warmup_steps)
            )

        def eager(step: int) -> Tensor:
            assert not isinstance(loss_of_step, CapturableStep)
            with accelerator.autocast():
                loss = loss_of_step(step)
            accelerator.backward(loss)
            loss = own.sum_gradients(module.parameters(), loss)
            finish()
            return loss

        if not isinstance(loss_of_step, CapturableStep):
            return _loop(module, eager, set_rate, steps, settings, watch, master_weights)
        with CudaGraphRunner(module, loss_of_step, finish, accelerator.autocast).side_stream() as runner:
            return _loop(module, lambda _: runner.step(), set_rate, steps, settings, watch, master_weights)


def train_classifier(
    classifier: Classifier,
    encoded: EncodedRows,
    drawn: Callable[[], tuple[Batch, dict[str, NDArray[Any]]]],
    loss: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    settings: Training,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train a classifier; `drawn` gives a step's rows and what else the loss, a mean over rows, wants beside scores."""

    def loss_of_step(_: int) -> Tensor:
        batch, beside = drawn()
        ours, rows = current_group().local_slice(len(batch.rows)), len(batch.rows)
        batch = batch.slice_rows(ours)
        if not len(batch.rows):
            return zero_loss()
        given = {name: torch.from_numpy(array[ours]).to(classifier.device) for name, array in beside.items()}
        return loss(classifier.scores(batch), given) * (len(batch.rows) / rows)

    if classifier.device.type == "cpu" or current_group().size > 1:
        return train(classifier.model, loss_of_step, settings, len(encoded), accelerator, watch)
    step = classifier.capturable_step(drawn, loss, classifier.supports_packing)
    return train(classifier.model, step, settings, len(encoded), accelerator, watch)


def _loop(
    module: nn.Module,
    take: Callable[[int], Tensor],
    set_rate: Callable[[int], None],
    steps: int,
    settings: Training,
    watch: Monitor,
    master_weights: MasterWeights,
) -> list[float]:
    """Take one step after another, look at the loss now and then, and at the development rows."""
    best = _Best(module, watch, master_weights) if watch.look is not None else None
    module.train()
    course: list[float] = []
    total, counted = torch.zeros((), device=next(module.parameters()).device), 0
    for step in range(1, steps + 1):
        set_rate(step - 1)
        total, counted = total + take(step - 1), counted + 1
        if counted == CHECK_EVERY or step == steps:
            mean = float(total) / counted
            if not np.isfinite(mean):
                raise TrainingError(
                    f"The loss is {mean} at step {step}; lower the learning rate ({settings.learning_rate:g}) or check "
                    "the data. What is finished is kept: the same command goes on from there."
                )
            course.append(mean)
            watch.on_step(step, mean)
            total, counted = torch.zeros_like(total), 0
        if best is not None and (step % watch.dev.every == 0 or step == steps) and best.look():
            break
    if best is not None and best.weights:
        master_weights.load_state_dict(best.weights)
    module.eval()
    return course
