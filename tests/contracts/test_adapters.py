"""An adapter on any architecture is W + (alpha / r) B A, learns nothing else, and starts as no change at all."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from clozify.config.recipe import Adapter, Finetune, Training
from clozify.errors import ModelError
from clozify.gpu.options import GpuOptions
from clozify.methods.finetune import PairLoss, StepRows
from clozify.methods.masking import mask_tokens
from clozify.models.cloze import load_model
from clozify.models.lora import Base, base_of, reset_adapter, save_adapter
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.training.loop import TrainingSetup, train
from clozify.training.optim import make_optimizer
from tests.contracts.test_finetune import naive_loss
from tests.tiny import ARCHITECTURES

LORA = Adapter(method="lora", r=2, alpha=6)


def adapted(folder, settings=LORA, trained=True):
    """A model with an adapter that looks trained: B is not 0."""
    model = load_model(folder, "cpu", adapter=settings)
    reset_adapter(model.model, 5)
    torch.manual_seed(1)
    for name, parameter in model.model.named_parameters():
        if trained and "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return model


def requested(model, rows):
    questions = compile_task(model, rows.task)
    encoded = EncodedRows(questions.patterns[0].template, questions.tokenize(model, rows, 0, len(rows)), 40)
    return questions.patterns[0], encoded


def scores(model, rows):
    question, encoded = requested(model, rows)
    with torch.inference_mode():
        return model.label_scores(model.states_at_mask(encoded.batch(np.arange(len(rows)))), question.words[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradient_of_a_step_equal_those_through_the_merged_weights(architecture, tiny_folder, rows):
    """A layer left out, a wrong scale or a head that bypasses its adapter trains a slightly other model."""
    model = adapted(tiny_folder(architecture))
    model.model.double()
    question, encoded = requested(model, rows)
    batch, labels = encoded.batch(np.array([0, 2, 3, 4])), np.array([0, 1, 2, 1])
    settings = Finetune(alpha=0.3)
    drawn = encoded.batch(np.array([2, 3, 4, 0, 1, 2, 3, 2, 0, 4, 3, 2]))
    masked, targets = mask_tokens(drawn, model.tokenizer, np.random.default_rng(1), settings.mlm_probability)
    step_rows, pair_loss = StepRows(batch, labels, masked, targets), PairLoss(model, question.words[0], settings)

    plain = load_model(tiny_folder(architecture), "cpu")
    plain.model.double()
    leaves = {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in model.model.named_parameters()
        if "lora_" in name
    }
    layers = sorted({name.split(".lora_")[0] for name in leaves})
    for name in layers:
        layer = plain.model.get_submodule(name)
        merged = (
            layer.weight.detach()
            + 3 * leaves[f"{name}.lora_B.default.weight"] @ (leaves[f"{name}.lora_A.default.weight"])
        )
        del layer.weight
        layer.weight = merged
    expected = naive_loss(plain, question, batch, labels, masked, targets, 0.3, 4, 3)
    expected.backward()

    for way in ["on a CPU", "on a GPU", *(["packed"] if model.supports_packing else [])]:
        model.model.zero_grad()
        if way == "on a CPU":
            loss = pair_loss(step_rows)
        else:
            step = pair_loss.capturable_step(lambda: step_rows, packed=way == "packed")
            loss = step.loss({name: torch.from_numpy(array) for name, array in step.arrays().items()})
        loss.backward()
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
        result = {name: p.grad for name, p in model.model.named_parameters() if p.grad is not None}
        assert result.keys() == {name for name, leaf in leaves.items() if leaf.grad is not None}
        for name, gradient in result.items():
            assert torch.allclose(gradient, leaves[name].grad, atol=1e-6, rtol=1e-5), (way, name)
    inside = {name for name, part in plain.model.base_model.named_modules() if isinstance(part, nn.Linear)}
    assert {f"{plain.model.base_model_prefix}.{name}" for name in inside} <= set(layers)
    assert len(layers) > len(inside)  # the head's own too


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_untrained_adapter_changes_no_bit_of_any_score(architecture, tiny_folder, tiny, rows):
    """Pairs are weighted by what they score before training; an adapter must not move that."""
    assert torch.equal(
        scores(adapted(tiny_folder(architecture), trained=False), rows), scores(tiny(architecture), rows)
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_adapters_share_one_model_and_score_as_they_did(architecture, tiny_folder, rows, tmp_path):
    """An adapter that is read back in part answers as if it were half trained."""
    model = adapted(tiny_folder(architecture))
    base = Base(str(tiny_folder(architecture)), "key")
    first = scores(model, rows)
    save_adapter(model.model, tmp_path / "first", base)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "lora_" in name:
                parameter.mul_(-1.5)
    second = scores(model, rows)
    save_adapter(model.model, tmp_path / "second", base)
    assert base_of(tmp_path / "first") == base
    shared = load_model(base.model, "cpu")
    weights = shared.encoder.state_dict()
    for name, expected in (("first", first), ("second", second), ("first", first)):
        shared.use_adapter(tmp_path / name, name)
        assert torch.equal(scores(shared, rows), expected), name
        with shared.scoring():
            assert shared.encoder.training is False
    assert not torch.allclose(first, second, atol=1e-3)
    for name, tensor in load_model(base.model, "cpu").encoder.state_dict().items():
        now = weights.get(name)
        assert now is not None
        assert torch.equal(now, tensor)


def test_a_folder_of_an_adapter_is_an_ordinary_one_of_peft_s(tiny_folder, rows, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForMaskedLM

    model = adapted(tiny_folder("roberta"))
    save_adapter(model.model, tmp_path, Base(str(tiny_folder("roberta")), ""))
    theirs = PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(tiny_folder("roberta")), tmp_path)
    ids = torch.arange(6, 18).view(2, 6)
    with torch.inference_mode():
        assert torch.allclose(theirs.eval()(input_ids=ids).logits, model.model(input_ids=ids).logits, atol=1e-5)


def test_training_changes_the_adapter_and_no_bit_of_the_model(tiny_folder, rows):
    """Were the model to drift, a later member would start from an earlier one's weights."""
    from accelerate import Accelerator

    model = adapted(tiny_folder("bert"), Adapter(method="lora", dropout=0.1), trained=False)
    before = copy.deepcopy(model.model.state_dict())
    question, encoded = requested(model, rows)
    batch, truth = encoded.batch(np.arange(len(rows))), torch.tensor([0, 1, 2, 0, 1])
    settings = Training(max_steps=3, learning_rate=1e-2, max_grad_norm=1e-3)
    norms = []

    def loss_of_step(_):
        return nn.functional.cross_entropy(model.label_scores(model.states_at_mask(batch), question.words[0]), truth)

    class Clipping(Accelerator):
        def clip_grad_norm_(self, parameters, most):
            parameters = list(parameters)
            inputs = super().clip_grad_norm_(parameters, most)
            norms.append((inputs, torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()))
            assert all(p.requires_grad for p in parameters if p.grad is not None)

    train(
        model.model,
        loss_of_step,
        TrainingSetup(settings, np.random.default_rng(0), Clipping(cpu=True)),
        len(rows),
    )
    assert all(clipped == pytest.approx(1e-3, rel=1e-2) for _, clipped in norms)
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor, before[name]) != ("lora_" in name), name
    groups = make_optimizer(model.model, settings).param_groups
    inside = {id(parameter) for group in groups for parameter in group["params"]}
    assert inside == {id(p) for name, p in model.model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_for_scoring_it_answers_the_same_and_comes_back_to_the_last_bit(architecture, tiny_folder, rows):
    """Weights that were merged and taken apart again keep a rounding error, member after member."""
    model = adapted(tiny_folder(architecture))
    expected = scores(model, rows)
    with model.scoring():
        result = scores(model, rows)
        assert all(layer.merged for layer in model.encoder.modules() if hasattr(layer, "lora_A"))
    assert torch.allclose(result, expected, atol=1e-4)
    assert torch.equal(scores(model, rows), expected)


@pytest.mark.slow
def test_a_bf16_copy_has_the_adapter_and_leaves_the_model_alone(tiny_folder, rows):
    """On a GPU rows are scored by such a copy; one without the adapter would score as if untrained."""
    from clozify.models.cpu_precision import try_bf16

    if try_bf16(str(tiny_folder("bert")), 1).problem:
        pytest.skip("bf16 does not run here")
    model = adapted(tiny_folder("bert"))
    expected = scores(model, rows)
    untrained = scores(load_model(tiny_folder("bert"), "cpu"), rows)
    model.options = GpuOptions(precision="bf16")
    with model.scoring():
        result = scores(model, rows)
    assert (result - expected).abs().max() < 0.1 * (untrained - expected).abs().max()
    assert torch.equal(scores(model, rows), expected)


def test_names_that_no_layer_has_are_one_sentence(tiny_folder):
    with pytest.raises(ModelError, match="No adapter fits the model") as error:
        load_model(tiny_folder("bert"), "cpu", adapter=Adapter(method="lora", target_modules=("q_proj",)))
    assert "all-linear" in str(error.value)
    few = load_model(tiny_folder("bert"), "cpu", adapter=Adapter(method="lora", target_modules=("query", "value")))
    assert sum(part.requires_grad for part in few.model.parameters()) == 8  # A and B of two in two layers
