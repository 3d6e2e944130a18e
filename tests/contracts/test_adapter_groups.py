"""Adapters that are trained in one batch are those that are trained alone, for architectures of all kinds."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from clozify.config.recipe import Adapter, Finetune, MemberTraining
from clozify.gpu.options import GpuOptions
from clozify.methods.finetune import PairLoss, StepRows, finetune
from clozify.methods.finetune_group import GroupLoss, GroupMember, finetune_group
from clozify.methods.masking import mask_tokens
from clozify.models import lora_group
from clozify.models.cloze import load_model
from clozify.models.lora import reset_adapter
from clozify.models.lora_group import AdapterGroup, supports_groups
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.runs.context import RunContext
from clozify.training.loop import TrainingSetup
from tests.tiny import ARCHITECTURES

LORA = Adapter(method="lora", r=2, alpha=6)
LABELS = np.array([0, 1, 2, 0, 1])


def without_dropout(folder):
    """A model with an untrained adapter, without dropout, in double precision: Adam magnifies rounding errors."""
    model = load_model(folder, "cpu", attention_dropout=0.0, adapter=LORA)
    for part in model.model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model.model.double()
    return model


def encoded_rows(model, rows):
    """The words and the rows of each of the four patterns, which have other lengths."""
    prompts = compile_task(model, rows.task)
    tokens = prompts.tokenize(model, rows, 0, len(rows))
    return [(pattern.words[0], EncodedRows(pattern.template, tokens, 40)) for pattern in prompts.patterns]


def adapter_of(model):
    return {name: p.detach().clone() for name, p in model.model.named_parameters() if "lora_" in name}


def group_members(model, rows, count, settings, balance=False):
    """Members with other patterns, seeds and training rows."""
    members, accelerator = [], RunContext(model.device.type).accelerator
    for index, (words, encoded) in enumerate(encoded_rows(model, rows)[:count]):
        chosen = np.roll(LABELS, index)
        setup = TrainingSetup(settings, np.random.default_rng(50 + index), accelerator, balance=balance)
        unlabeled = encoded if isinstance(settings, Finetune) else None
        members.append(GroupMember(words, encoded, chosen, unlabeled, 50 + index, setup))
    return members


@pytest.mark.parametrize("settings", [MemberTraining, Finetune])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_adapters_after_some_steps_are_those_of_members_trained_alone(architecture, count, settings, tiny_folder, rows):
    """A member that is touched by its neighbours' rows, clipping or schedule is no member of an ensemble."""
    model = without_dropout(tiny_folder(architecture))
    changes = {"max_steps": 6, "learning_rate": 5e-3, "max_grad_norm": 0.3, "gradient_accumulation_steps": 2}
    section = settings(**changes, **({"alpha": 0.3} if settings is Finetune else {}))
    together = finetune_group(model, group_members(model, rows, count, section, balance=True))
    assert len(together) == count
    for trained, member in zip(together, group_members(model, rows, count, section, balance=True), strict=True):
        reset_adapter(model.model, member.seed)
        start = adapter_of(model)
        losses = finetune(model, member.words, member.labeled, member.labels, member.unlabeled, member.setup)
        alone = adapter_of(model)
        assert trained.losses == pytest.approx(losses, abs=1e-6)
        assert trained.weights.keys() == alone.keys()
        for name, weight in alone.items():
            assert trained.weights[name].shape == weight.shape
            assert torch.allclose(trained.weights[name], weight, atol=1e-6), name
        assert any((alone[name] - start[name]).abs().max() > 1e-3 for name in alone)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_are_those_of_each_member_s_own_loss(architecture, count, tiny_folder, rows):
    """By autograd through each member's own adapter, in double precision, padded and packed."""
    model = without_dropout(tiny_folder(architecture))
    settings, rng = Finetune(alpha=0.3, gradient_accumulation_steps=2), np.random.default_rng(3)
    steps, losses = [], []
    for index, (words, encoded) in enumerate(encoded_rows(model, rows)[:count]):
        chosen, drawn = rng.permutation(5)[:2], encoded.batch(rng.permutation(5)[:3].repeat(2))
        masked, targets = mask_tokens(drawn, model.tokenizer, rng, 0.3)
        steps.append(StepRows(encoded.batch(chosen), np.roll(LABELS, index)[chosen].astype(np.int64), masked, targets))
        losses.append(PairLoss(model, words, settings))

    torch.manual_seed(1)
    bs = []  # an untrained B would hide the gradient of A
    expected = []
    for index, (loss, step) in enumerate(zip(losses, steps, strict=True)):
        reset_adapter(model.model, index)
        for name, parameter in model.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.2)
        bs.append({name: p.detach().clone() for name, p in model.model.named_parameters() if "lora_B" in name})
        value = loss(step)
        model.model.zero_grad()
        value.backward()
        gradients = {name: p.grad.clone() for name, p in model.model.named_parameters() if p.grad is not None}
        expected.append((value.item(), gradients))

    model.model.zero_grad()
    packings = [False, *([True] if model.supports_packing else [])]
    with AdapterGroup(model.model, range(count)).stacked() as group:
        for name, parameter in model.model.named_parameters():
            if "lora_B" in name:
                parameter.data = torch.stack([b[name] for b in bs])
        for packed in packings:
            samplers = [lambda step=step: step for step in steps]
            step = GroupLoss(group, losses).capturable_step(samplers, packed)
            values = step.loss({name: torch.from_numpy(array) for name, array in step.arrays().items()})
            assert values.tolist() == pytest.approx([value for value, _ in expected], abs=1e-6)
            model.model.zero_grad()
            values.sum().backward()
            gradients = {name: p.grad for name, p in model.model.named_parameters() if p.grad is not None}
            for index, (_, of_member) in enumerate(expected):
                assert gradients.keys() == of_member.keys()
                for name, gradient in of_member.items():
                    assert torch.allclose(gradients[name][index], gradient, atol=1e-6, rtol=1e-5), (packed, name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_trial_finds_that_members_can_share_a_batch_and_leaves_the_model_alone(architecture, tiny_folder):
    model = without_dropout(tiny_folder(architecture))
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    assert supports_groups(model)
    after = model.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if "lora_A" not in name)


