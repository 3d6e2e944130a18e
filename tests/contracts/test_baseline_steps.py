"""UDA's and MixText's steps for CUDA graphs, tried on a CPU with every architecture."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from clozify.config.recipe import Mixtext, Uda, load_recipe
from clozify.methods import mixtext as mixtext_module
from clozify.methods import uda as uda_module
from clozify.models.classifier import Classifier, new_classifier
from clozify.models.encoder import Encoder
from clozify.training.loop import TrainingSetup
from tests.contracts.test_finetune import FromTheHost
from tests.tiny import ARCHITECTURES

METHODS = {
    "uda": (uda_module, Uda(max_steps=4, uda_confidence_thresh=0.0)),
    "mixtext": (mixtext_module, Mixtext(max_steps=4, mix_layers=(3, 12), lambda_u_hinge=0.3, margin=0.1)),
}


@pytest.fixture
def make_step(tiny_folder, rows, monkeypatch):
    """A function that returns a classifier without dropout and a step of its training, eager or for a CUDA graph."""

    def make(method, architecture, captured=False, packed=False, balance=True):
        folder = tiny_folder(architecture)
        torch.manual_seed(0)  # draws the head, and BERT's pooler
        classifier = new_classifier(folder, rows.task, load_recipe("paper", ["max_seq_length=40"]), "cpu")
        classifier.model.eval()
        for parameter in (p for head in classifier.head_modules for p in head.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)  # a fresh head hardly prefers a label
        module, settings = METHODS[method]
        steps = []
        monkeypatch.setattr(module, "train", lambda model, step, *_, **__: steps.append(step) or [])
        monkeypatch.setattr(Classifier, "trains_with_cuda_graphs", captured)
        monkeypatch.setattr(Classifier, "trains_in_bf16", packed)
        encoded, reversed_rows = classifier.encode(rows), classifier.encode(rows.select(np.arange(len(rows))[::-1]))
        labels = (np.arange(len(rows)) % len(rows.task.labels)).astype(np.int16)
        setup = TrainingSetup(settings, np.random.default_rng(7), None, balance=balance)
        getattr(module, method)(classifier, encoded, labels, encoded, [reversed_rows, encoded], setup)
        return classifier, steps[0]

    return make


def as_tensors(arrays, device="cpu"):
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("method", METHODS)
def test_padded_and_packed_steps_have_the_loss_and_gradients_of_eager_ones(method, architecture, make_step):
    """A GPU alone runs them: a wrong position or a constant in place of the step's number would go unnoticed."""
    classifier, eager = make_step(method, architecture)
    expected = []
    for step in range(3):
        classifier.model.zero_grad()
        loss = eager(step)
        loss.backward()
        expected.append((loss.item(), {n: p.grad for n, p in classifier.model.named_parameters()}))
    assert len({loss for loss, _ in expected}) == 3
    for packed in (False, True):
        classifier, captured = make_step(method, architecture, captured=True, packed=packed)
        for loss_of_step, gradients in expected:
            arrays = captured.arrays()
            batch = "trained" if method == "uda" else "mixed"
            is_packed = packed and method == "uda" and classifier.supports_packing
            assert (f"{batch}.cu_seqlens" in arrays) == is_packed
            classifier.model.zero_grad()
            loss = captured.loss(as_tensors(arrays))
            loss.backward()
            assert loss.item() == pytest.approx(loss_of_step, abs=1e-5)
            for name, parameter in classifier.model.named_parameters():
                if gradients[name] is None:
                    assert parameter.grad is None, name
                else:
                    assert torch.allclose(parameter.grad, gradients[name], atol=1e-5, rtol=1e-3), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_step_asks_nothing_of_the_host(method, architecture, make_step, monkeypatch):
    """A step that copies one number from the host cannot be recorded, and is several times slower on a GPU."""
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    classifier, step = make_step(method, architecture, captured=True, packed=True, balance=False)
    inputs = as_tensors(step.arrays(), "meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for 'meta'
    monkeypatch.setattr(Encoder, "to_device", lambda _, array: torch.from_numpy(array).to("meta"))
    classifier.model.to("meta").train()
    step.loss(inputs)  # the first steps are not recorded
    with FromTheHost(monkeypatch) as host, torch.device("meta"):
        step.loss(inputs).backward()
    assert host.results == []


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
@pytest.mark.parametrize("method", METHODS)
def test_in_bf16_the_forward_pass_without_gradients_takes_none_from_the_weights(method, architecture, make_step):
    """Before version 2.11 PyTorch's autocast used weights again that it had cast without gradients."""
    classifier, step = make_step(method, architecture)
    with torch.autocast("cpu", torch.bfloat16):
        loss = step(1)
    loss.backward()
    matrices = {name: p.grad for name, p in classifier.model.named_parameters() if p.ndim == 2}
    assert [name for name, gradient in matrices.items() if gradient is None or not gradient.any()] == []


def test_a_graph_of_mixtext_serves_every_layer_lambda_and_step(make_step):
    """A graph for each of them would be captured as often as it would be replayed."""
    _, step = make_step("mixtext", "bert", captured=True)
    drawn = [step.arrays() for _ in range(12)]
    assert {int(np.argmin(arrays["layer_weights"])) for arrays in drawn} == {0, 1}
    assert all(sorted(arrays["layer_weights"]) == [arrays["weight"], 1] for arrays in drawn)
    assert len({float(arrays["lambda_u"]) for arrays in drawn}) == 12
    assert (
        len({tuple(array.shape for array in arrays.values()) for arrays in drawn}) == 1
    )  # rows have 40 tokens at most
