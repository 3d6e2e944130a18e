"""What the cloze model and the classifier share: trial ids, label words on the device, and the switch for kernels."""

import gc

import numpy as np
import pytest
import torch

from clozify.config.recipe import load_recipe
from clozify.gpu.options import GpuOptions
from clozify.models import encoder as module
from clozify.models.classifier import new_classifier
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.verbalizer import LabelWords


def test_trial_ids_are_ordinary_tokens_of_the_vocabulary(tiny):
    """An id beyond the vocabulary is a device-side assert on a GPU, after which the process cannot use it."""
    model = tiny("roberta")
    vocabulary = len(model.tokenizer.is_special)
    for count in (8, 24, 3 * vocabulary):
        ids = model.sample_ids(count)
        assert ids.shape == (count,)
        assert ids.max() < vocabulary
        assert not model.tokenizer.is_special[ids].any()


def test_a_padding_token_with_the_last_id_is_no_obstacle_to_trials(tiny_folder, stars):
    for model in (
        load_model(tiny_folder("bert")),
        new_classifier(tiny_folder("bert"), stars, load_recipe("paper", ["max_seq_length=24"]), "cpu"),
    ):
        model.tokenizer.pad_id = len(model.tokenizer.is_special) - 1
        assert model.supports_packing


def test_label_words_are_kept_by_identity_and_released_with_their_object(tiny, rows):
    """A cache keyed by `id()` gives the words of an object that is gone to one that took its number."""
    model = tiny("bert")
    states = torch.zeros(1, model.model.config.hidden_size, device=model.device)
    words = compile_task(model, rows.task).patterns[0].words[0]
    expected = model.label_scores(states, words)
    twin = LabelWords(words.ids.copy(), words.mean.copy())
    assert words != twin
    assert torch.equal(model.label_scores(states, twin), expected)
    count = len(model._label_words)
    del twin
    gc.collect()
    assert len(model._label_words) == count - 1


def test_with_kernels_torch_no_gpu_feature_is_even_tried(tiny_folder, monkeypatch):
    for name in ("accepts_additive_mask", "supports_packing", "encode_packed", "pack"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a GPU feature was used"))
    model = load_model(tiny_folder("mpnet"), "cpu", options=GpuOptions(kernels="torch"))
    assert not model.options.uses_custom_kernels("cuda")
    assert np.isfinite(model.model(torch.full((1, 8), 7)).logits.detach().numpy()).all()


@pytest.mark.parametrize(
    ("settings", "device", "trains", "scores"),
    [
        ([], "cpu", False, False),
        ([], "cuda", True, True),
        (["precision=float32"], "cuda", False, False),
        (["precision=bf16"], "cpu", True, True),
        (["scoring=bf16"], "cpu", False, True),
        (["scoring=bf16", "precision=float32"], "cpu", False, False),
        (["scoring=float32"], "cuda", True, True),
    ],
)
def test_precision_decides_training_and_scoring_and_scoring_only_a_cpu_s_scores(settings, device, trains, scores):
    options = GpuOptions.from_recipe(load_recipe("paper", settings))
    assert options.trains_in_bf16(device) == trains
    assert options.scores_in_bf16(device) == scores
    assert ("kernels" in options.numerics(device)) == (device == "cuda")


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ([], "cuda", "auto"),
        (["gpu_scoring=bf16"], "cuda", "bf16"),
        (["gpu_scoring=fp8"], "cuda", "fp8"),
        (["gpu_scoring=fp8", "kernels=torch"], "cuda", "bf16"),
        (["gpu_scoring=fp8", "precision=float32"], "cuda", "float32"),
        (["gpu_scoring=fp8", "precision=bf16"], "cuda", "bf16"),
        (["gpu_scoring=fp8"], "cpu", "float32"),
    ],
)
def test_fp8_is_for_scores_on_a_gpu_and_part_of_a_job_s_key(settings, device, expected):
    """By default for encoders that gain from it."""
    options = GpuOptions.from_recipe(load_recipe("paper", settings))
    assert options.scores_in_fp8(device, lambda: True) == (expected in ("auto", "fp8"))
    assert options.scores_in_fp8(device, lambda: False) == (expected == "fp8")
    assert options.numerics(device)["scoring"] == expected
