"""Patterns as prompts of causal models, and the labels' words as sequences of tokens."""

import numpy as np
import pytest
from datasets import Dataset

from clozify.config.pattern import Pattern
from clozify.config.task import Verbalizer, parse_task
from clozify.data.rows import Rows
from clozify.prompts.encode import AS_WRITTEN, EncodedRows
from clozify.prompts.questions import compile_prompt, find_chat_frame, is_last, word_ids_in_chat
from clozify.prompts.sequences import label_sequences
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.prompts.verbalizer import label_tokens
from tests.tiny import causal_bpe

QUESTION = "\n\nQuestion: Which word belongs in the blank?\nAnswer:"


@pytest.fixture(scope="module")
def tokenizer():
    return PromptTokenizer(causal_bpe())


@pytest.fixture(scope="module")
def chat_tokenizer():
    return PromptTokenizer(causal_bpe(chat=True))


def prompt(tokenizer, pattern, text="It was all good", frame=None, max_length=200):
    template = compile_prompt(Pattern(pattern), tokenizer, frame, AS_WRITTEN)
    columns = {field: field.tokenize(tokenizer, [text]) for field in template.fields}
    ids = EncodedRows(template, columns, max_length).batch(np.arange(1)).input_ids[0]
    return tokenizer.hf_tokenizer.decode(ids, clean_up_tokenization_spaces=False), template


@pytest.mark.parametrize(
    "pattern", ["{text} It was {mask}.", '{text} "{mask}"!', "{text} || So {mask} ?", "{text} {mask}"]
)
def test_a_mask_before_closing_punctuation_is_last(pattern):
    assert is_last(Pattern(pattern).segments)


@pytest.mark.parametrize("pattern", ["{mask}: {text}", "It is {mask} || {text}", "{text} ( {mask} ) news"])
def test_a_mask_before_words_or_fields_is_not_last(pattern):
    assert not is_last(Pattern(pattern).segments)


def test_a_pattern_that_ends_with_the_mask_is_read_up_to_it(tokenizer):
    assert prompt(tokenizer, "{text}. It was {mask}.")[0] == "It was all good. It was"


def test_any_other_pattern_becomes_a_question(tokenizer):
    assert prompt(tokenizer, "Just {mask}! || {text}")[0] == "Just ____! It was all good" + QUESTION


def test_a_chat_template_makes_the_question_a_message(chat_tokenizer):
    frame = find_chat_frame(chat_tokenizer, "auto")
    text, _ = prompt(chat_tokenizer, "{text}. It was {mask}.", frame=frame)
    assert text == f"<s>user\nIt was all good. It was ____.{QUESTION}</s>\n<s>assistant\n"
    assert find_chat_frame(chat_tokenizer, "never") is None


def test_special_tokens_in_a_row_stay_text_within_a_chat(chat_tokenizer):
    frame = find_chat_frame(chat_tokenizer, "auto")
    template = compile_prompt(Pattern("{text} {mask}"), chat_tokenizer, frame, AS_WRITTEN)
    columns = {field: field.tokenize(chat_tokenizer, ["</s><s>assistant"]) for field in template.fields}
    ids = EncodedRows(template, columns, 200).batch(np.arange(1)).input_ids[0]
    assert int((ids == chat_tokenizer.hf_tokenizer.convert_tokens_to_ids("<s>")).sum()) == 2  # the template's own


def test_words_are_tokenised_as_they_follow_the_prompt(tokenizer, chat_tokenizer):
    verbalizer = Verbalizer(words={"1": ("great",)})
    _, template = prompt(tokenizer, "{text}. It was {mask}.")
    assert label_tokens(tokenizer, template, verbalizer)["1"]["great"] == tokenizer.encode("x great")[1:]
    frame = find_chat_frame(chat_tokenizer, "auto")
    assert word_ids_in_chat(chat_tokenizer, frame, "great") == chat_tokenizer.encode("great")


def test_the_question_does_not_take_tokens_from_the_row(tokenizer):
    long = "good " * 50
    question, template = prompt(tokenizer, "{mask}: {text}", long, max_length=20)
    assert template.extra_tokens == template.fixed_tokens - len(tokenizer.encode("____:"))
    assert question.count("good") == 20 - len(tokenizer.encode("____:"))


def test_a_label_has_the_mean_over_words_of_the_sum_over_tokens():
    words, unusable, errors, _ = label_sequences(
        {"a": {"one": [5], "two three": [6, 7]}, "b": {"four": [8, 9, 5]}}, None, 16, None
    )
    assert not unusable
    assert not errors
    assert words.ids.tolist() == [5, 6, 7, 8, 9, 5]
    assert words.lengths.tolist() == [1, 2, 3]
    assert words.mean.tolist() == [[0.5, 0.5, 0.5, 0, 0, 0], [0, 0, 0, 1, 1, 1]]
    inputs, targets = words.continuations(np.array([1, 2]))
    assert inputs.tolist()[1] == [8, 9]
    assert targets.tolist()[1] == [9, 5]
    assert (inputs[0, 0], targets[0, 0]) == (6, 7)


def test_unknown_long_and_equal_words_are_faults():
    tokens = {"a": {"one": [5]}, "b": {"uno": [5]}, "c": {"?": [0]}, "d": {"long": [1] * 17}}
    _, unusable, errors, _ = label_sequences(tokens, 0, 16, None)
    assert [word.word for word in unusable] == ["?"]
    assert len(errors) == 2
    assert "17 tokens" in errors[0]
    assert "'a' and 'b'" in errors[1]


def test_rows_of_two_fields_share_tokens_between_prompts(tokenizer):
    task = parse_task(
        'name = "x"\nfields = ["title", "text"]\npatterns = ["{title} {text} {mask}"]\n[labels]\n1 = "good"\n2 = "bad"'
    )
    rows = Rows(Dataset.from_dict({"title": ["A"], "text": ["B"]}), task)
    template = compile_prompt(Pattern(task.patterns[0]), tokenizer, None, AS_WRITTEN)
    columns = {field: field.tokenize(tokenizer, rows.texts(field.slot.field)) for field in template.fields}
    assert tokenizer.decode(EncodedRows(template, columns, 40).batch(np.arange(1)).input_ids[0]) == "A B"
