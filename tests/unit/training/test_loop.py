"""The training loop on a module of one weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

from clozify.config.recipe import load_recipe
from clozify.training.loop import TrainingSetup, train


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_module_is_trained_with_and_without_gradient_clipping(max_grad_norm):
    """MixText's `max_grad_norm` is 0, which turns clipping off; it must not turn the gradients into 0."""
    recipe = load_recipe("paper", [f"mixtext.max_grad_norm={max_grad_norm}", "mixtext.max_steps=3"])
    module = nn.Linear(1, 1, bias=False)
    start = module.weight.detach().clone()
    setup = TrainingSetup(recipe.mixtext, np.random.default_rng(0), Accelerator(cpu=True))
    train(module, lambda _: module(torch.ones(1, 1)).sum(), setup, rows=8)
    assert module.weight.item() < start.item()
