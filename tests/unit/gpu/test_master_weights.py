"""Training with float32 master weights; in some tests the low-precision copies are float32, too."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from clozify.config.recipe import Training
from clozify.gpu import fallback
from clozify.gpu.flat_adamw import FlatAdamW, FlatBuffer, _load_kernel, flat_layout
from clozify.gpu.master_weights import MasterWeights
from clozify.training.optim import make_optimizer


class Tied(nn.Module):
    """An encoder and a head that share a weight."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.encoder[0].weight
        self.scale = nn.Parameter(torch.ones(7))
        self.encoder.idle = nn.Linear(3, 3)  # unused: no gradient, and no decay either

    def forward(self, ids):
        states = self.encoder[1](self.encoder[0](ids))
        return (states @ self.head.weight.T).float() * self.scale


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Tied()


SETTINGS = Training(learning_rate=0.1, weight_decay=0.1)


def trained(module, steps, dtype=None):
    """Train with copies of this dtype; without one by PyTorch's own AdamW and clipping."""
    with MasterWeights(
        module, module.encoder if dtype else nn.Module(), SETTINGS, dtype or torch.float32
    ).low_precision() as master_weights:
        optimizer = make_optimizer(module, SETTINGS, exclude=master_weights.float32)
        others = [parameter for parameter in module.parameters() if parameter not in master_weights.float32]
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)
            master_weights.set_learning_rate(0.1 / (1 + step))
            loss = nn.functional.cross_entropy(module(torch.arange(4) + step % 3), torch.arange(4))
            loss.backward()
            if dtype:
                master_weights.step([parameter.grad for parameter in others if parameter.grad is not None])
            else:
                nn.utils.clip_grad_norm_(others, SETTINGS.max_grad_norm)
            optimizer.step()
            module.zero_grad()
        return master_weights.state_dict()


def test_training_with_master_weights_equals_plain_training(module):
    """A gradient that does not reach its master weight would silently leave the encoder untrained."""
    import copy

    plain, mixed = copy.deepcopy(module), copy.deepcopy(module)
    expected, results = trained(plain, 5), trained(mixed, 5, torch.float32)
    assert expected.keys() == results.keys() == module.state_dict().keys()
    for name, tensor in expected.items():
        assert torch.allclose(results[name], tensor, atol=1e-5), name
        assert torch.equal(tensor, module.state_dict()[name]) == ("idle" in name), name
    assert {p.dtype for p in mixed.parameters()} == {torch.float32}  # float32 again
    assert mixed.head.weight is mixed.encoder[0].weight
    for name, tensor in mixed.state_dict().items():
        assert torch.equal(tensor, results[name]), name


def test_a_change_too_small_for_bf16_is_not_lost(module):
    """Rounded into bf16 after every step, steps of 1e-5 would vanish."""
    settings = Training(learning_rate=1e-5, weight_decay=0.0)
    with MasterWeights(module, module.encoder, settings, torch.bfloat16).low_precision() as master_weights:
        weight = module.encoder[1].weight
        before, exact = weight.clone(), master_weights.float32[weight].clone()
        master_weights.set_learning_rate(1e-5)
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            master_weights.step([])
        assert torch.allclose(master_weights.float32[weight], exact - 200e-5, atol=1e-5)
        assert not torch.equal(weight, before)
        assert torch.equal(weight, master_weights.float32[weight].bfloat16())
        weights = master_weights.state_dict()
        master_weights.float32[weight].add_(1)
        master_weights.load_state_dict(weights)
    assert torch.equal(module.encoder[1].weight, weights["encoder.1.weight"])


