"""Data-parallel training of one model: the process group of the current job and its reductions.

All processes of a group draw the same rows. Each computes the loss of its slice of every step's rows; summed over the
group, the gradients are those of one process on all rows. With one process every reduction is a no-op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.errors import RunError


@dataclass(frozen=True)
class ProcessGroup:
    """The rank of this process among those that run the same job; the default is a process on its own."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    def local_slice(self, rows: int) -> slice:
        """The slice of a step's rows that this process computes."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def owns_batch(self, index: int) -> bool:
        """Whether this process scores the batch with this index."""
        return index % self.size == self.rank

    def sum_arrays(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sum of the array over all processes."""
        if self.size == 1:
            return array
        tensor = torch.from_numpy(array).to(self.device)
        torch.distributed.all_reduce(tensor)
        total: NDArray[np.float32] = tensor.cpu().numpy()
        return total

    def sum_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Replace every gradient by its sum over all processes, and return the sum of the losses.

        A process without rows has no gradients, so the processes first count who has one for each parameter. One
        buffer for each dtype holds all gradients: a reduction for each parameter would cost hundreds of round trips.
        """
        loss = loss.detach()
        if self.size == 1:
            return loss
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = [float(parameter.grad is not None) for parameter in trained]
        totals = torch.cat([loss.reshape(1), torch.tensor(has_gradient, dtype=loss.dtype, device=loss.device)])
        torch.distributed.all_reduce(totals)
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter, count in zip(trained, totals[1:].tolist(), strict=True):
            if count:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_dtype.values():
            buffer = torch.cat([gradient.reshape(-1) for gradient in gradients])
            torch.distributed.all_reduce(buffer)
            chunks = torch.split(buffer, [gradient.numel() for gradient in gradients])
            for gradient, chunk in zip(gradients, chunks, strict=True):
                gradient.copy_(chunk.view_as(gradient))
        return totals[0]


_current_group: ContextVar[ProcessGroup | None] = ContextVar("process_group", default=None)


def current_group() -> ProcessGroup:
    """The process group of the current job."""
    return _current_group.get() or ProcessGroup()


@contextmanager
def use_group(group: ProcessGroup) -> Iterator[None]:
    """Within the block all processes of the group run the same code, each on its slice of the rows."""
    token = _current_group.set(group)
    try:
        yield
    finally:
        _current_group.reset(token)


def zero_loss() -> Tensor:
    """The loss of a step in which this process has no rows."""
    return torch.zeros((), device=current_group().device, requires_grad=True)


def require_single_process(method: str) -> None:
    """Raise where several processes train one model with a method that cannot be split over them."""
    if current_group().size > 1:
        raise RunError(
            f"{method} is not trained by several processes together; start it without Accelerate's launcher."
        )