@pytest.mark.parametrize("members", [2, 3])  # the number of positions, 128, is a multiple of it, or not
def test_a_trial_finds_that_members_cannot_share_relative_positions(members, tiny_folder, tmp_path, monkeypatch):
    """Query and key layers of DeBERTa v3 read relative positions, which all rows share: no member's rows."""
    folder = shutil.copytree(tiny_folder("deberta-v2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(lora_group, "SAMPLE_MEMBERS", members)
    assert not supports_groups(without_dropout(folder))


def test_after_a_group_the_model_has_one_adapter_again(tiny_folder):
    model = without_dropout(tiny_folder("bert"))
    names = {name: parameter.shape for name, parameter in model.model.named_parameters()}

    def fail():
        with AdapterGroup(model.model, [1, 2, 3]).stacked():
            assert all(len(p) == 3 for name, p in model.model.named_parameters() if "lora_" in name)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert {name: parameter.shape for name, parameter in model.model.named_parameters()} == names
    assert not any("forward" in vars(part) for part in model.model.modules())


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [MemberTraining, Finetune])
@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_a_gpu_trains_a_group_as_a_cpu_does(architecture, settings, tiny_folder, rows, recwarn):
    """In CUDA graphs, in float32; in bf16 as the GPU trains each member alone."""
    section, losses = settings(max_steps=30, learning_rate=1e-3), {}
    for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bf16")):
        options = GpuOptions(precision=precision)
        model = load_model(tiny_folder(architecture), device, attention_dropout=0.0, adapter=LORA, options=options)
        for part in model.model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        trained = finetune_group(model, group_members(model, rows, 3, section))
        losses[device, precision] = np.array([member.losses for member in trained])
    alone = []
    for member in group_members(model, rows, 3, section):
        reset_adapter(model.model, member.seed)
        alone.append(finetune(model, member.words, member.labeled, member.labels, member.unlabeled, member.setup))
    assert not [warning for warning in recwarn if "CUDA graphs" in str(warning.message)]
    assert np.allclose(losses["cuda", "float32"], losses["cpu", "float32"], rtol=0.02)
    assert np.allclose(losses["cuda", "bf16"], alone, rtol=0.03)
