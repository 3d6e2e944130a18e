"""The models that come with the package, and folders with int8 weights."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file
from scripts.quantize_model import quantize

from clozify.config.recipe import load_recipe
from clozify.errors import ModelError
from clozify.models.builtin import FOLDERS, builtin_folder
from clozify.models.classifier import load_classifier, new_classifier
from clozify.models.cloze import load_model
from clozify.models.int8 import INT8_FILE
from clozify.models.loading import load_pretrained
from clozify.runs.keys import model_key

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"


def expand(file):
    """The weights of an int8 file, computed by NumPy."""
    stored = load_arrays(file)
    weights = {name: array for name, array in stored.items() if not name.endswith("::scale")}
    for name in weights:
        if f"{name}::scale" in stored:
            scales = np.repeat(stored[f"{name}::scale"], 64, axis=1)
            weights[name] = np.float32(weights[name]) * np.float32(scales)
    return {name: torch.from_numpy(array).float() for name, array in weights.items()}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A tiny model that is wide enough for int8 weights, in int8."""
    path = shutil.copytree(tiny_folder("bert"), tmp_path / "model")
    config = json.loads((path / "config.json").read_text()) | {"hidden_size": 64, "intermediate_size": 128}
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(**config)).save_pretrained(path)
    save_file(quantize(load_file(path / "model.safetensors")), path / INT8_FILE)
    (path / "model.safetensors").unlink()
    return path


def test_builtin_is_the_small_model_and_has_its_key():
    assert builtin_folder("builtin") == builtin_folder("builtin:small") == FOLDERS["small"]
    assert model_key("builtin") == model_key("builtin:small") != model_key("builtin:mini")


@pytest.mark.parametrize("name", ["builtin:large", "builtin:"])
def test_an_unknown_built_in_model_is_refused_with_the_names(name):
    for use in (load_model, model_key):
        with pytest.raises(
            ModelError, match=f"no built-in model '{name}'; write one of 'builtin', 'builtin:small' and"
        ):
            use(name)


def test_the_built_in_model_scores_as_weights_that_were_expanded_independently():
    model = load_pretrained("builtin", "masked LM")
    ids = torch.tensor([model.tokenizer("Paris is the <mask> of France.")["input_ids"]])
    with torch.device("meta"):
        expected = transformers.MPNetForMaskedLM(model.model.config).eval()
    weights, loaded = expand(builtin_folder("builtin") / INT8_FILE), model.model.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())
    expected.load_state_dict(weights, strict=False, assign=True)
    expected.tie_weights()
    with torch.inference_mode():
        scores, expected_scores = model.model(ids).logits, expected(ids).logits
    assert (scores - expected_scores).abs().max() <= 1e-5
    mask = ids[0].tolist().index(model.tokenizer.mask_token_id)
    assert model.tokenizer.decode(scores[0, mask].argmax()) == "capital"


def test_a_classifier_is_created_from_the_built_in_model(stars):
    classifier = new_classifier("builtin", stars, load_recipe("quick"), "cpu")
    assert classifier.model.config.num_labels == 3
    assert sum(parameter.numel() for parameter in classifier.model.base_model.parameters()) > 60_000_000


def test_int8_weights_are_close_to_the_original_and_are_saved_as_ordinary_ones(folder, stars, tmp_path):
    torch.manual_seed(1)
    classifier = new_classifier(folder, stars, load_recipe("quick"), "cpu")
    classifier.save(tmp_path / "classifier")
    assert not (tmp_path / "classifier" / INT8_FILE).exists()
    saved = load_classifier(tmp_path / "classifier", "cpu").model.state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in classifier.model.state_dict().items())
    weights = {name: torch.randn(5, 192) * torch.logspace(-6, 2, 5)[:, None] for name in "ab"} | {"c": torch.ones(64)}
    save_file(quantize(weights), tmp_path / INT8_FILE)
    for name, weight in expand(tmp_path / INT8_FILE).items():
        limit = weights[name].abs().amax(dim=-1, keepdim=True) / 250 + 4e-5
        assert ((weight - weights[name]).abs() <= limit).all()


def test_ordinary_weights_are_read_before_int8_ones(folder, tmp_path):
    load_model(folder, "cpu").save(folder)
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.LayerNorm.bias"] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load_model(folder, "cpu").model.state_dict()["bert.embeddings.LayerNorm.bias"].min() > 0.5


def edit(change):
    def edit_weights(file):
        weights = load_file(file)
        change(weights)
        save_file(weights, file)

    return edit_weights


DAMAGE = {
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:5000]), r"because of its model\.int8\.safetensors"),
    "without scales": (edit(lambda w: w.pop(f"{WORD_EMBEDDINGS}::scale")), "word_embeddings.weight has no scales"),
    "with too few scales": (
        edit(lambda w: w.update({f"{WORD_EMBEDDINGS}::scale": torch.ones(1, 2).half()})),
        r"because of its model\.int8\.safetensors",
    ),
    "not finite": (edit(lambda w: w[f"{WORD_EMBEDDINGS}::scale"].fill_(torch.inf)), "not finite numbers"),
    "without a head": (edit(lambda w: w.pop("cls.predictions.bias")), "lacks a language-model head"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_int8_weights_are_refused_in_one_sentence(name, folder):
    damage, message = DAMAGE[name]
    damage(folder / INT8_FILE)
    with pytest.raises(ModelError, match=message) as error:
        load_model(folder, "cpu")
    assert str(error.value).count("\n") == 0
