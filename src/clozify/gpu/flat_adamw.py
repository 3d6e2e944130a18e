"""AdamW over weights that lie end to end, with working copies of them: a GPU reads and writes each once a step.

In: `Line`s of weights, with gradients in the copies' dtype. Out: the weights a step further, and their copies.
PyTorch's own AdamW needs gradients in float32, clipped beforehand, and the copies made afterwards: 52 bytes a weight,
not 34. It does the work where Triton, which comes with PyTorch for GPUs, cannot.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
APART = 128  # a weight begins at a multiple of it: matrix products want that


@dataclass(frozen=True)
class FlatBuffer:
    """Weights end to end that share a decay; their working copies, their gradients, and AdamW's means of these."""

    weights: Tensor
    copies: Tensor
    gradients: Tensor
    mean: Tensor
    mean_square: Tensor
    decay: float

    @classmethod
    def new(cls, length: int, decay: float, dtype: torch.dtype, device: torch.device) -> FlatBuffer:
        """One of zeros; `dtype` is that of copies and gradients."""
        weights, mean, mean_square = torch.zeros(3, length, device=device)
        copies, gradients = torch.zeros(2, length, device=device, dtype=dtype)
        return cls(weights, copies, gradients, mean, mean_square, decay)


def flat_layout(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """Where each of these weights lies in a line, and the line's length."""
    places, end = list[slice](), 0
    for size in sizes:
        places.append(slice(end, end + size))
        end += -(-size // APART) * APART
    return places, end


class FlatAdamW:
    """AdamW's steps for lines; what changes from step to step lies on their device, where a recorded step reads it."""

    triton_runs: bool | None = None  # in this process; the first step shows it

    def __init__(self, lines: Sequence[FlatBuffer], epsilon: float) -> None:
        self.lines, self.epsilon = lines, epsilon
        device = lines[0].weights.device
        self.taken, self.rate = torch.zeros(2, device=device)
        self.kernel: Any = _kernel() if device.type == "cuda" and self.triton_runs is not False else None

    @torch.no_grad()
    def step(self, scale: Tensor) -> None:
        """One step at the present `rate`; gradients are multiplied by `scale` first."""
        if self.kernel is not None and self.triton_runs is None:
            self._try_kernel(scale)
        elif self.kernel is not None:
            self._by_kernel(scale)
        else:
            self._by_torch(scale)
        self.taken += 1

    def _try_kernel(self, scale: Tensor) -> None:
        try:
            self._by_kernel(scale)
            FlatAdamW.triton_runs = True
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever keeps Triton from compiling, a C compiler that is not there say
            self.kernel, FlatAdamW.triton_runs = None, False
            why = " ".join(str(error).split())[:200]
            warnings.warn(f"PyTorch's own AdamW does the work, since Triton does not run: {why}", stacklevel=2)
            self._by_torch(scale)

    def _by_kernel(self, scale: Tensor) -> None:
        steps = self.taken.double() + 1
        corrected = torch.stack([self.rate / (1 - BETAS[0] ** steps), (1 - BETAS[1] ** steps).sqrt()]).float()
        for line in self.lines:
            arrays = line.weights, line.copies, line.gradients, line.mean, line.mean_square
            self.kernel(arrays, (scale, self.rate, corrected), line.decay, BETAS, self.epsilon)

    def _by_torch(self, scale: Tensor) -> None:
        for line in self.lines:
            adamw(
                [line.weights],
                [line.gradients.float() * scale],
                [line.mean],
                [line.mean_square],
                [],
                [self.taken.clone()],
                fused=True,
                capturable=self.rate.is_cuda,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=self.rate,
                weight_decay=line.decay,
                eps=self.epsilon,
                maximize=False,
            )
            line.copies.copy_(line.weights)


def _kernel() -> Any:
    """The kernel's launcher, or nothing where there is no Triton."""
    try:
        from clozify.gpu.kernels.adamw import launch
    except Exception:  # not there, or broken
        return None
    return launch
