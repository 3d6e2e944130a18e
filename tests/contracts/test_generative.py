"""One battery over causal and encoder-decoder models: scores equal Transformers' own log-likelihoods."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from clozify.config.sections import Generative
from clozify.config.task import parse_task
from clozify.data.rows import Rows
from clozify.methods.score import score_rows
from clozify.models.language_model import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from tests.tiny import GENERATIVE, make_generative

TASK = """
name = "stars"
fields = ["text"]
patterns = ["{text}. It was {mask}.", "Just {mask}! || {text}"]
[labels]
1 = ["bad", "utterly terrible"]
2 = "okay"
3 = ["great", "an astonishing surprise"]
"""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folders = {}

    def model(architecture, **settings):
        if architecture not in folders:
            folders[architecture] = make_generative(architecture, tmp_path_factory.mktemp(architecture))
        return load_model(folders[architecture], "cpu", generative=Generative(**settings))

    return model


@pytest.fixture
def rows():
    texts = ["Good", "I liked it a lot, and so did the others who were in the room", "", "It was all wrong " * 9]
    return Rows(Dataset.from_dict({"text": texts}), parse_task(TASK))


def log_likelihood(model, prompt, word):
    """log p(word | prompt) by one full forward pass of Transformers, without padding or cache; `prompt` is of ids."""
    prompt, word = list(map(int, prompt)), list(map(int, word))
    hf_model = model.model
    with torch.no_grad():
        if hf_model.config.is_encoder_decoder:
            written = [hf_model.config.decoder_start_token_id, model.tokenizer.mask_id]
            logits = hf_model(
                input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([written + word]), use_cache=False
            ).logits[0]
            start = len(written)
        else:
            logits = hf_model(input_ids=torch.tensor([prompt + word]), use_cache=False).logits[0]
            start = len(prompt)
    probabilities = logits.double().log_softmax(dim=-1)
    return sum(probabilities[start + index - 1, token].item() for index, token in enumerate(word))


def naive_scores(model, prompts, rows, max_length):
    """s(l | x) written out: mean over words of log p(w | x) - log p(w | neutral)."""
    scores = np.empty((len(rows.task.pairs), len(rows), len(rows.task.labels)))
    columns = prompts.tokenize(model, rows, 0, len(rows))
    for prompt in prompts.patterns:
        ((pair,), (words,)) = prompt.pairs, prompt.words
        sequences = np.split(words.ids, words.starts[1:])
        verbalizer = rows.task.pairs[pair].verbalizer.words
        labels = [label for label, of_label in enumerate(verbalizer.values()) for _ in of_label]
        encoded = EncodedRows(prompt.template, columns, max_length)
        for row in range(len(rows)):
            ids = encoded.batch(np.array([row])).input_ids[0]
            for label in range(len(rows.task.labels)):
                of_words = [
                    log_likelihood(model, ids, word)
                    - (0 if words.neutral is None else log_likelihood(model, words.neutral, word))
                    for of_label, word in zip(labels, sequences, strict=True)
                    if of_label == label
                ]
                scores[pair, row, label] = np.mean(of_words)
    return scores


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("architecture", GENERATIVE)
def test_scores_equal_the_log_likelihoods_of_transformers(architecture, calibrate, load, rows):
    model = load(architecture, calibrate=calibrate)
    prompts = compile_task(model, rows.task)
    assert any(words.lengths.max() > 1 for prompt in prompts.patterns for words in prompt.words)
    result = np.concatenate([part for _, part in score_rows(model, prompts, rows, 64)], axis=1)
    expected = naive_scores(model, prompts, rows, 64)
    assert np.abs(result - expected).max() < 1e-4
    assert np.ptp(expected, axis=1).min() > 1e-3  # scores that did not depend on the row would prove nothing


@pytest.mark.parametrize("architecture", GENERATIVE)
def test_padding_changes_no_score(architecture, load, rows):
    model = load(architecture)
    prompts = compile_task(model, rows.task)
    columns = prompts.tokenize(model, rows, 0, len(rows))
    for prompt in prompts.patterns:
        encoded = EncodedRows(prompt.template, columns, 64)
        with torch.inference_mode():
            together = model.label_scores(model.states_at_mask(encoded.batch(np.arange(4))), prompt.words[0])
            wide = model.label_scores(model.states_at_mask(encoded.batch(np.arange(4), 150)), prompt.words[0])
            alone = torch.cat(
                [
                    model.label_scores(model.states_at_mask(encoded.batch(np.array([i]))), prompt.words[0])
                    for i in range(4)
                ]
            )
        assert torch.allclose(together, alone, atol=1e-4)
        assert torch.allclose(wide, alone, atol=1e-4)


@pytest.mark.parametrize("architecture", GENERATIVE)
def test_a_score_has_gradients_for_every_layer(architecture, load, rows):
    model = load(architecture)
    prompt = compile_task(model, rows.task).patterns[0]
    columns = compile_task(model, rows.task).tokenize(model, rows, 0, 2)
    batch = EncodedRows(prompt.template, columns, 40).batch(np.arange(2))
    scores = model.label_scores(model.states_at_mask(batch), prompt.words[0])
    torch.nn.functional.cross_entropy(scores, torch.tensor([0, 2])).backward()
    untouched = [name for name, p in model.model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not untouched


@pytest.mark.parametrize("architecture", GENERATIVE)
def test_a_saved_model_gives_the_same_scores(architecture, load, rows, tmp_path):
    model = load(architecture)
    model.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved", "cpu")

    def score(model):
        return np.concatenate([part for _, part in score_rows(model, compile_task(model, rows.task), rows)], axis=1)

    assert np.array_equal(score(model), score(again))
