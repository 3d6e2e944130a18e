"""Gradients of biases as matrix-vector products."""

import pytest
import torch
from torch import nn

from clozify import biases
from clozify.biases import by_products


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 3, 4)])
@pytest.mark.parametrize("most", [2, 16_384])
def test_gradients_are_those_of_pytorch(shape, most, monkeypatch):
    """A wrong gradient would train a worse model without a word."""
    monkeypatch.setattr(biases, "ROWS", most)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3, bias=False), nn.Linear(3, 2)).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def gradients():
        out = module(x)
        return [
            out,
            *torch.autograd.grad(
                (out * torch.arange(1, out.numel() + 1).view_as(out)).sum(), [x, *module.parameters()]
            ),
        ]

    expected = gradients()
    with by_products(module):
        assert "forward" in vars(module[0])
        found = gradients()
    assert "forward" not in vars(module[0])
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_that_autocast_casts_for_is_left_to_it(dtype):
    """Its input or its weights have another dtype than its result, so the products would fail."""
    layer = nn.Linear(4, 2).to(dtype)
    with by_products(layer), torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(3, 4, requires_grad=True)).float().sum().backward()
    assert layer.bias.grad is not None
    assert torch.equal(layer.bias.grad, torch.full((2,), 3, dtype=dtype))
