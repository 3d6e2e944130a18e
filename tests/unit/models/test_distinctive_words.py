import pytest
import torch
from datasets import Dataset

from clozify.config.pattern import Pattern
from clozify.config.task import parse_task
from clozify.data.rows import Rows
from clozify.models import distinctive_words
from clozify.prompts.encode import compile_pattern

TASK = """
name = "t"
fields = ["text"]
labels = ["mail", "science", "video"]
patterns = ["Software for {mask}: {text}"]
"""
TEXTS = ["sends and receives email messages", "analysis of dna sequences", "a server for email", "dna and genes"]


@pytest.fixture
def labeled():
    data = {"text": TEXTS, "label": ["mail", "science", "mail", "science"]}
    return Rows(Dataset.from_dict(data), parse_task(TASK))


def test_tokens_are_sorted_by_the_difference_from_the_other_labels():
    """Token 0 is likeliest everywhere, token 1 tells label 0, token 2 label 1; token 3 is never likely."""
    means = torch.tensor([[-0.1, -1.0, -5.0, -40.0], [-0.1, -5.0, -2.0, -90.0]])
    counts = torch.tensor([4.0, 2.0])
    tokens = distinctive_words.distinctive_tokens(means * counts[:, None], counts)
    assert tokens[:, :2].tolist() == [[3, 1], [2, 0]]


def test_a_token_that_is_never_likely_is_left_out(monkeypatch):
    monkeypatch.setattr(distinctive_words, "LIKELY_TOKENS", 3)
    means = torch.tensor([[-0.1, -1.0, -5.0, -40.0], [-0.1, -5.0, -2.0, -90.0]])
    assert distinctive_words.distinctive_tokens(means, torch.ones(2)).tolist() == [[1, 0, 2], [2, 0, 1]]


def test_sums_are_those_of_a_naive_loop(tiny, labeled):
    model = tiny("bert")
    template = compile_pattern(Pattern("{text} is {mask}"), model.tokenizer)
    sums, counts = distinctive_words.label_log_probabilities(model, template, labeled)
    assert counts.tolist() == [2, 2, 0]
    expected = torch.zeros_like(sums)
    for text, label in zip(TEXTS, labeled.labels.tolist(), strict=True):
        ids = model.tokenizer.hf_tokenizer(f"{text} is [MASK]", return_tensors="pt", padding=False)["input_ids"]
        with torch.inference_mode():
            logits = model.model(input_ids=ids).logits[0, ids[0].tolist().index(model.tokenizer.mask_id)]
        expected[label] += logits.log_softmax(dim=-1)
    torch.testing.assert_close(sums, expected, atol=1e-3, rtol=1e-3)


def test_suggestions_differ_by_label_and_leave_out_the_labels_own_words(builtin, labeled):
    template = compile_pattern(Pattern("Software for {mask}: {text}"), builtin.tokenizer)
    words = distinctive_words.distinctive_words(builtin, template, labeled)
    assert words["video"] == []
    assert words["mail"] != words["science"]
    assert "mail" not in words["mail"]
    assert len(words["mail"]) == 4


def test_many_labels_are_judged_by_few_rows_each(monkeypatch, labeled):
    monkeypatch.setattr(distinctive_words, "MAX_ROWS", 3)
    assert distinctive_words.first_rows_of_labels(labeled).labels.tolist() == [0, 1]
