"""Weights that AdamW changes, behind working copies: in some tests these are no narrower than the weights."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from clozify.config.recipe import Training
from clozify.gpu.flat_adamw import FlatAdamW, FlatBuffer, _kernel, flat_layout
from clozify.gpu.master_weights import MasterWeights
from clozify.training.loop import make_optimizer


class Tied(nn.Module):
    """An encoder, a head of its own, and a weight that both have."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.encoder[0].weight
        self.scale = nn.Parameter(torch.ones(7))
        self.encoder.idle = nn.Linear(3, 3)  # never asked: no gradient, and no decay either

    def forward(self, ids):
        states = self.encoder[1](self.encoder[0](ids))
        return (states @ self.head.weight.T).float() * self.scale


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Tied()


SETTINGS = Training(learning_rate=0.1, weight_decay=0.1)


def taught(module, steps, dtype=None):
    """Train by working copies of this dtype; without one by PyTorch's own AdamW and clipping."""
    with MasterWeights(
        module, module.encoder if dtype else nn.Module(), SETTINGS, dtype or torch.float32
    ).behind() as masters:
        optimizer = make_optimizer(module, SETTINGS, without=masters.of)
        others = [parameter for parameter in module.parameters() if parameter not in masters.of]
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            masters.set_rate(0.1 / (1 + step))
            loss = nn.functional.cross_entropy(module(torch.arange(4) + step % 3), torch.arange(4))
            loss.backward()
            if dtype:
                masters.step([parameter.grad for parameter in others if parameter.grad is not None])
            else:
                nn.utils.clip_grad_norm_(others, SETTINGS.max_grad_norm)
            optimizer.step()
            module.zero_grad()
        return masters.state()


def test_training_behind_working_copies_is_the_same_training(module):
    """A gradient that never reaches its master leaves the encoder as it was, without a word."""
    import copy

    plain, behind = copy.deepcopy(module), copy.deepcopy(module)
    expected, found = taught(plain, 5), taught(behind, 5, torch.float32)
    assert expected.keys() == found.keys() == module.state_dict().keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name
        assert torch.equal(tensor, module.state_dict()[name]) == ("idle" in name), name
    assert {p.dtype for p in behind.parameters()} == {torch.float32}  # float32 again
    assert behind.head.weight is behind.encoder[0].weight
    for name, tensor in behind.state_dict().items():
        assert torch.equal(tensor, found[name]), name


def test_a_change_too_small_for_the_working_copy_is_not_lost(module):
    """Rounded into bf16 after every step, steps of 1e-5 would vanish."""
    settings = Training(learning_rate=1e-5, weight_decay=0.0)
    with MasterWeights(module, module.encoder, settings, torch.bfloat16).behind() as masters:
        weight = module.encoder[1].weight
        before, exact = weight.clone(), masters.of[weight].clone()
        masters.set_rate(1e-5)
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            masters.step([])
        assert torch.allclose(masters.of[weight], exact - 200e-5, atol=1e-5)
        assert not torch.equal(weight, before)
        assert torch.equal(weight, masters.of[weight].bfloat16())
        weights = masters.state()
        masters.of[weight].add_(1)
        masters.load(weights)
    assert torch.equal(module.encoder[1].weight, weights["encoder.1.weight"])


def test_a_weight_whose_gradient_comes_later_is_trained_from_then_on(module):
    """A layer that is skipped at random may be skipped in the first step; it counts its own steps, as in PyTorch."""
    import copy

    plain = copy.deepcopy(module)
    optimizer = make_optimizer(plain, SETTINGS)
    with MasterWeights(module, module.encoder, SETTINGS, torch.float32).behind() as masters:
        masters.set_rate(0.1)
        for step in range(4):
            for of in (plain, module):
                of.encoder[1].weight.grad = torch.full((4, 4), 0.01)
                of.encoder.idle.weight.grad = torch.full((3, 3), 0.02) if step > 1 else None
            masters.step([])
            optimizer.step()
    assert torch.allclose(module.encoder[1].weight, plain.encoder[1].weight, atol=1e-6)
    assert torch.allclose(module.encoder.idle.weight, plain.encoder.idle.weight, atol=1e-6)


def test_trained_weights_lie_by_themselves_again(module):
    """Weights that share one array are taken for tied ones when a model is saved."""
    taught(module, 2, torch.float32)
    assert len({p.untyped_storage().data_ptr() for p in module.parameters()}) == len(list(module.parameters()))


def test_weights_begin_where_matrix_products_want_them():
    """An odd address makes a GPU take a slower kernel, or none."""
    places, length = flat_layout([3, 128, 129, 5])
    assert [(place.start, place.stop) for place in places] == [(0, 3), (128, 256), (256, 385), (512, 517)]
    assert length == 640


def test_where_triton_does_not_run_pytorch_takes_the_step(monkeypatch):
    """A machine without a C compiler trains all the same, and is told why it does so more slowly."""

    def broken(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(FlatAdamW, "triton_runs", None)
    lines = [FlatBuffer.new(128, 0.1, torch.bfloat16, torch.device("cpu")) for _ in range(2)]
    for line, kernel in zip(lines, (broken, None), strict=True):
        line.weights.fill_(1)
        line.gradients.fill_(1)
        steps = FlatAdamW([line], 1e-8)
        steps.kernel = kernel
        steps.rate.fill_(0.1)
        with pytest.warns(UserWarning, match="no C compiler") if kernel else nullcontext():
            steps.step(torch.tensor(1.0))
        assert steps.taken == 1
    assert FlatAdamW.triton_runs is False
    assert torch.equal(lines[0].weights, lines[1].weights)
    assert torch.allclose(lines[0].weights, torch.tensor(1 - 0.1 * 0.1 - 0.1))


def test_the_kernel_takes_the_same_step_as_pytorch():
    """On a GPU another program does AdamW's arithmetic; Triton can run it on a CPU to be looked at."""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, __file__], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def compare_kernel():
    """Five steps of both; run by the test above, since Triton looks at its variable when it is imported."""
    torch.manual_seed(0)
    weights = torch.randn(5000)
    found = []
    for by_kernel in (True, False):
        line = FlatBuffer.new(5000, 0.1, torch.bfloat16, torch.device("cpu"))
        line.weights.copy_(weights)
        steps = FlatAdamW([line], 1e-8)
        if by_kernel:
            steps.kernel = _kernel()
            assert steps.kernel is not None
        for step in range(5):
            steps.rate.fill_(0.1 / (1 + step))
            line.gradients.copy_(torch.randn(5000, generator=torch.Generator().manual_seed(step)))
            steps.step(torch.tensor(0.5))
        found.append(line)
    for name in ("weights", "copies", "mean", "mean_square"):
        one, other = (getattr(line, name).float() for line in found)
        assert torch.allclose(one, other, rtol=1e-5 if name != "copies" else 0.01, atol=1e-6), name
    assert not torch.allclose(found[0].weights, weights, atol=0.1)


if __name__ == "__main__":
    compare_kernel()
