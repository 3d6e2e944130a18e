"""Linear layers in fp8 give PyTorch's results but for the rounding; Triton's interpreter runs the kernels on a CPU."""

import copy
import os
import subprocess
import sys
import types

import pytest
import torch
import transformers
from torch.nn import functional

from clozify.gpu import fp8_scoring
from clozify.gpu.fp8_scoring import Fp8Linear, _LastRounded, _round_layers, is_gelu_layer, round_to_fp8

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
ROUNDING = 0.05  # |fp8 - exact| / |exact| of a product; e4m3 has three bits after the point


def rounded(x):
    """Rows in e4m3 and their scales, by PyTorch."""
    scales = x.float().abs().amax(dim=1, keepdim=True) / 448
    return (x.float() / scales).to(torch.float8_e4m3fn), scales


def gelu(x, bias):
    return rounded(functional.gelu(x.float() + bias.float()))


def layernorm(x, linear_bias, residual, weight, bias, epsilon):
    summed = x.float() + linear_bias.float() + residual.float()
    y = functional.layer_norm(summed, (x.shape[1],), weight.float(), bias.float(), epsilon)
    return y.to(x.dtype), *rounded(y)


@pytest.fixture
def pytorch_kernels(monkeypatch):
    """PyTorch's functions in place of the kernels, and layers of 16 columns are wide enough."""
    calls = []

    def counted(function):
        return lambda *arguments: calls.append(function.__name__) or function(*arguments)

    kernels = types.SimpleNamespace(quantize=counted(rounded), gelu=counted(gelu), layernorm=counted(layernorm))
    monkeypatch.setitem(sys.modules, "clozify.gpu.kernels.fp8", kernels)
    monkeypatch.setattr(fp8_scoring, "MIN_WIDTH", 16)
    return calls


def relative_error(actual, expected):
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


def test_layers_with_the_same_input_are_one_product(pytorch_kernels):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, size, dtype=torch.bfloat16) for size in (16, 48)]
    layer = Fp8Linear(layers, _LastRounded())
    x = torch.randn(2, 5, 32, dtype=torch.bfloat16)
    expected = torch.cat([each(x) for each in layers], dim=-1)
    assert layer(x).shape == (2, 5, 64)
    assert 0 < relative_error(layer(x).detach(), expected.detach()) < ROUNDING


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "electra", "distilbert"])
def test_an_encoder_in_fp8_gives_nearly_the_same_states(kind, pytorch_kernels):
    """Whatever its layers are called: those that are built like BERT's share what kernels have rounded."""
    torch.manual_seed(0)
    settings = TINY | ({"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2} if kind == "distilbert" else {})
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **settings))
    plain = model.to(torch.bfloat16).eval()
    fp8 = copy.deepcopy(plain)
    _round_layers(fp8)
    assert not [layer for name, layer in fp8.named_modules() if fp8_scoring._is_wide(layer) and "pooler" not in name]
    pytorch_kernels.clear()
    ids = torch.arange(10).view(2, 5) + 3
    with torch.inference_mode():
        expected, states = plain(input_ids=ids)[0], fp8(input_ids=ids)[0]
    assert 0 < relative_error(states, expected) < 3 * ROUNDING
    if kind in ("bert", "roberta"):  # by themselves: the embeddings, the attention's result twice, the pooler's input
        kinds = {name: pytorch_kernels.count(name) for name in ("rounded", "gelu", "layernorm")}
        assert kinds == {"rounded": 4, "gelu": 2, "layernorm": 4}


def test_an_approximate_gelu_is_not_replaced():
    """The kernel computes the exact one."""
    for activation, exact in (("gelu", True), ("gelu_new", False), ("relu", False)):
        model = transformers.BertModel(transformers.BertConfig(**TINY, hidden_act=activation))
        assert is_gelu_layer(model.encoder.layer[0].intermediate) == exact


def test_narrow_layers_and_a_model_on_the_cpu_stay_as_they_are(monkeypatch):
    model = transformers.BertModel(transformers.BertConfig(**TINY)).to(torch.bfloat16)
    _round_layers(model)
    monkeypatch.setattr(fp8_scoring, "MIN_WIDTH", 16)
    round_to_fp8(model)
    assert not [layer for layer in model.modules() if isinstance(layer, Fp8Linear)]


@pytest.mark.slow
def test_the_kernels_match_pytorch():
    """In a process of its own, since Triton reads its environment variable when it is imported."""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, __file__], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def compare_kernels(device="cpu"):
    """Values times scales are the formulas' results; in float32, since the interpreter rounds to fp8 wrongly."""
    from clozify.gpu.kernels import fp8

    torch.manual_seed(0)
    for rows, size in ((5, 24), (3, 64)):
        x, residual = (torch.randn(rows, size, device=device) for _ in range(2))
        linear_bias, weight, bias = (torch.randn(size, device=device) for _ in range(3))
        norm = functional.layer_norm(x + linear_bias + residual, (size,), weight, bias, 1e-5)
        y, *of_norm = fp8.layernorm(x, linear_bias, residual, weight, bias, 1e-5, torch.float32)
        results = [
            (*fp8.quantize(x, torch.float32), x, 1e-5),
            (*fp8.gelu(x, bias, torch.float32), functional.gelu(x + bias), 2e-3),  # by an approximation
            (*of_norm, norm, 1e-5),
        ]
        assert torch.allclose(y, norm, atol=1e-5)
        for values, scales, expected, error in results:
            assert scales.shape == (rows, 1)
            assert torch.allclose(values.abs().amax(dim=1), torch.full((rows,), 448.0, device=device))
            assert torch.allclose(values * scales, expected, atol=error)


def compare_rounding(device):
    """A GPU rounds to fp8 as PyTorch does; the two may differ by a step where a scale's last digit does."""
    from clozify.gpu.kernels.fp8 import quantize

    torch.manual_seed(0)
    x = torch.randn(50, 700, device=device, dtype=torch.bfloat16)
    values, scales = quantize(x)
    expected, expected_scales = rounded(x)
    assert torch.allclose(scales, expected_scales)
    assert (values.float() == expected.float()).float().mean() > 0.99
    assert relative_error(values.float() * scales, x) < ROUNDING


if __name__ == "__main__":
    compare_kernels()
