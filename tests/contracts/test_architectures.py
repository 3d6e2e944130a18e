"""One battery over every architecture: what is computed at the mask equals Transformers' own full forward pass."""

import numpy as np
import pytest
import torch

from clozify.config.task import parse_task
from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.methods.score import score_rows
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from tests.conftest import FOUR_PATTERNS
from tests.tiny import ARCHITECTURES


def full_forward(model, questions, rows, max_length):
    """Label scores from logits over the whole vocabulary at every position, one row at a time, nothing shared."""
    task = rows.task
    scores = np.empty((len(task.pairs), len(rows), len(task.labels)))
    columns = questions.tokenize(model, rows, 0, len(rows))
    for question in questions.patterns:
        encoded = EncodedRows(question.template, columns, max_length)
        for row in range(len(rows)):
            batch = encoded.batch(np.array([row]))
            inputs = {"input_ids": torch.from_numpy(batch.input_ids)}
            if model.model.config.model_type in ("bert", "albert", "electra"):
                inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids)
            with torch.no_grad():
                logits = model.model(**inputs).logits[0, int(batch.mask_positions[0])]
            for pair, words in zip(question.pairs, question.words, strict=True):
                for label in range(len(task.labels)):
                    chosen = np.flatnonzero(words.mean[label])
                    scores[pair, row, label] = logits[words.ids[chosen]].mean().item()
    return scores


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_equal_the_full_vocabulary_forward_pass(architecture, tiny, rows):
    model = tiny(architecture)
    questions = compile_task(model, rows.task)
    for max_length in (40, 256):
        result = np.concatenate([part for _, part in score_rows(model, questions, rows, max_length)], axis=1)
        expected = full_forward(model, questions, rows, min(max_length, model.max_length))
        assert np.abs(result - expected).max() < 1e-4
        assert np.ptp(expected, axis=1).min() > 1e-2  # scores that did not depend on the row would prove nothing


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_by_itself_gives_gradients_to_the_same_weights(architecture, tiny, rows):
    """Training goes through the same door; a copy of the head would learn and be thrown away."""
    model = tiny(architecture)
    question = compile_task(model, rows.task).patterns[0]
    columns = compile_task(model, rows.task).tokenize(model, rows, 0, 2)
    batch = EncodedRows(question.template, columns, 40).batch(np.arange(2))
    model.model.zero_grad()
    model.label_scores(model.states_at_mask(batch), question.words[0]).sum().backward()
    touched = [name for name, p in model.model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    outside = [name for name in touched if not name.startswith(model.model.base_model_prefix + ".")]
    assert outside
    assert len(touched) > len(outside)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_longest_row_fits_and_one_token_more_would_not(architecture, tiny):
    """RoBERTa and MPNet count positions from behind the padding id: 512 of 514 are usable."""
    model = tiny(architecture)
    assert model.max_length == 64
    inputs = torch.full((1, model.max_length), 7)
    assert torch.isfinite(model.model(inputs).logits).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_are_float32_whatever_the_file_holds(architecture, tiny_folder, tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folder = tiny_folder(architecture)
    AutoModelForMaskedLM.from_pretrained(folder).half().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    assert load_model(tmp_path).model.dtype == torch.float32


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "electra"])
def test_a_model_without_a_head_is_refused(architecture, tiny_folder, tmp_path):
    """Transformers would make up a random head and only whisper about it."""
    from transformers import AutoModel, AutoTokenizer

    folder = tiny_folder(architecture)
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="lacks a language-model head"):
        load_model(tmp_path)


def test_the_order_of_labels_in_a_verbalizer_has_no_meaning(tiny, rows):
    """Scored in the order of the words, the second verbalizer's labels would be swapped without a word."""
    text = FOUR_PATTERNS.split("[labels]")[0] + (
        '[[verbalizers]]\nname = "x"\nwords = { a = "good", b = "bad" }\n'
        '[[verbalizers]]\nname = "y"\nwords = { b = "bad", a = "good" }\n'
    )
    task = parse_task(text)
    swapped = Rows(rows._dataset, task)
    (_, scores), *_ = score_rows(tiny("bert"), compile_task(tiny("bert"), task), swapped)
    assert np.allclose(scores[0::2], scores[1::2])


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("gpt2", "is a gpt2 model, no masked language model"),
        ("bart", "is a bart model, no masked language model"),
        ("no tokenizer", "without a tokenizer"),
        ("broken weights", "cannot be loaded"),
        ("other vocabulary", "they do not belong together"),
    ],
)
def test_a_folder_that_is_no_masked_language_model_is_one_sentence(what, part, tiny_folder, tmp_path):
    import shutil

    import transformers

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    if what == "gpt2":
        transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1).save_pretrained(folder)
    elif what == "bart":
        transformers.BartConfig(d_model=8).save_pretrained(folder)
    elif what == "no tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    elif what == "broken weights":
        (folder / "model.safetensors").write_bytes(b"not weights")
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([f"token{n}" for n in range(50)])
        tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError) as error:
        load_model(folder)
    (problem,) = error.value.problems
    assert part in problem
