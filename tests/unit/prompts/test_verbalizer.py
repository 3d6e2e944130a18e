import pytest

from clozify.config.pattern import Pattern
from clozify.config.task import Verbalizer
from clozify.prompts.encode import compile_pattern
from clozify.prompts.verbalizer import verbalize


def verbalized(model, words):
    template = compile_pattern(Pattern("It was {mask}. {text}"), model.tokenizer)
    return verbalize(model.tokenizer, template, Verbalizer(words=words))


def test_words_in_another_order_are_a_warning(tiny):
    result = verbalized(tiny("bert"), {"a": "good game", "b": "game good", "c": "bad"})
    assert result.errors == []
    (warning,) = result.warnings
    assert "the labels 'a' and 'b' have the same tokens in another order" in warning


@pytest.mark.parametrize("words", [("good game", "Good  game"), (["good", "bad"], ["bad", "good"])])
def test_labels_with_the_same_tokens_are_told(tiny, words):
    result = verbalized(tiny("bert"), {"a": words[0], "b": words[1], "c": "okay"})
    (error,) = result.errors
    assert "the labels 'a' and 'b' have the same words for this model" in error
