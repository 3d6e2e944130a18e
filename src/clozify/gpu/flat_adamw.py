"""AdamW as one Triton kernel over flat buffers that hold float32 weights, their bf16 copies and gradients.

Used by `MasterWeights` on a GPU. It replaces `torch.optim.AdamW`, which needs float32 gradients, clipped beforehand,
and the bf16 copies made afterwards: 52 bytes of memory traffic per weight instead of 34. Where Triton does not run,
PyTorch's fused AdamW updates the same buffers.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): without it, with
PyTorch's fused AdamW on the same buffers, a fine-tuning step takes 16.7% longer, a distillation step 18.4%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from clozify.gpu.fallback import warn_fallback
from clozify.gpu.features import is_enabled

BETAS = (0.9, 0.999)
ALIGNMENT = 128  # a weight's offset is a multiple of it, which matrix products need for their fast kernels


@dataclass(frozen=True)
class FlatBuffer:
    """Weights with the same weight decay in one 1-D tensor, with their low-precision copies and AdamW's state."""

    weights: Tensor  # (length,), float32
    copies: Tensor  # (length,), the weights in the dtype that the model computes in
    gradients: Tensor  # (length,), in that dtype, too
    exp_avg: Tensor  # (length,), float32
    exp_avg_sq: Tensor  # (length,), float32
    weight_decay: float

    @classmethod
    def zeros(cls, length: int, weight_decay: float, dtype: torch.dtype, device: torch.device) -> FlatBuffer:
        """A buffer of zeros; `dtype` is that of copies and gradients."""
        weights, exp_avg, exp_avg_sq = torch.zeros(3, length, device=device)
        copies, gradients = torch.zeros(2, length, device=device, dtype=dtype)
        return cls(weights, copies, gradients, exp_avg, exp_avg_sq, weight_decay)


def flat_layout(sizes: Sequence[int]) -> tuple[list[slice], int]:
    """The slice of a flat buffer for each weight of these sizes, and the buffer's length."""
    slices, end = list[slice](), 0
    for size in sizes:
        slices.append(slice(end, end + size))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return slices, end


class FlatAdamW:
    """AdamW for flat buffers; step count and learning rate are tensors on the device, which a CUDA graph reads."""

    triton_works: bool | None = None  # in this process; None before the first step

    def __init__(self, buffers: Sequence[FlatBuffer], epsilon: float) -> None:
        self.buffers, self.epsilon = buffers, epsilon
        device = buffers[0].weights.device
        self.step_count, self.learning_rate = torch.zeros(2, device=device)
        use_triton = device.type == "cuda" and self.triton_works is not False and is_enabled("flat_adamw")
        self.kernel: Any = _load_kernel() if use_triton else None

    @torch.no_grad()
    def step(self, gradient_scale: Tensor) -> None:
        """Update the weights and their copies; gradients are multiplied by `gradient_scale` first."""
        if self.kernel is not None and self.triton_works is None:
            self._first_triton_step(gradient_scale)
        elif self.kernel is not None:
            self._triton_step(gradient_scale)
        else:
            self._torch_step(gradient_scale)
        self.step_count += 1

    def _first_triton_step(self, gradient_scale: Tensor) -> None:
        """Take a step with Triton, or with PyTorch where Triton cannot compile the kernel."""
        try:
            self._triton_step(gradient_scale)
            FlatAdamW.triton_works = True
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # e.g. there is no C compiler
            self.kernel, FlatAdamW.triton_works = None, False
            warn_fallback("fused AdamW kernel", f"Triton fails with: {error}")
            self._torch_step(gradient_scale)

    def _triton_step(self, gradient_scale: Tensor) -> None:
        step = self.step_count.double() + 1
        # learning rate / (1 - beta1^t) and sqrt(1 - beta2^t)
        corrections = torch.stack([self.learning_rate / (1 - BETAS[0] ** step), (1 - BETAS[1] ** step).sqrt()]).float()
        for buffer in self.buffers:
            tensors = buffer.weights, buffer.copies, buffer.gradients, buffer.exp_avg, buffer.exp_avg_sq
            scalars = gradient_scale, self.learning_rate, corrections
            self.kernel(tensors, scalars, buffer.weight_decay, BETAS, self.epsilon)

    def _torch_step(self, gradient_scale: Tensor) -> None:
        for buffer in self.buffers:
            adamw(
                [buffer.weights],
                [buffer.gradients.float() * gradient_scale],
                [buffer.exp_avg],
                [buffer.exp_avg_sq],
                [],
                [self.step_count.clone()],
                fused=True,
                capturable=self.learning_rate.is_cuda,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=self.learning_rate,
                weight_decay=buffer.weight_decay,
                eps=self.epsilon,
                maximize=False,
            )
            buffer.copies.copy_(buffer.weights)


def _load_kernel() -> Any:
    """The function that launches the kernel, or None where Triton cannot be imported."""
    try:
        from clozify.gpu.kernels.adamw import launch
    except Exception as error:  # not installed, or broken
        warn_fallback("fused AdamW kernel", f"Triton cannot be imported: {error}")
        return None
    return launch
