"""Float32 weights that AdamW changes, while a GPU computes with bf16 copies of them.

In: the part of a module that does the heavy work, its encoder. Out: the same part in bf16 for as long as it is trained,
and in float32 with the trained weights afterwards. Autocast does the same by casting every weight anew in every step;
here one kernel changes all weights and their copies at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clozify.config.recipe import Training
from clozify.gpu.flat_adamw import FlatAdamW, FlatBuffer, flat_layout


class MasterWeights:
    """The float32 weights behind a part's working copies."""

    def __init__(
        self, module: nn.Module, part: nn.Module, settings: Training, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self.module, self.settings, self.dtype = module, settings, dtype
        whole = all(p.requires_grad and p.dtype == torch.float32 for p in part.parameters())  # no adapters beside it
        self.working = list(part.parameters()) if whole else []
        self.of: dict[nn.Parameter, Tensor] = {}  # working copy -> master
        self.gradient_of: dict[nn.Parameter, Tensor] = {}  # working copy -> where its gradient goes
        self.adamws: list[FlatAdamW] = []  # of what has a gradient, which the first step shows, and of what came later
        self.rate = 0.0

    @contextmanager
    def behind(self) -> Iterator[MasterWeights]:
        """Compute with working copies; at the end the part has its float32 weights, as they were trained."""
        for parameter in self.working:
            self.of[parameter] = parameter.detach().clone()
            parameter.data = parameter.data.to(self.dtype)
        try:
            yield self
        finally:
            self.gradient_of.clear()
            self.adamws.clear()
            for parameter, master in self.of.items():
                parameter.grad = None
                parameter.data = master.clone()  # each by itself: arrays that share memory are not saved as they are
            self.of.clear()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps to come."""
        self.rate = rate
        for adamw in self.adamws:
            adamw.rate.fill_(rate)

    @torch.no_grad()
    def step(self, others: list[Tensor]) -> None:
        """Change the masters by their copies' gradients, clipped together with `others`, those of the other weights."""
        given = {parameter: parameter.grad for parameter in self.working if parameter.grad is not None}
        if new := [parameter for parameter in given if parameter not in self.gradient_of]:
            self.adamws.append(self._lay_out(new))
        torch._foreach_copy_([self.gradient_of[parameter] for parameter in given], list(given.values()))
        for parameter in self.gradient_of.keys() - given.keys():
            self.gradient_of[parameter].zero_()
        lines = [line for adamw in self.adamws for line in adamw.lines]
        scale = torch.ones_like(lines[0].weights[0])
        if self.settings.max_grad_norm:
            norms = [torch.linalg.vector_norm(line.gradients, dtype=torch.float32) for line in lines]
            norms += torch._foreach_norm(others) if others else []
            scale = (self.settings.max_grad_norm / (torch.stack(norms).norm() + 1e-6)).clamp(max=1)
            if others:
                torch._foreach_mul_(others, scale)
        for adamw in self.adamws:
            adamw.step(scale)

    def _lay_out(self, parameters: list[nn.Parameter]) -> FlatAdamW:
        """Lay masters, copies and gradients end to end, those with weight decay apart from those without."""
        lines = []
        for decay, here in (
            (self.settings.weight_decay, [p for p in parameters if p.ndim > 1]),
            (0.0, [p for p in parameters if p.ndim <= 1]),
        ):
            places, length = flat_layout([parameter.numel() for parameter in here])
            line = FlatBuffer.new(length, decay, self.dtype, parameters[0].device)
            for parameter, place in zip(here, places, strict=True):
                shape = parameter.shape
                master, self.gradient_of[parameter] = line.weights[place].view(shape), line.gradients[place].view(shape)
                copy = line.copies[place].view(shape)
                self.of[parameter] = master.copy_(self.of[parameter])
                parameter.data = copy.copy_(parameter.data)
            lines.append(line)
        adamw = FlatAdamW([line for line in lines if len(line.weights)], self.settings.adam_epsilon)
        adamw.rate.fill_(self.rate)
        return adamw

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
