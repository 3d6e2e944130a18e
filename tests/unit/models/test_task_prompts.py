import pytest

from clozify.config.recipe import Wording
from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.errors import TaskError
from clozify.methods.score import score_rows
from clozify.models.task_prompts import compile_task


def task(words, *patterns):
    return load_task({"fields": ["text"], "labels": words, "patterns": list(patterns) or ["It was {mask}. {text}"]})


@pytest.mark.parametrize("several_tokens", ["mean", "masks"])
def test_a_word_longer_than_the_model_is_told(tiny, several_tokens):
    words = {"a": "bad", "b": "good " * 70 + "x", "c": "great " * 80 + "y"}
    with pytest.raises(TaskError) as error:
        compile_task(tiny("bert"), task(words), wording=Wording(several_tokens=several_tokens))
    assert len(error.value.problems) == 2
    assert "the word 'good good" in error.value.problems[0]
    assert "of the label 'b' has 71 tokens, which leaves none" in error.value.problems[0]


def test_a_pattern_without_space_for_its_masks_is_told(tiny):
    model, long_word = tiny("bert"), task({"a": "bad", "b": "good " * 19 + "x"})
    prompts = compile_task(model, long_word, wording=Wording(several_tokens="masks"))
    with pytest.raises(TaskError, match="takes 25 tokens by itself, 20 of them masks for the longest word, which"):
        list(score_rows(model, prompts, load_rows(["a text"], long_word), max_length=24))


def test_all_words_that_cannot_be_used_are_told_at_once(tiny):
    words = {"a": "bad", "b": "Bad", "c": "\u0378", "d": "good " * 80 + "x"}
    with pytest.raises(TaskError) as error:
        compile_task(tiny("bert"), task(words, "It was {mask}. {text}", "{text} ( {mask} )"))
    assert len(error.value.problems) == 3
    assert all("and 1 more, the" in problem for problem in error.value.problems)
