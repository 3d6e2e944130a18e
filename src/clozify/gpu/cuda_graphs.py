"""A training step that a GPU replays as one CUDA graph: starting its kernels would take longer than running them.

In: a step whose arrays have one of a few shapes, as `FixedStep`. Out: the same step, done by replaying what was
recorded when its shape was first met. The first steps, and all where recording fails, are taken kernel by kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

WIDTH = 32  # widths are multiples of it: each width is recorded by itself
WARM_UP = 2  # steps that are taken kernel by kernel first: libraries and the optimizer set themselves up
Arrays = Mapping[str, NDArray[Any]]
Shape = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CapturableStep:
    """A step as what the host prepares for it and what the device then computes, without a word between them."""

    arrays: Callable[[], Arrays]  # the next step's
    loss: Callable[[Mapping[str, Tensor]], Tensor]


def padded_width(width: int, longest: int) -> int:
    """The width that a batch is padded to."""
    return min(-(-width // WIDTH) * WIDTH, max(longest, width))


def padded_count(count: int, known: dict[int, int], width: int) -> int:
    """How many entries a list is padded to whose length is left to chance; `known` keeps it the same for a width."""
    if count > known.get(width, 0):
        known[width] = -(-int(1.2 * count) // 64) * 64
    return known[width]


def pad_last_axis(array: NDArray[Any], width: int, fill: int = 0) -> NDArray[Any]:
    """An array with its last axis padded to a width."""
    wide = np.full((*array.shape[:-1], width), fill, dtype=array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide


@dataclass
class _Recorded:
    graph: Any
    inputs: dict[str, Tensor]
    loss: Tensor


class CudaGraphRunner:
    """Takes a `FixedStep`'s steps on a GPU: the loss, the gradient, and what `finish` does with it."""

    def __init__(self, module: nn.Module, step: CapturableStep, finish: Callable[[], None], autocast: Any) -> None:
        self.module, self.step_of, self.finish, self.autocast = module, step, finish, autocast
        self.device = next(module.parameters()).device
        self.recorded: dict[Shape, _Recorded] = {}
        self.taken = 0
        self.stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.pool: Any = torch.cuda.graph_pool_handle()  # one for all: they never run at the same time
        self.works = True  # until recording fails

    @contextmanager
    def running(self) -> Iterator[CudaGraphRunner]:
        """Steps are taken on a stream of their own, which recording needs."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(self.stream):
                yield self
        finally:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
            self.recorded.clear()

    def step(self) -> Tensor:
        """One step; returns its loss, which the next step of this shape overwrites."""
        arrays = self.step_of.arrays()
        shape = tuple(array.shape for array in arrays.values())
        self.taken += 1
        if shape not in self.recorded:
            if self.works and self.taken > WARM_UP:
                self._record(shape, arrays)
            if shape not in self.recorded:
                return self._taken({name: self._sent(array) for name, array in arrays.items()})
        recorded = self.recorded[shape]
        for name, array in arrays.items():
            recorded.inputs[name].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        recorded.graph.replay()
        return recorded.loss

    def _sent(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def _taken(self, inputs: Mapping[str, Tensor]) -> Tensor:
        with self.autocast(), self.device:  # what a model makes anew, it makes there: a graph cannot copy from the host
            loss = self.step_of.loss(inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        self.finish()
        return loss.detach()

    def _record(self, shape: Shape, arrays: Arrays) -> None:
        """Record the step for these shapes; nothing is computed yet."""
        inputs = {name: self._sent(array) for name, array in arrays.items()}
        graph = torch.cuda.CUDAGraph()
        rng = torch.cuda.get_rng_state(self.device)
        try:
            torch.cuda.synchronize(self.device)
            # torch.cuda.graph would collect garbage and empty the cache first, which takes longer than recording
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                loss = self._taken(inputs)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            self.works = False
            torch.cuda.synchronize(self.device)
            torch.cuda.set_rng_state(rng, self.device)
            self.module.zero_grad(set_to_none=True)
            warnings.warn(f"No CUDA graph of a training step: {error}; it runs kernel by kernel.", stacklevel=2)
            return
        torch.cuda.set_rng_state(rng, self.device)
        self.recorded[shape] = _Recorded(graph, inputs, loss)
