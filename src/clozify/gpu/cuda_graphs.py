"""Training steps captured as CUDA graphs and replayed, since launching their kernels takes longer than running them.

Replaces the eager step of the training loop on one GPU. A graph needs inputs of a fixed shape, so batches are padded to
few shapes, and each shape is captured when it first occurs. The first steps, and all steps if capturing fails, run
eagerly. Captured and eager steps give the same weights to the bit, except that Transformers leaves out the attention
mask of a padded batch in which no row is shorter in eager steps only: another kernel then draws other dropout masks.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it a
fine-tuning step takes 6.8 times as long (8.5 instead of 58.1 steps/s), a distillation step 6.2 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.gpu.fallback import warn_fallback
from clozify.gpu.features import is_enabled

WIDTH_MULTIPLE = 32  # padded widths are multiples of it, since each width is a graph of its own
COUNT_MULTIPLE = 64  # the same for the number of masked tokens
WARM_UP_STEPS = 2  # run eagerly first: libraries and the optimizer initialise their state
Arrays = Mapping[str, NDArray[Any]]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CapturableStep:
    """A training step split into what the host prepares and what the device computes without synchronising."""

    arrays: Callable[[], Arrays]  # returns the next step's inputs
    loss: Callable[[Mapping[str, Tensor]], Tensor]  # computes the loss, or (losses,), from these inputs on the device


def padded_width(width: int, max_length: int) -> int:
    """The width that a batch is padded to: a multiple of `WIDTH_MULTIPLE`, but not above the model's maximum length."""
    return min(-(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, max(max_length, width))


def padded_count(count: int, capacities: dict[int, int], width: int) -> int:
    """The length that a list of random length is padded to; `capacities` keeps it constant per width while it suffices.

    It is never 0, also for a step in which no token was masked.
    """
    if count > capacities.get(width, 0):
        capacities[width] = -(-int(1.2 * count) // COUNT_MULTIPLE) * COUNT_MULTIPLE
    return capacities.setdefault(width, COUNT_MULTIPLE)


def pad_last_axis(array: NDArray[Any], width: int, fill: int = 0) -> NDArray[Any]:
    """A copy of an array with its last axis padded to `width`."""
    padded = np.full((*array.shape[:-1], width), fill, dtype=array.dtype)
    padded[..., : array.shape[-1]] = array
    return padded


@dataclass
class _CapturedStep:
    graph: Any
    inputs: dict[str, Tensor]  # the graph reads them
    loss: Tensor  # the graph writes it


class CudaGraphRunner:
    """Runs a `CapturableStep` on a GPU: loss, backward pass and `optimizer_step`, as CUDA graphs where possible."""

    def __init__(
        self, module: nn.Module, step: CapturableStep, optimizer_step: Callable[[], None], autocast: Any
    ) -> None:
        self.module, self.capturable, self.optimizer_step, self.autocast = module, step, optimizer_step, autocast
        self.device = next(module.parameters()).device
        self.captured: dict[Shapes, _CapturedStep] = {}
        self.step_count = 0
        self.stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.pool: Any = torch.cuda.graph_pool_handle()  # shared: the graphs never run at the same time
        self.can_capture = is_enabled("cuda_graphs")  # until capturing fails

    @contextmanager
    def side_stream(self) -> Iterator[CudaGraphRunner]:
        """Run steps on a side stream, as capturing requires; release the graphs afterwards."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self.stream):
                yield self
        finally:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self.captured.clear()

    def step(self) -> Tensor:
        """Run one training step and return its loss; the next step of the same shape overwrites that tensor."""
        arrays = self.capturable.arrays()
        shapes = tuple(array.shape for array in arrays.values())
        self.step_count += 1
        if shapes not in self.captured:
            if self.can_capture and self.step_count > WARM_UP_STEPS:
                self._capture(shapes, arrays)
            if shapes not in self.captured:
                return self._eager_step({name: self._to_device(array) for name, array in arrays.items()})
        captured = self.captured[shapes]
        for name, array in arrays.items():
            captured.inputs[name].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        captured.graph.replay()
        return captured.loss

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def _eager_step(self, inputs: Mapping[str, Tensor]) -> Tensor:
        # the device is the default for tensors that a model creates: a graph cannot copy from the host
        with self.autocast(), self.device:
            loss = self.capturable.loss(inputs)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer_step()
        return loss.detach()

    def _capture(self, shapes: Shapes, arrays: Arrays) -> None:
        """Capture the step for inputs of these shapes; nothing is computed yet."""
        inputs = {name: self._to_device(array) for name, array in arrays.items()}
        graph = torch.cuda.CUDAGraph()
        rng_state = torch.cuda.get_rng_state(self.device)
        try:
            torch.cuda.synchronize(self.device)
            # torch.cuda.graph would collect garbage and empty the cache first, which takes longer than capturing
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                loss = self._eager_step(inputs)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            self.can_capture = False
            torch.cuda.synchronize(self.device)
            torch.cuda.set_rng_state(rng_state, self.device)
            self.module.zero_grad(set_to_none=True)
            warn_fallback("CUDA graphs of training steps", f"capturing failed with: {error}")
            return
        torch.cuda.set_rng_state(rng_state, self.device)
        self.captured[shapes] = _CapturedStep(graph, inputs, loss)
