"""A training step of a classifier as types: what the host prepares, and the loss that the device computes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from clozify.prompts.encode import Batch


@dataclass(frozen=True)
class StepInputs:
    """What the host prepares for a training step of a classifier."""

    batches: Mapping[str, Batch]
    arrays: Mapping[str, NDArray[Any]]  # labels, random numbers, and what else depends on the step


class BatchScores(Protocol):
    """A function that computes the scores of one of a step's batches."""

    def __call__(self, name: str, one_pass: bool = False) -> Tensor:
        """The scores of the batch with this name: (rows, labels); with `one_pass`, all rows run in one forward pass."""
        ...


StepLoss = Callable[[BatchScores, Mapping[str, Tensor]], Tensor]  # (scores, a step's arrays on the device) -> loss
