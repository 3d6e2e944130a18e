"""The loop of several members: each has its own norm, its own losses, and its own fault."""

import numpy as np
import pytest
import torch
from torch import nn

from clozify.config.recipe import Training
from clozify.errors import TrainingError
from clozify.gpu.cuda_graphs import CapturableStep
from clozify.training.group_loop import clip_member_norms, train_group


@pytest.mark.parametrize("most", [0.1, 3.0, 1e6])
def test_each_member_s_gradients_are_clipped_as_pytorch_clips_those_of_a_model(most):
    torch.manual_seed(0)
    scales = torch.tensor([0.01, 1.0, 20.0]).view(3, 1, 1)  # a member below the limit, others above
    gradients = [torch.randn(3, 2, 5) * scales, torch.randn(3, 4, 2) * scales]
    expected = []
    for member in range(3):
        parameters = [nn.Parameter(torch.zeros_like(each[member])) for each in gradients]
        for parameter, each in zip(parameters, gradients, strict=True):
            parameter.grad = each[member].clone()
        nn.utils.clip_grad_norm_(parameters, most)
        expected.append([parameter.grad for parameter in parameters])
    clip_member_norms(gradients, most)
    for member, of_member in enumerate(expected):
        for each, gradient in zip(gradients, of_member, strict=True):
            assert torch.allclose(each[member], gradient)


def a_step(values):
    """Losses w_k times the next value, for two members."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(2, 1, 1))
    following = iter(values)
    arrays = lambda: {"x": np.array(next(following), dtype=np.float32)}  # noqa: E731
    return module, CapturableStep(arrays, lambda inputs: module.weight.view(2) * inputs["x"])


def test_losses_are_read_every_25_steps_for_each_member():
    module, step = a_step([[1.0, 2.0]] * 30)
    settings, seen = Training(max_steps=30, learning_rate=1e-12, weight_decay=0.0), []
    readings = train_group(module, step, settings, 5, lambda *reading: seen.append(reading))
    assert [number for number, _ in seen] == [25, 30]
    assert readings == [pytest.approx([1.0, 2.0]), pytest.approx([1.0, 2.0])]
    assert [losses for _, losses in seen] == readings
    assert not module.training


def test_a_loss_that_is_no_number_ends_the_training_in_a_sentence():
    module, step = a_step([[1.0, float("nan")]] * 3)
    with pytest.raises(TrainingError, match="The loss is nan at step 3"):
        train_group(module, step, Training(max_steps=3), 5, lambda *_: None)
