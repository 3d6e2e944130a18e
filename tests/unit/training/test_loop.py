"""The training loop on a linear layer: clipping, precision, and the weights that development rows choose."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from clozify.config.recipe import Mixtext, Training
from clozify.training.loop import Monitor, TrainingSetup, train


def trained(settings, scale, bf16=False):
    """The weight of a linear layer after one step of a loss with the gradient `scale`, and the dtype that it used."""
    torch.manual_seed(0)
    module = torch.nn.Linear(1, 1, bias=False)
    before, dtypes = module.weight.item(), []

    def loss(_):
        scores = module(torch.ones(1, 1))
        dtypes.append(scores.dtype)
        return scale * scores.float().sum()

    train(module, loss, TrainingSetup(settings, np.random.default_rng(0), Accelerator(cpu=True)), 10, bf16=bf16)
    return before - module.weight.item(), dtypes[0], module.weight.dtype


@pytest.mark.parametrize(("norm", "gradient"), [(1e-6, 1e-6), (0.0, 100.0)])
def test_gradients_are_clipped_unless_the_norm_is_0(norm, gradient):
    """MixText's original code does not clip; a norm of 0 taken literally would remove every gradient."""
    settings = Mixtext(max_steps=1, max_grad_norm=norm, adam_epsilon=1e-3, learning_rate=1e-2)
    expected = 1e-2 * gradient / (gradient + 1e-3)  # Adam's first step
    assert trained(settings, 100.0)[0] == pytest.approx(expected, rel=1e-2)


def test_in_bf16_the_module_computes_in_bf16_and_its_weights_stay_in_float32():
    settings = Training(max_steps=1, learning_rate=1e-2)
    assert trained(settings, 1.0, bf16=True)[1:] == (torch.bfloat16, torch.float32)
    assert trained(settings, 1.0)[1:] == (torch.float32, torch.float32)


def test_every_step_on_a_cpu_is_reported_and_its_loss_every_25():
    """A step may take seconds there; reading its loss costs nothing on a CPU, but a GPU would wait for it."""
    module, reported = torch.nn.Linear(1, 1), []
    monitor = Monitor(on_step=lambda step, loss: reported.append((step, loss is not None)))
    setup = TrainingSetup(Training(max_steps=30), np.random.default_rng(0), Accelerator(cpu=True), monitor)
    losses = train(module, lambda _: module(torch.ones(1, 1)).sum(), setup, 10)
    assert reported == [(step, step in (25, 30)) for step in range(1, 31)]
    assert len(losses) == 2
