"""The last layer at one position of each row: the same numbers as by the whole encoder, in fewer products."""

import numpy as np
import pytest
import torch
import transformers

from clozify.config.recipe import load_recipe
from clozify.gpu.options import GpuOptions
from clozify.models.classifier import new_classifier
from clozify.models.cloze import load_model
from clozify.models.last_layer import GatherOutput, GatherQueries
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from tests.tiny import ARCHITECTURES

GATHERS = {  # of the others some have no attention module of their own in a layer
    "bert": GatherQueries,
    "roberta": GatherQueries,
    "xlm-roberta": GatherQueries,
    "mpnet": GatherQueries,
    "electra": GatherQueries,
    "deberta-v2": GatherOutput,
}
ROUNDING = {"atol": 1e-5, "rtol": 1e-4}


def whole_batch(model, rows):
    pattern = compile_task(model, rows.task).patterns[0]
    columns = pattern.template.fields
    tokens = {field: field.tokenize(model.tokenizer, rows.texts(field.slot.field)) for field in columns}
    return EncodedRows(pattern.template, tokens, 40).batch(np.arange(len(rows)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_at_masks_are_those_of_transformers_own_forward_pass(architecture, tiny_folder, rows):
    model = load_model(tiny_folder(architecture), "cpu")
    batch = whole_batch(model, rows)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(tiny_folder(architecture)).eval()
    inputs = {name: torch.from_numpy(getattr(batch, name)) for name in model.input_names}
    with torch.inference_mode():
        expected = reference.base_model(**inputs)[0][torch.arange(len(rows)), torch.from_numpy(batch.mask_positions)]
        assert torch.allclose(model.states_at_mask(batch), expected, **ROUNDING)
    gather = GATHERS.get(architecture)
    assert gather is None or model._last_layer.gather is gather


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_classifier_s_scores_are_those_of_transformers_own_forward_pass(architecture, tiny_folder, rows):
    classifier = new_classifier(tiny_folder(architecture), rows.task, load_recipe("quick"), "cpu")
    batch = classifier.encode(rows).batch(np.arange(len(rows)))
    inputs = {name: torch.from_numpy(getattr(batch, name)) for name in classifier.input_names}
    with torch.inference_mode():
        expected = classifier.model(**inputs).logits
        for one_pass in (False, True):
            assert torch.allclose(classifier.scores(batch, one_pass), expected, **ROUNDING)


@pytest.mark.parametrize("scoring", ["float32", "int8", "bf16"])
def test_scores_are_those_of_the_whole_encoder_in_every_precision(scoring, tiny_folder, rows, monkeypatch):
    scores = []
    for reads_one_position in (True, False):
        model = load_model(tiny_folder("mpnet"), "cpu", options=GpuOptions(scoring=scoring))
        if not reads_one_position:
            monkeypatch.setattr(type(model), "reads_one_position", False)
        batch, words = whole_batch(model, rows), compile_task(model, rows.task).patterns[0].words[0]
        with torch.inference_mode(), model.scoring():
            scores.append(model.label_scores(model.states_at_mask(batch), words))
    assert torch.allclose(*scores, atol=0.02 if scoring == "bf16" else 1e-4)


def test_what_follows_the_last_attention_runs_once_a_row(tiny_folder, rows):
    model = load_model(tiny_folder("mpnet"), "cpu")
    batch = whole_batch(model, rows)
    model.states_at_mask(batch)  # tries the last layer
    tokens = dict[str, int]()

    def count(name):
        def add(_, inputs, __):
            tokens[name] = tokens.get(name, 0) + inputs[0].shape[:-1].numel()

        return add

    for name, part in model.encoder.named_modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(count(name))
    model.states_at_mask(batch)
    last, first = "encoder.layer.1.", "encoder.layer.0."
    for part in ("attention.attn.q", "attention.attn.o", "intermediate.dense", "output.dense"):
        assert tokens[last + part] == len(rows) < tokens[first + part]
    assert tokens[last + "attention.attn.k"] == tokens[first + "attention.attn.k"]


def test_training_reads_the_whole_encoder_with_its_dropout(tiny_folder, rows):
    """Dropout of the attention's probabilities is left out of the short cut."""
    model = load_model(tiny_folder("bert"), "cpu")
    batch = whole_batch(model, rows)
    model.model.train()
    assert not model.reads_one_position
    torch.manual_seed(0)
    one = model.states_at_mask(batch)
    torch.manual_seed(0)
    again, other = model.states_at_mask(batch), model.states_at_mask(batch)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


def test_rows_are_scored_in_threads_at_the_same_time_as_alone(tiny_folder, rows):
    from concurrent.futures import ThreadPoolExecutor

    model = load_model(tiny_folder("mpnet"), "cpu")
    batches = [whole_batch(model, rows.select(np.arange(count))) for count in (1, 2, 3, 4, 5)] * 4
    expected = [model.states_at_mask(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for states, alone in zip(pool.map(model.states_at_mask, batches), expected, strict=True):
            assert torch.allclose(states, alone, **ROUNDING)
