"""A classifier scores in int8 where that is exact, faster and close to float32, and in float32 otherwise."""

import numpy as np
import pytest
import torch
from torch import nn

from clozify.config.recipe import load_recipe
from clozify.config.task import parse_task
from clozify.data.in_memory import make_rows
from clozify.errors import ModelError, RunError
from clozify.inference.finished_run import FinishedRun
from clozify.models import int8_linear
from clozify.models.classifier import load_classifier, new_classifier
from clozify.models.int8_linear import Int8Linear, Int8Trial
from tests.tiny import make_model

TASK = parse_task("""
name = "films"
fields = ["text"]
patterns = ["It was {mask}. {text}"]
[labels]
1 = "bad"
2 = "great"
""")
ROWS = make_rows({"text": ["a good game", "bad", "the old tool is a slow tool", "a fine film"]}, TASK, "memory")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tiny classifier, whose layers are large enough for int8 here; the trial finds int8 exact and faster."""
    monkeypatch.setattr(int8_linear, "MIN_WIDTH", 8)
    monkeypatch.setattr(int8_linear, "try_int8", lambda layer: Int8Trial(exact=True, gain=3.0))
    torch.manual_seed(0)
    new_classifier(make_model("bert", tmp_path / "model"), TASK, load_recipe("quick", []), "cpu").save(tmp_path / "run")
    return tmp_path / "run"


exact_only = pytest.mark.skipif(
    not int8_linear.try_int8(nn.Linear(64, 32)).exact, reason="this processor adds 8-bit products in too few bits"
)


def int8_layers(classifier):
    return [module for module in classifier.encoder.modules() if isinstance(module, Int8Linear)]


@exact_only
def test_an_int8_layer_is_close_to_its_float32_layer_whatever_the_other_tokens():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(64, 32), torch.randn(2, 3, 64)
    inputs[1] *= 1000
    quantized = Int8Linear(layer)
    with torch.inference_mode():
        expected, actual = layer(inputs), quantized(inputs)
        assert actual.shape == expected.shape
        assert ((actual - expected).norm(dim=-1) < 0.03 * expected.norm(dim=-1)).all()
        assert torch.allclose(quantized(inputs[:1]), actual[:1], atol=1e-6)
        assert torch.allclose(quantized(torch.zeros(1, 64)), layer.bias)


@exact_only
def test_float32_gives_the_scores_of_transformers_and_int8_nearly_the_same(folder):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        inputs = tokenizer(ROWS.texts("text"), padding=True, return_tensors="pt")
        expected = model(**inputs).logits.softmax(dim=-1).numpy()
    finished = FinishedRun(folder, precision="float32")
    assert np.abs(finished.probabilities(ROWS) - expected).max() < 1e-5
    assert finished.description.endswith("run")
    finished = FinishedRun(folder)
    assert np.abs(finished.probabilities(ROWS) - expected).max() < 0.02
    assert finished.description.endswith("run, in int8")
    assert len(int8_layers(finished.loaded_classifier)) == len(
        int8_linear.quantizable_layers(load_classifier(folder, "cpu").encoder)
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("try_int8", lambda layer: Int8Trial(exact=False, gain=3.0)),
        ("try_int8", lambda layer: Int8Trial(exact=True, gain=1.0)),
        ("MAX_DISTANCE", -1.0),
        ("MIN_WIDTH", 10_000),
    ],
)
def test_float32_is_used_where_int8_is_inexact_slow_or_far_off(folder, monkeypatch, name, value):
    monkeypatch.setattr(int8_linear, name, value)
    expected = FinishedRun(folder, precision="float32").probabilities(ROWS)
    classifier = load_classifier(folder, "cpu", "auto")
    assert (classifier.precision, int8_layers(classifier)) == ("float32", [])
    assert np.array_equal(FinishedRun(folder).probabilities(ROWS), expected)


def test_a_precision_that_cannot_be_used_is_refused(folder, monkeypatch):
    monkeypatch.setattr(int8_linear, "try_int8", lambda layer: Int8Trial(exact=False, gain=3.0))
    with pytest.raises(ModelError, match="cannot run in int8 here: the processor adds 8-bit products in too few bits"):
        load_classifier(folder, "cpu", "int8")
    with pytest.raises(RunError, match="no precision 'int4'; choose of 'auto', 'float32' and 'int8'"):
        FinishedRun(folder, precision="int4")


@pytest.mark.parametrize(("exact", "gain", "suits"), [(True, 2.5, True), (True, 0.05, False), (False, 2.5, False)])
def test_members_score_in_int8_only_where_the_processor_is_exact_and_fast(monkeypatch, exact, gain, suits):
    """Without VNNI the product may be exact and far slower than in float32."""
    monkeypatch.setattr(int8_linear, "try_int8", lambda layer: Int8Trial(exact, gain))
    assert int8_linear.suits_processor.__wrapped__() is suits
