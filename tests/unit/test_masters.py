"""Weights that the optimizer changes, behind working copies: in tests the copies are wider, not narrower."""

import pytest
import torch
from torch import nn

from clozify.masters import Masters
from clozify.recipe import Training
from clozify.training import make_optimizer


class Tied(nn.Module):
    """An encoder, a head of its own, and a weight that both have."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.encoder[0].weight
        self.scale = nn.Parameter(torch.ones(7))

    def forward(self, ids):
        states = self.encoder(ids)
        return (states @ self.head.weight.T).float() * self.scale


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Tied()


def taught(module, steps, dtype=None):
    with Masters(module, module.encoder if dtype else nn.Module(), dtype or torch.float32).behind() as masters:
        optimizer = make_optimizer(module, Training(learning_rate=0.1), masters=masters.of)
        for step in range(steps):
            loss = nn.functional.cross_entropy(module(torch.arange(4) + step % 3), torch.arange(4))
            loss.backward()
            masters.take_gradients()
            nn.utils.clip_grad_norm_(masters.parameters(), 1.0)
            optimizer.step()
            masters.give_weights()
            optimizer.zero_grad()
            module.zero_grad()
        return masters.state()


def test_training_behind_working_copies_is_the_same_training(module):
    """A gradient that never reaches its master leaves the encoder as it was, without a word."""
    import copy

    plain, behind = copy.deepcopy(module), copy.deepcopy(module)
    expected, found = taught(plain, 5), taught(behind, 5, torch.float64)
    assert expected.keys() == found.keys() == module.state_dict().keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name
        assert not torch.equal(tensor, module.state_dict()[name]), name
    assert {p.dtype for p in behind.parameters()} == {torch.float32}  # float32 again
    assert behind.head.weight is behind.encoder[0].weight
    for name, tensor in behind.state_dict().items():
        assert torch.equal(tensor, found[name]), name


def test_a_change_too_small_for_the_working_copy_is_not_lost(module):
    """Rounded into bf16 after every step, steps of 1e-5 would vanish."""
    with Masters(module, module.encoder, torch.bfloat16).behind() as masters:
        (weight,) = [p for p in module.encoder[1].parameters() if p.ndim == 2]
        before = weight.clone()
        for _ in range(200):
            masters.of[weight].data += 1e-5
            masters.give_weights()
        assert not torch.equal(weight, before)
        weights = masters.state()
        masters.of[weight].data += 1
        masters.load(weights)
    assert torch.equal(module.encoder[1].weight, weights["encoder.1.weight"])
