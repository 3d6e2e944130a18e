"""The fused LayerNorm kernel gives PyTorch's results; Triton's interpreter runs it on a CPU."""

import copy
import os
import subprocess
import sys

import pytest
import torch
import transformers
from torch.nn import functional

from clozify.gpu import fused_layernorm as module
from clozify.gpu.fused_layernorm import bias_dropout_residual_layernorm, fused_layernorm, is_output_layer

TINY = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bert", 4),
        ("roberta", 4),
        ("xlm-roberta", 4),
        ("electra", 4),
        ("camembert", 4),
        ("mpnet", 2),
        ("distilbert", 0),
    ],
)
def test_output_layers_are_recognised_by_their_structure(kind, expected):
    """Two per layer; MPNet's attention and DistilBERT's sublayers are built differently and are not replaced."""
    settings = TINY | ({"dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 2} if kind == "distilbert" else {})
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **settings))
    assert sum(map(is_output_layer, model.modules())) == expected


def test_a_model_on_the_cpu_stays_as_it_is():
    """Triton compiles for GPUs only."""
    model = transformers.BertModel(transformers.BertConfig(**TINY))
    with fused_layernorm(model):
        assert not [layer for layer in model.modules() if "forward" in vars(layer)]


@pytest.mark.slow
def test_the_kernels_match_pytorch():
    """In a process of its own, since Triton reads its environment variable when it is imported."""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, __file__], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def gradients(y, gradient, *of):
    return torch.autograd.grad(y, of, gradient)


def dropout_mask(dropout, seed, shape, device):
    """1 / (1 - dropout) where an entry is kept, 0 where it is not, as the kernel drew it."""
    from clozify.gpu.kernels.layernorm import forward

    ones, zeros, seed = (
        torch.ones(shape, device=device),
        torch.zeros(shape, device=device),
        torch.tensor(seed, device=device),
    )
    return forward(ones, zeros[0], zeros, ones[0], zeros[0], seed, dropout, 1e-5, True)[1]


def compare_with_formula(dropout, dtype, close, rows=11, size=24, device="cpu"):
    """Compare output and gradients with the formula in float64, under the kernel's own dropout mask."""
    torch.manual_seed(0)
    x, residual, gradient = (torch.randn(rows, size).to(device, dtype).requires_grad_() for _ in range(3))
    bias, weight, shift = (torch.randn(size).to(device, dtype).requires_grad_() for _ in range(3))
    norm = torch.nn.LayerNorm(size, eps=1e-5)
    norm.weight, norm.bias = torch.nn.Parameter(weight), torch.nn.Parameter(shift)
    of = x, bias, residual, norm.weight, norm.bias
    y = bias_dropout_residual_layernorm(x, bias, residual, norm, torch.tensor(7, device=device), dropout)
    mask = dropout_mask(dropout, 7, (rows, size), device) if dropout else torch.ones(rows, size, device=device)
    exact = [part.detach().double().requires_grad_() for part in of]
    reference = (exact[0] + exact[1]) * mask + exact[2]
    reference = functional.layer_norm(reference, (size,), exact[3], exact[4], 1e-5)
    assert_close(
        [y, *gradients(y, gradient, *of)], [reference, *gradients(reference, gradient.double(), *exact)], dtype, close
    )


def assert_close(actual, expected, dtype, close):
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == dtype
        assert (one - other).abs().max() <= close * other.abs().max()


def compare_dropout(device="cpu"):
    """The dropout mask has the right rate, depends on the seed alone, and neighbouring entries are independent."""
    masks = [dropout_mask(0.25, seed, (12, 512), device) for seed in (7, 7, 8)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    for mask in masks:
        assert mask.unique().tolist() == [0.0, pytest.approx(4 / 3)]
        gone = (mask == 0).float()
        assert abs(float(gone.mean()) - 0.25) < 0.03
        for one, other in ((gone[:, 1:], gone[:, :-1]), (gone[1:], gone[:-1])):
            assert abs(float((one * other).mean()) - 0.25**2) < 0.02


def compare_model(device="cpu"):
    """Compare a model's states and gradients without dropout; with it, masks come from PyTorch's seed."""
    torch.manual_seed(0)
    plain = transformers.BertModel(transformers.BertConfig(**TINY)).to(device).eval()
    other = copy.deepcopy(plain)
    ids = torch.arange(4, device=device).view(2, 2)
    plain(ids)[0].sin().sum().backward()
    with fused_layernorm(other):
        assert len([layer for layer in other.modules() if "forward" in vars(layer)]) == 4
        states = other(ids)[0]
        states.sin().sum().backward()
        with torch.inference_mode():
            assert torch.allclose(other(ids)[0], states, atol=1e-6)
            assert torch.allclose(copy.deepcopy(other)(ids)[0], states)  # as scoring does during training
        other.train()
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(other(ids)[0])
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.allclose(drawn[0], drawn[2])
    assert not [layer for layer in other.modules() if "forward" in vars(layer)]
    assert not other._forward_pre_hooks
    assert torch.allclose(states, plain(ids)[0], atol=1e-5)
    for (name, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert one.grad is None or torch.allclose(one.grad, two.grad, atol=1e-4), name


if __name__ == "__main__":
    for rate in (0.0, 0.25):
        compare_with_formula(rate, torch.float32, 1e-5)
        compare_with_formula(rate, torch.float32, 1e-5, rows=3, size=32)
        compare_with_formula(rate, torch.bfloat16, 0.02)
    compare_dropout()
    module._is_on_current_gpu = lambda layer: True
    compare_model()
