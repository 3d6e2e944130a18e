"""Gradients that the backward pass writes into the optimizer's buffers are those of autograd."""

import copy

import pytest
import torch
from torch import nn

from clozify.config.recipe import Training
from clozify.gpu.direct_gradients import DirectGradients, linear_without_bias
from clozify.gpu.features import without
from clozify.gpu.fused_linear import fused_linear_layers
from clozify.gpu.master_weights import MasterWeights

SETTINGS = Training(learning_rate=1e-3, weight_decay=0.1, adam_epsilon=1.0)  # in proportion to the gradients


class Block(nn.Module):
    """A layer that runs twice, three that share an input, and a product without its bias."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(128, 128)
        self.query, self.key, self.value = (nn.Linear(128, 128) for _ in range(3))
        self.dense = nn.Linear(128, 128)
        self.norm = nn.LayerNorm(128)
        self.direct = None

    def forward(self, x):
        x = self.twice(self.twice(x).tanh())
        x = (self.query(x) * self.key(x)).sin() + self.value(x)
        return self.norm(linear_without_bias(x, self.dense.weight, self.direct) + self.dense.bias)


def trained(module, x, steps=4):
    """The float32 weights after some steps, and the parameters whose gradients were copied in the last one."""
    with MasterWeights(module, module, SETTINGS, torch.float32).low_precision() as master:
        module.direct = master.direct_gradients
        master.set_learning_rate(0.1)
        with fused_linear_layers(module, module.direct):
            for _ in range(steps):
                (module(x) * x.cos()).sum().backward()
                copied = [name for name, parameter in module.named_parameters() if parameter.grad is not None]
                master.step([])
                module.zero_grad()
        return master.state_dict(), copied


def test_training_with_direct_gradients_equals_training_with_copies():
    """A gradient that is overwritten instead of added up, or left from the last step, would train another model."""
    torch.manual_seed(0)
    module, x = Block(), torch.randn(5, 128)
    other = copy.deepcopy(module)
    direct, copied = trained(module, x)
    assert copied == ["dense.bias", "norm.weight", "norm.bias"]
    with without("direct_gradients"):
        expected, copied = trained(other, x)
    assert len(copied) == 12
    for name, tensor in expected.items():
        assert torch.allclose(direct[name], tensor, atol=1e-5), name


def test_a_gradient_by_autograd_is_added_to_the_direct_one():
    """For a weight that is also used outside of its layer."""
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(3, 4)
    with MasterWeights(layer, layer, SETTINGS, torch.float32).low_precision() as master:
        for _ in range(2):  # the first step creates the buffers
            y = linear_without_bias(x, layer.weight, master.direct_gradients)
            (y.sum() + layer.weight.sin().sum()).backward()
            expected = torch.ones(3, 4).T @ x + layer.weight.detach().cos()
            master.step([])
            layer.zero_grad()
        assert torch.allclose(master.gradient_views[layer.weight], expected, atol=1e-6)


@pytest.mark.parametrize("contiguous", [True, False])
def test_layers_whose_gradients_are_not_contiguous_are_left_to_autograd(contiguous):
    layers = [nn.Linear(4, 4) for _ in range(2)]
    buffer = torch.zeros(64)
    offsets = (0, 16, 32, 36) if contiguous else (0, 20, 40, 48)
    parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
    views = {p: buffer[start : start + p.numel()].view(p.shape) for p, start in zip(parameters, offsets, strict=True)}
    grad_y, x = torch.randn(3, 8), torch.randn(3, 4)
    direct = DirectGradients(views)
    assert direct.write(parameters[:2], parameters[2:], grad_y, x, torch.ones(3)) == contiguous
    assert direct.take_written() == (set(parameters) if contiguous else set())
    if contiguous:
        assert torch.allclose(buffer[:32].view(8, 4), grad_y.T @ x)
        assert torch.allclose(buffer[32:40], grad_y.sum(dim=0))
