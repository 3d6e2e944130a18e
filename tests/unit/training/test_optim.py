"""The optimizer's groups and the learning rate of every step, against the formulas written out."""

import numpy as np
import pytest
import torch

from clozify.config.recipe import Mixtext, Training
from clozify.training.optim import make_optimizer, make_schedule


def rates(settings, rows=10, steps=8, capturable=False):
    """The learning rate of each step."""
    optimizer = make_optimizer(torch.nn.Linear(1, 1), settings, capturable=capturable)
    schedule = make_schedule(optimizer, settings, rows)
    result = []
    for _ in range(steps):
        result.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    assert all(one == group[0] for group in result for one in group)
    return [group[0] for group in result]


def test_the_learning_rate_rises_over_the_warm_up_and_falls_to_0_in_a_line():
    settings = Training(max_steps=7, warmup_steps=3, learning_rate=1e-3)
    factors = [0, 1 / 3, 2 / 3, 4 / 4, 3 / 4, 2 / 4, 1 / 4, 0]
    assert rates(settings) == [1e-3 * factor for factor in factors]


def test_a_learning_rate_without_decay_stays_at_its_peak():
    settings = Mixtext(warmup_steps=2, learning_rate=3e-4)
    assert rates(settings, steps=4) == [0, 1.5e-4, 3e-4, 3e-4]


def test_learning_rates_in_tensors_change_in_place():
    """A CUDA graph reads the tensor that it was recorded with."""
    settings = Training(max_steps=4, learning_rate=1e-3)
    optimizer = make_optimizer(torch.nn.Linear(1, 1), settings, capturable=True)
    tensors = [group["lr"] for group in optimizer.param_groups]
    schedule = make_schedule(optimizer, settings, 10)
    optimizer._opt_called = True  # a graph takes the steps
    schedule.step()
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors, strict=True))
    assert [tensor.item() for tensor in tensors] == pytest.approx([np.float32(7.5e-4)] * 2)


def test_biases_and_layer_norms_are_not_decayed_and_excluded_parameters_are_left_out():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 1))
    groups = make_optimizer(module, Training(weight_decay=0.1), exclude={module[2].weight}).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decay == {id(p): 0.1 if p.ndim > 1 else 0.0 for p in module.parameters() if p is not module[2].weight}
