"""Fused QKV products and bias gradients as products give PyTorch's results."""

import copy

import pytest
import torch
import transformers
from torch import nn

from clozify.gpu import fused_linear
from clozify.gpu.flat_adamw import flat_layout
from clozify.gpu.fused_linear import concat, fused_linear_layers, group_layers


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 3, 4)])
@pytest.mark.parametrize("ones", [2, 16_384])
def test_gradients_are_those_of_pytorch(shape, ones, monkeypatch):
    """A wrong gradient would silently train a worse model."""
    monkeypatch.setattr(fused_linear, "ROWS", ones)
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
    with fused_linear_layers(module):
        assert "forward" in vars(module[0])
        result = gradients()
    assert "forward" not in vars(module[0])
    for one, other in zip(expected, result, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_that_autocast_casts_for_is_left_to_it(dtype):
    """Its input or its weights have another dtype than its result, so the products would fail."""
    layer = nn.Linear(4, 2).to(dtype)
    with fused_linear_layers(layer), torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(3, 4, requires_grad=True)).float().sum().backward()
    assert layer.bias.grad is not None
    assert torch.equal(layer.bias.grad, torch.full((2,), 3, dtype=dtype))


class Attention(nn.Module):
    """Calls three layers, in this order."""

    def __init__(self, order, sizes=(3, 3, 3)):
        super().__init__()
        self.order = order
        self.query, self.key, self.value = (nn.Linear(4, size) for size in sizes)

    def forward(self, x, other=None):
        result = {name: getattr(self, name)(x if other is None or name == "query" else other) for name in self.order}
        return result["query"] * result["key"] + result["value"].sin()


def flatten(module):
    """Move weights, and biases, into one buffer each, as the optimizer's first step does."""
    for parts in ([p for p in module.parameters() if p.ndim == kind] for kind in (2, 1)):
        slices, length = flat_layout([part.numel() for part in parts])
        buffer = torch.zeros(length, dtype=parts[0].dtype)
        for part, span in zip(parts, slices, strict=True):
            part.data = buffer[span].view(part.shape).copy_(part.data)


@pytest.mark.parametrize("order", [("query", "key", "value"), ("value", "query", "key")])
@pytest.mark.parametrize("cross_attention", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("size", [3, 128])
def test_layers_with_the_same_input_are_one_product(order, cross_attention, flat, size):
    """Also in cross-attention, and whether the weights are contiguous or not."""
    torch.manual_seed(0)
    module = Attention(order, (size,) * 3).double()
    x, other = (torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def gradients(inputs):
        out = module(x, inputs)
        return [out, *torch.autograd.grad((out * out.detach().cos()).sum(), [x, *module.parameters()])]

    expected = [gradients(other if cross_attention else None) for _ in range(2)]
    if flat:
        flatten(module)
    assert len(group_layers(module)) == 1
    with fused_linear_layers(module):
        result = [gradients(other if cross_attention else None) for _ in range(2)]
        with torch.no_grad():
            assert torch.allclose(copy.deepcopy(module)(x), module(x))
    for one, two in zip(expected, result, strict=True):
        for wanted, tensor in zip(one, two, strict=True):
            assert torch.allclose(wanted, tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_outputs_may_be_changed_in_place(dimensions):
    """As Longformer's attention and RoCBert's head do."""

    class Scaling(Attention):
        def forward(self, x):
            query = self.query(x)
            query /= 2
            return query * self.key(x) + self.value(x).sin_()

    torch.manual_seed(0)
    module, x = Scaling(None), torch.randn(*(2, 5)[: dimensions - 1], 4)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    with fused_linear_layers(module):
        result = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    for one, other in zip(expected, result, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_layer_with_two_names_is_left_as_it_was():
    """Keys that are queries."""
    module = Attention(("query", "key", "value"))
    module.key = module.query
    with fused_linear_layers(module):
        module(torch.randn(2, 4)).sum().backward()
    assert "forward" not in vars(module.query)


def test_contiguous_weights_are_not_copied():
    """A copy in every step would cost what the larger product saves."""
    module = Attention(("query", "key", "value"), (128,) * 3)
    weights = [module.query.weight, module.key.weight, module.value.weight]
    assert concat(weights).data_ptr() != weights[0].data_ptr()
    flatten(module)
    assert concat(weights).data_ptr() == weights[0].data_ptr()
    assert torch.equal(concat(weights), torch.cat(weights))
    assert concat(weights[1:]).data_ptr() == weights[1].data_ptr()
    assert torch.equal(concat(weights[::-1]), torch.cat(weights[::-1]))


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
def test_an_encoder_s_attentions_are_found(kind):
    """One group a layer, and one for each of the other linear layers."""
    tiny = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **tiny))
    result = group_layers(model)
    assert [len(layers) for layers in result][:3] == [3, 3, 1]
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert sorted(map(id, linear)) == sorted(id(layer) for layers in result for layer in layers)
