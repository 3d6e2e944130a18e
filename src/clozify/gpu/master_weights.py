"""Mixed-precision training with bf16 weights and float32 master weights that AdamW updates.

Used for the encoder when all of it is trained on one GPU; the head stays in float32. It replaces autocast, which casts
every weight to bf16 in every step; here the optimizer's kernel (`flat_adamw`) writes the bf16 weights as it updates the
float32 ones.

Gain (`benchmarks/pieces.py`, RoBERTa-large's shape, Yelp's lengths, one H200): with autocast
instead, a fine-tuning step takes 51% longer, a distillation step 54%.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clozify.config.recipe import Training
from clozify.gpu.direct_gradients import DirectGradients
from clozify.gpu.features import is_enabled
from clozify.gpu.flat_adamw import FlatAdamW, FlatBuffer, flat_layout


class MasterWeights:
    """The float32 weights of an encoder whose parameters are low-precision copies of them."""

    def __init__(
        self, module: nn.Module, encoder: nn.Module, settings: Training, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self.module, self.settings, self.dtype = module, settings, dtype
        # an encoder with adapters has frozen weights
        usable = all(p.requires_grad and p.dtype == torch.float32 for p in encoder.parameters())
        self.parameters = list(encoder.parameters()) if usable and is_enabled("master_weights") else []
        self.float32: dict[nn.Parameter, Tensor] = {}  # parameter -> its master weight
        self.gradient_views: dict[nn.Parameter, Tensor] = {}  # parameter -> its slice of a buffer's gradients
        self.direct_gradients = DirectGradients(self.gradient_views)
        self.optimizers: list[FlatAdamW] = []  # one for the parameters with a gradient in the first step, one for later
        self.learning_rate = 0.0

    @contextmanager
    def low_precision(self) -> Iterator[MasterWeights]:
        """Convert the encoder's parameters to `dtype`; on exit they are the trained float32 weights again."""
        for parameter in self.parameters:
            self.float32[parameter] = parameter.detach().clone()
            parameter.data = parameter.data.to(self.dtype)
        try:
            yield self
        finally:
            self.gradient_views.clear()
            self.optimizers.clear()
            for parameter, weight in self.float32.items():
                parameter.grad = None
                parameter.data = weight.clone()  # its own storage: tensors that share one cannot be saved
            self.float32.clear()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the following steps."""
        self.learning_rate = learning_rate
        for optimizer in self.optimizers:
            optimizer.learning_rate.fill_(learning_rate)

    @torch.no_grad()
    def step(self, head_gradients: list[Tensor]) -> None:
        """Update the master weights; gradients are clipped together with those of the module's other parameters."""
        gradients = {parameter: parameter.grad for parameter in self.parameters if parameter.grad is not None}
        if new := [parameter for parameter in gradients if parameter not in self.gradient_views]:
            self.optimizers.append(self._flatten(new))
        self._collect(gradients)
        buffers = [buffer for optimizer in self.optimizers for buffer in optimizer.buffers]
        scale = torch.ones_like(buffers[0].weights[0])
        if self.settings.max_grad_norm:
            norms = [torch.linalg.vector_norm(buffer.gradients, dtype=torch.float32) for buffer in buffers]
            norms += torch._foreach_norm(head_gradients) if head_gradients else []
            scale = (self.settings.max_grad_norm / (torch.stack(norms).norm() + 1e-6)).clamp(max=1)
            if head_gradients:
                torch._foreach_mul_(head_gradients, scale)
        for optimizer in self.optimizers:
            optimizer.step(scale)

    def _collect(self, gradients: dict[nn.Parameter, Tensor]) -> None:
        """Copy these gradients into the buffers, where the backward pass has not written them already."""
        written = self.direct_gradients.take_written()
        copied, added = ([p for p in gradients if (p in written) == twice] for twice in (False, True))
        if copied:
            torch._foreach_copy_([self.gradient_views[p] for p in copied], [gradients[p] for p in copied])
        if added:
            torch._foreach_add_([self.gradient_views[p] for p in added], [gradients[p] for p in added])
        for parameter in self.gradient_views.keys() - gradients.keys() - written:
            self.gradient_views[parameter].zero_()

    def _flatten(self, parameters: list[nn.Parameter]) -> FlatAdamW:
        """Move parameters and their master weights into flat buffers, one with and one without weight decay."""
        buffers = []
        for weight_decay, group in (
            (self.settings.weight_decay, [p for p in parameters if p.ndim > 1]),
            (0.0, [p for p in parameters if p.ndim <= 1]),
        ):
            slices, length = flat_layout([parameter.numel() for parameter in group])
            buffer = FlatBuffer.zeros(length, weight_decay, self.dtype, parameters[0].device)
            for parameter, span in zip(group, slices, strict=True):
                shape = parameter.shape
                self.gradient_views[parameter] = buffer.gradients[span].view(shape)
                self.float32[parameter] = buffer.weights[span].view(shape).copy_(self.float32[parameter])
                parameter.data = buffer.copies[span].view(shape).copy_(parameter.data)
            buffers.append(buffer)
        optimizer = FlatAdamW([buffer for buffer in buffers if len(buffer.weights)], self.settings.adam_epsilon)
        optimizer.learning_rate.fill_(self.learning_rate)
        return optimizer

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the module's trained weights and buffers in float32."""
        state = self.module.state_dict(keep_vars=True).items()
        trained = {
            name: tensor for name, tensor in state if tensor.requires_grad or not isinstance(tensor, nn.Parameter)
        }
        return {name: self.float32.get(tensor, tensor).detach().clone() for name, tensor in trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.module.load_state_dict(state, strict=False)  # frozen weights are not part of it
        for name, parameter in self.module.named_parameters():
            if parameter in self.float32:
                self.float32[parameter].copy_(state[name])
