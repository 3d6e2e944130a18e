"""Float32 weights that the optimizer changes, while a GPU computes with bf16 copies of them.

In: the part of a module that does the heavy work, its encoder. Out: the same part in bf16 for as long as it is trained,
and in float32 with the trained weights afterwards. Autocast does the same by casting every weight anew in every step;
here a few kernels do it for all weights at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Masters:
    """The float32 weights behind a part's working copies."""

    def __init__(self, module: nn.Module, part: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.module, self.dtype = module, dtype
        whole = all(p.requires_grad and p.dtype == torch.float32 for p in part.parameters())  # no adapters beside it
        self.working = list(part.parameters()) if whole else []
        self.of: dict[nn.Parameter, nn.Parameter] = {}  # working copy -> master

    @contextmanager
    def behind(self) -> Iterator[Masters]:
        """Compute with working copies; at the end the part has its float32 weights, as they were trained."""
        for parameter in self.working:
            self.of[parameter] = nn.Parameter(parameter.detach().clone())
            parameter.data = parameter.data.to(self.dtype)
        try:
            yield self
        finally:
            for parameter, master in self.of.items():
                parameter.grad = None
                parameter.data = master.data
            self.of.clear()

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer changes: masters, and the module's other parameters."""
        return [self.of.get(parameter, parameter) for parameter in self.module.parameters()]

    def take_gradients(self) -> None:
        """Hand the working copies' gradients to the masters."""
        given: list[Tensor] = []
        taken: list[Tensor] = []
        for parameter, master in self.of.items():
            if parameter.grad is not None:
                master.grad = torch.empty_like(master)
                given.append(parameter.grad)
                taken.append(master.grad)
        if given:
            torch._foreach_copy_(taken, given)

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the masters into the working copies."""
        if self.of:
            torch._foreach_copy_([p.data for p in self.of], [m.data for m in self.of.values()])

    def state(self) -> dict[str, Tensor]:
        """The module's weights in float32, copied."""
        now = self.module.state_dict(keep_vars=True).items()  # what is frozen need not be kept
        kept = {name: tensor for name, tensor in now if tensor.requires_grad or not isinstance(tensor, nn.Parameter)}
        return {name: self.of.get(tensor, tensor).detach().clone() for name, tensor in kept.items()}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights that `state` gave."""
        self.module.load_state_dict(weights, strict=False)  # what is frozen was not kept
        for name, parameter in self.module.named_parameters():
            if parameter in self.of:
                self.of[parameter].copy_(weights[name])