def test_a_weight_whose_gradient_comes_later_is_trained_from_then_on(module):
    """A layer that is skipped at random may be skipped in the first step; it counts its own steps, as in PyTorch."""
    import copy

    plain = copy.deepcopy(module)
    optimizer = make_optimizer(plain, SETTINGS)
    with MasterWeights(module, module.encoder, SETTINGS, torch.float32).low_precision() as master_weights:
        master_weights.set_learning_rate(0.1)
        for step in range(4):
            for of in (plain, module):
                of.encoder[1].weight.grad = torch.full((4, 4), 0.01)
                of.encoder.idle.weight.grad = torch.full((3, 3), 0.02) if step > 1 else None
            master_weights.step([])
            optimizer.step()
    assert torch.allclose(module.encoder[1].weight, plain.encoder[1].weight, atol=1e-6)
    assert torch.allclose(module.encoder.idle.weight, plain.encoder.idle.weight, atol=1e-6)


def test_trained_weights_have_their_own_storage(module):
    """Weights that share a storage are taken for tied ones when a model is saved."""
    trained(module, 2, torch.float32)
    assert len({p.untyped_storage().data_ptr() for p in module.parameters()}) == len(list(module.parameters()))


def test_weights_are_aligned():
    """Unaligned weights make a GPU choose a slower matrix product."""
    slices, length = flat_layout([3, 128, 129, 5])
    assert [(span.start, span.stop) for span in slices] == [(0, 3), (128, 256), (256, 385), (512, 517)]
    assert length == 640


def test_pytorch_takes_the_step_where_triton_does_not_run(monkeypatch):
    """A machine without a C compiler trains all the same, with a warning that says why it is slower."""

    def broken(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(FlatAdamW, "triton_works", None)
    monkeypatch.setattr(fallback, "_warned", set())
    buffers = [FlatBuffer.zeros(128, 0.1, torch.bfloat16, torch.device("cpu")) for _ in range(2)]
    for buffer, kernel in zip(buffers, (broken, None), strict=True):
        buffer.weights.fill_(1)
        buffer.gradients.fill_(1)
        steps = FlatAdamW([buffer], 1e-8)
        steps.kernel = kernel
        steps.learning_rate.fill_(0.1)
        with pytest.warns(UserWarning, match="no C compiler") if kernel else nullcontext():
            steps.step(torch.tensor(1.0))
        assert steps.step_count == 1
    assert FlatAdamW.triton_works is False
    assert torch.equal(buffers[0].weights, buffers[1].weights)
    assert torch.allclose(buffers[0].weights, torch.tensor(1 - 0.1 * 0.1 - 0.1))


def test_the_kernel_takes_the_same_step_as_pytorch():
    """Triton's interpreter runs the kernel on the CPU."""
    pytest.importorskip("triton")
    subprocess.run([sys.executable, __file__], check=True, env=os.environ | {"TRITON_INTERPRET": "1"})


def compare_kernel(device="cpu"):
    """Compare five steps; run by the test above, since Triton reads its environment variable when it is imported."""
    torch.manual_seed(0)
    weights = torch.randn(5000)
    results = []
    for by_kernel in (True, False):
        buffer = FlatBuffer.zeros(5000, 0.1, torch.bfloat16, torch.device(device))
        buffer.weights.copy_(weights)
        steps = FlatAdamW([buffer], 1e-8)
        steps.kernel = _load_kernel() if by_kernel else None
        assert (steps.kernel is not None) == by_kernel
        for step in range(5):
            steps.learning_rate.fill_(0.1 / (1 + step))
            buffer.gradients.copy_(torch.randn(5000, generator=torch.Generator().manual_seed(step)))
            steps.step(torch.tensor(0.5, device=device))
        results.append(buffer)
    exact = 1e-5 if device == "cpu" else 1e-4
    for name in ("weights", "copies", "exp_avg", "exp_avg_sq"):
        one, other = (getattr(buffer, name).float() for buffer in results)
        assert torch.allclose(one, other, rtol=exact if name != "copies" else 0.01, atol=1e-6), name
    assert not torch.allclose(results[0].weights.cpu(), weights, atol=0.1)


if __name__ == "__main__":
    compare_kernel()
