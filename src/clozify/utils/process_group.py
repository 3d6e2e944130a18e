"""Several processes that train one model together, each on its share of every step's rows.

In: who this process is among them. Out: its share of rows, and sums over all of them: of gradients, so that everybody
takes the step that one process would take on all rows, and of scores. A process that works alone is its own company.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.errors import RunError


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that do a piece of work together; all of them draw the same rows."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    def share(self, rows: int) -> slice:
        """Which of so many rows are this process's."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def takes(self, number: int) -> bool:
        """Whether a batch is this process's."""
        return number % self.size == self.rank

    def added(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sum of everybody's array."""
        if self.size == 1:
            return array
        tensor = torch.from_numpy(array).to(self.device)
        torch.distributed.all_reduce(tensor)
        found: NDArray[np.float32] = tensor.cpu().numpy()
        return found

    def add_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Give everybody the sum of the gradients, and of the losses, which is returned."""
        loss = loss.detach()
        if self.size == 1:
            return loss
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        used = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=loss.device)
        torch.distributed.all_reduce(used)  # without rows a process has no gradients
        for parameter, by in zip(trained, used.tolist(), strict=True):
            if by:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.distributed.all_reduce(parameter.grad)
        torch.distributed.all_reduce(loss)
        return loss


_present = [ProcessGroup()]


def current_group() -> ProcessGroup:
    """Who does the present piece of work together."""
    return _present[-1]


@contextmanager
def use_group(own: ProcessGroup) -> Iterator[None]:
    """Within the block all processes do the same, each on its share."""
    _present.append(own)
    try:
        yield
    finally:
        _present.pop()


def zero_loss() -> Tensor:
    """The loss of a step of which this process has no rows."""
    return torch.zeros((), device=current_group().device, requires_grad=True)


def require_single_process(what: str) -> None:
    """Refuse what several processes cannot share."""
    if current_group().size > 1:
        raise RunError(f"{what} is not trained by several processes together; start it without Accelerate's launcher.")
