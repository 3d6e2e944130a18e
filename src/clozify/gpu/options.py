"""The switch for everything in `clozify.gpu`: the recipe's `kernels` and `precision`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clozify.config.recipe import Recipe

if TYPE_CHECKING:
    import torch

Kernels = Literal["auto", "torch"]
Precision = Literal["auto", "float32", "bf16"]
Scoring = Literal["auto", "float32", "bf16", "int8"]
GpuScoring = Literal["auto", "bf16", "fp8"]


@dataclass(frozen=True)
class GpuOptions:
    """What a device computes with: clozify's kernels or PyTorch's alone, in float32 or in bf16.

    Where `precision` is "auto", `scoring` is the precision of scores on a CPU and `gpu_scoring` that on a GPU. Without
    a recipe, rows are scored in bf16 on a GPU and in float32 on a CPU.
    """

    kernels: Kernels = "auto"
    precision: Precision = "auto"
    scoring: Scoring = "float32"
    gpu_scoring: GpuScoring = "bf16"

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> GpuOptions:
        """The recipe's settings of these names."""
        return cls(recipe.kernels, recipe.precision, recipe.scoring, recipe.gpu_scoring)

    def uses_custom_kernels(self, device: torch.device | str) -> bool:
        """Whether CUDA graphs, padding-free batches and fused kernels are used on a device."""
        return self.kernels == "auto" and _is_cuda(device)

    def trains_in_bf16(self, device: torch.device | str) -> bool:
        """Whether models are trained in bf16 on a device, with float32 master weights."""
        return self.precision == "bf16" or (self.precision == "auto" and _is_cuda(device))

    def scores_in_bf16(self, device: torch.device | str) -> bool:
        """Whether rows are scored in bf16 on a device."""
        on_cpu = self.precision == "auto" and self.scoring == "bf16" and not _is_cuda(device)
        return on_cpu or self.trains_in_bf16(device)

    def scores_in_int8(self, device: torch.device | str) -> bool:
        """Whether rows are scored in int8 on a device."""
        return self.precision == "auto" and self.scoring == "int8" and not _is_cuda(device)

    def scores_in_fp8(self, device: torch.device | str, is_faster: Callable[[], bool]) -> bool:
        """Whether linear layers compute in fp8 where rows are scored on a device that has it.

        With "auto" that is so where `is_faster` says that fp8 makes the encoder faster.
        """
        if self.precision != "auto" or not self.uses_custom_kernels(device):
            return False
        return self.gpu_scoring == "fp8" or (self.gpu_scoring == "auto" and is_faster())

    def numerics(self, device: str) -> dict[str, str]:
        """What changes the numbers on a device, for the keys of jobs."""
        scoring = "int8" if self.scores_in_int8(device) else "bf16" if self.scores_in_bf16(device) else "float32"
        scoring = self.gpu_scoring if self.scores_in_fp8(device, lambda: True) else scoring
        precision = {"precision": "bf16" if self.trains_in_bf16(device) else "float32", "scoring": scoring}
        return precision | ({"kernels": self.kernels} if _is_cuda(device) else {})


DEFAULT_OPTIONS = GpuOptions()


def _is_cuda(device: torch.device | str) -> bool:
    return str(device).startswith("cuda")
