"""Training of the upper layers alone, on states of the lower ones that are computed once."""

import numpy as np
import pytest
import torch

from clozify.config.recipe import MemberTraining, StudentTraining, load_recipe
from clozify.methods.distill import distill
from clozify.methods.finetune import PairLoss, StepRows, finetune
from clozify.models import frozen_layers as module
from clozify.models.classifier import new_classifier
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.runs.context import RunContext
from clozify.training.loop import TrainingSetup, seed_everything
from tests.tiny import ARCHITECTURES

SPLIT = {"bert", "roberta", "xlm-roberta", "mpnet"}  # of the others some are not split


def encode(model, rows):
    prompts = compile_task(model, rows.task)
    pattern = prompts.patterns[0]
    return pattern, EncodedRows(pattern.template, prompts.tokenize(model, rows, 0, len(rows)), 40)


def gradients(model, loss, step):
    model.model.zero_grad(set_to_none=True)
    loss(step).backward()
    return {name: p.grad.clone() for name, p in model.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradients_are_those_of_the_whole_encoder(architecture, tiny_folder, rows):
    model = load_model(tiny_folder(architecture))
    for part in model.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    model.model.train()
    pattern, encoded = encode(model, rows)
    labels = np.array([0, 1, 2, 0, 1])
    loss = PairLoss(model, pattern.words[0], MemberTraining())
    step = StepRows(encoded.batch(np.arange(5)), labels)
    whole = gradients(model, loss, step)
    for cached in (encoded, None):
        with model.frozen_layers(0.5, cached):
            assert model._split is not None or architecture not in SPLIT
            upper = gradients(model, loss, step)
            trainable = {name for name, p in model.model.named_parameters() if p.requires_grad}
        assert upper.keys() <= trainable
        assert upper.keys() < whole.keys() or architecture == "albert"  # whose layers share their weights
        for name, gradient in upper.items():
            assert torch.allclose(gradient, whole[name], atol=1e-5, rtol=1e-3), name
    assert all(p.requires_grad for p in model.model.parameters())


def test_training_leaves_the_lower_layers_as_they_were(tiny_folder, rows):
    model = load_model(tiny_folder("mpnet"))
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    pattern, encoded = encode(model, rows)
    settings = MemberTraining(
        max_steps=3, learning_rate=1e-3, frozen_layers=0.5, contrastive=0.5, balanced_batches=True
    )
    setup = TrainingSetup(settings, seed_everything(0), RunContext("cpu").accelerator)
    finetune(model, pattern.words[0], encoded, np.array([0, 1, 2, 0, 1], dtype=np.int16), None, setup)
    changed = {name for name, tensor in model.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any("layer.1" in name for name in changed)
    assert not [name for name in changed if "embeddings" in name or "layer.0" in name or "relative" in name]


def test_a_classifier_s_head_has_its_own_learning_rate_and_its_lower_layers_run_once(tiny_folder, rows, monkeypatch):
    counts = []
    compute = module.compute_states
    monkeypatch.setattr("clozify.models.encoder.compute_states", lambda *a: counts.append(len(a[1])) or compute(*a))
    classifier = new_classifier(tiny_folder("mpnet"), rows.task, load_recipe("quick", ["max_seq_length=40"]), "cpu")
    before = {name: tensor.clone() for name, tensor in classifier.model.state_dict().items()}
    settings = load_recipe("quick").distill.model_copy(
        update={"max_steps": 1, "warmup_steps": 0, "frozen_layers": 0.5, "learning_rate": 1e-9, "head_learning_rate": 1}
    )
    assert isinstance(settings, StudentTraining)
    targets = np.full((5, 3), 1 / 3, dtype=np.float32)
    targets[:, 0] = 1
    setup = TrainingSetup(settings, seed_everything(0), RunContext("cpu").accelerator)
    distill(classifier, classifier.encode(rows), targets, setup)
    moved = {
        n: float((t - before[n]).abs().max()) for n, t in classifier.model.state_dict().items() if t.is_floating_point()
    }
    assert max(v for n, v in moved.items() if n.startswith("classifier")) > 0.1
    assert max(v for n, v in moved.items() if not n.startswith("classifier")) < 1e-6
    assert counts == [5]


def test_development_rows_are_scored_by_the_whole_encoder_within_a_training(tiny_folder, rows):
    """Kept states belong to the training rows, and other rows have the same numbers."""
    model = load_model(tiny_folder("mpnet"))
    _, encoded = encode(model, rows)
    few, others = encode(model, rows.select(np.arange(2)))[1], encoded.batch(np.array([4, 3]))
    with torch.inference_mode():
        expected = model.states_at_mask(others)
        with model.frozen_layers(0.5, few):
            assert torch.equal(model.states_at_mask(others), expected)
