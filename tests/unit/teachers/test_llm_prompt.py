import pytest

from clozify.config.task import load_task
from clozify.config.teachers import OpenAIEntry
from clozify.data.in_memory import make_rows
from clozify.teachers.llm_prompt import PromptBuilder, balanced_order, estimate_tokens

TASK = load_task({
    "description": "Reviews of restaurants.",
    "fields": ["text"],
    "patterns": ["{text} {mask}"],
    "labels": {"good": ["good", "great"], "bad": "bad"},
})  # fmt: skip


def labeled(count=6):
    texts = [f"row {index}" for index in range(count)]
    return make_rows({"text": texts, "label": ["good", "good", "good", "bad", "bad", "good"][:count]}, TASK, "T")


def content(texts, rows=None, task=TASK, **settings):
    builder = PromptBuilder(OpenAIEntry(kind="openai", model="m", **settings), task, rows)
    (message,) = builder.messages(texts)
    assert message["role"] == "user"
    return message["content"]


def test_the_prompt_holds_task_labels_examples_and_row():
    text = content({"text": "Nice soup."}, labeled(), examples=2, descriptions={"bad": "the guest complains"})
    assert text == (
        "Reviews of restaurants.\nRead the text and choose the label that fits it best.\n\nLabels:\n1. good (great)\n"
        "2. bad: the guest complains\n\nText:\nrow 0\nLabel: 1\n\nText:\nrow 3\nLabel: 2\n\nText:\nNice soup.\n\n"
        "Answer with the number of the label and nothing else."
    )


def test_examples_are_balanced_over_labels_in_the_order_of_the_rows():
    assert balanced_order([0, 0, 0, 1, -1, 1, 0]) == [0, 3, 1, 5, 2, 6]


def test_a_labelled_row_is_never_its_own_example():
    text = content({"text": "row 0"}, labeled(), examples=2)
    assert text.count("row 0") == 1
    assert text.count("Label: ") == 2


def test_without_labelled_rows_there_are_no_examples():
    assert "Label: " not in content({"text": "x"}, None)
    assert "Label: " not in content({"text": "x"}, labeled(), examples=0)


def test_long_texts_are_cut():
    text = content({"text": "a" * 50}, characters=10)
    assert "a" * 10 + " ..." in text
    assert "a" * 11 not in text


def test_several_fields_are_named():
    task = load_task({"fields": ["title", "text"], "patterns": ["{title} {text} {mask}"], "labels": ["a b", "c d"]})
    assert "title: T\ntext: B" in content({"title": "T", "text": "B"}, task=task)
    assert "title" not in content({"title": "", "text": "B"}, task=task)


def test_a_prompt_of_the_users_replaces_the_default_one():
    text = content({"text": "{row} & {x}"}, prompt="{{json}} {text} [{labels}] {code} {task}")
    assert text == "{json} {row} & {x} [1. good (great)\n2. bad] number Reviews of restaurants."


@pytest.mark.parametrize(("text", "tokens"), [("a" * 400, 108), ("я" * 400, 208)])
def test_tokens_are_estimated_from_bytes(text, tokens):
    assert estimate_tokens([{"role": "user", "content": text}]) == tokens
