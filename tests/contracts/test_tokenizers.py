"""One battery over every kind of tokenizer: spliced ids are what the tokenizer makes of the written-out text."""

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozify.config.pattern import FILTERS, Mask, Pattern
from clozify.config.task import Verbalizer, load_task, shipped_tasks
from clozify.prompts.encode import EncodedRows, compile_pattern
from clozify.prompts.tokenizer import START
from clozify.prompts.verbalizer import verbalize, word_ids

KINDS = ["bert", "roberta", "xlm-roberta", "albert", "mpnet", "modernbert"]
PATTERNS = sorted({text for name in shipped_tasks() for text in load_task(name).patterns})
words = st.lists(st.text(string.ascii_letters, min_size=1, max_size=9), min_size=1, max_size=6).map(" ".join)


def written_out(pattern: Pattern, fields: dict[str, str], word: str) -> list[str]:
    def part(p) -> str:
        if isinstance(p, str):
            return p
        if isinstance(p, Mask):
            return word
        return FILTERS[p.filter](fields[p.field]) if p.filter else fields[p.field]

    return ["".join(part(p) for p in segment) for segment in pattern.segments]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_splicing_equals_tokenising_the_written_out_text(kind, tiny, data):
    """A missing or surplus space mark would show the model text it never saw in pretraining."""
    tokenizer = tiny(kind).tokenizer
    pattern = Pattern(data.draw(st.sampled_from(PATTERNS)))
    fields = {slot.field: data.draw(words) for slot in pattern.slots}
    template = compile_pattern(pattern, tokenizer)
    columns = {c: c.tokenize(tokenizer, [fields[c.slot.field]]) for c in template.fields}
    batch = EncodedRows(template, columns, 1000).batch(np.array([0]))
    word = "okay"
    (word_id,) = word_ids(tokenizer, template, word)
    spliced = batch.input_ids[0].copy()
    spliced[batch.mask_positions[0]] = word_id
    reference = tokenizer.hf_tokenizer(*written_out(pattern, fields, word), truncation=False, padding=False)
    assert spliced.tolist() == reference["input_ids"]
    if "token_type_ids" in reference:
        assert batch.token_type_ids[0].tolist() == reference["token_type_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_s_own_truncation_and_padding_are_switched_off(kind, tiny):
    """The tiny tokenizers' files say: cut at 7, pad to 9."""
    assert len(tiny(kind).tokenizer.encode_batch(["a game " * 30]).ids) >= 60
    assert tiny(kind).tokenizer.encode_batch([""]).lengths.tolist() == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_token_in_a_user_s_text_is_text(kind, tiny):
    """A second mask, or an end of sequence, would come from whoever wrote the text."""
    tokenizer = tiny(kind).tokenizer
    special = set(tokenizer.hf_tokenizer.all_special_ids) - {tokenizer.hf_tokenizer.unk_token_id}
    text = " ".join(tokenizer.hf_tokenizer.all_special_tokens)
    for context in (START, "x ", '"'):
        assert not special & set(tokenizer.encode_batch([text], context).ids.tolist())


@pytest.mark.parametrize(("kind", "inner", "first"), [("roberta", "Ġgood", "good"), ("xlm-roberta", "▁good", "▁good")])
def test_one_word_may_have_different_ids_in_different_patterns(kind, inner, first, tiny):
    tokenizer = tiny(kind).tokenizer
    inside = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    at_start = compile_pattern(Pattern("{mask}: {text}"), tokenizer)
    assert tokenizer.to_tokens(word_ids(tokenizer, inside, "good")) == [inner]
    assert tokenizer.to_tokens(word_ids(tokenizer, at_start, "good"))[0] == first or kind == "roberta"


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_of_several_tokens_is_scored_by_all_of_them(kind, tiny):
    tokenizer = tiny(kind).tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    words, unusable, errors, _ = verbalize(tokenizer, template, Verbalizer(words={"a": "good", "b": "unfathomable"}))
    ids = word_ids(tokenizer, template, "unfathomable")
    assert not unusable
    assert not errors
    assert len(ids) > 1
    assert set(ids) < set(words.ids.tolist())


def test_words_that_differ_only_in_case_are_one_token_for_a_lower_casing_model(tiny):
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    _, _, errors, _ = verbalize(tokenizer, template, Verbalizer(words={"a": "Good", "b": "good"}))
    assert "'a' and 'b' have the same words" in errors[0]


def test_the_same_tokens_in_another_order_are_a_warning(tiny):
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    words = {"a": "good bad", "b": "bad good", "c": "great"}
    _, _, errors, warnings = verbalize(tokenizer, template, Verbalizer(words=words))
    assert not errors
    assert "'a' and 'b' have the same tokens in another order" in warnings[0]
    masks = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer, masks=2)
    assert verbalize(tokenizer, masks, Verbalizer(words=words)).warnings == []


def test_lists_of_words_may_overlap_with_a_warning_and_are_averaged(tiny):
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    result, _, errors, warnings = verbalize(
        tokenizer, template, Verbalizer(words={"a": ("good", "great"), "b": ("good", "bad")})
    )
    assert not errors
    assert "stands for the labels 'a' and 'b'" in warnings[0]
    assert result.mean.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]


def test_many_words_that_labels_share_are_one_warning_with_a_count(tiny):
    """34 warnings of one kind hide the one of another kind."""
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    words = Verbalizer(words={"a": ("good", "great", "bad", "fine"), "b": ("good", "great", "bad")})
    (warning,) = verbalize(tokenizer, template, words).warnings
    assert warning.endswith("stands for the labels 'a' and 'b', and 2 more words for several labels")


@pytest.mark.parametrize(
    ("pattern", "fits"), [("{mask}ly {text}", False), ("a{mask}b {text}", False), ("({mask}) {text}", True)]
)
def test_a_word_that_touches_letters_is_tokenised_with_them(pattern, fits, tiny):
    """'great' is a token, but in 'greatly' the model never sees it."""
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern(pattern), tokenizer)
    assert (len(word_ids(tokenizer, template, "great")) == 1) == fits


def test_labels_with_the_same_words_in_another_order_are_an_error(tiny):
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    _, _, errors, _ = verbalize(tokenizer, template, Verbalizer(words={"a": ("good", "bad"), "b": ("bad", "good")}))
    assert "same words" in errors[0]


def test_a_word_that_the_tokenizer_drops_is_an_error(tiny):
    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    _, split, _, _ = verbalize(tokenizer, template, Verbalizer(words={"a": "good", "b": "\u200b"}))
    assert "nothing to the model's tokenizer" in str(split[0])
