import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozify.config.pattern import Mask, Pattern, Slot, no_final_punctuation
from clozify.errors import TaskError


def test_a_pattern_is_literals_slots_and_one_mask():
    """A part lost or moved would ask another question than the one written."""
    assert Pattern("It was {mask}. {text}").segments == (("It was ", Mask(), ". ", Slot("text")),)


def test_two_bars_separate_segments_and_eat_the_space_around_them():
    assert Pattern("Just {mask}! || {a}").segments == (("Just ", Mask(), "!"), (Slot("a"),))


def test_doubled_braces_are_text():
    assert Pattern("{{{mask}}} {a}").segments == (("{", Mask(), "} ", Slot("a")),)


def test_a_filter_belongs_to_its_slot():
    assert Pattern("{a:no_final_punctuation}? {mask}").slots == [Slot("a", "no_final_punctuation")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{text}", "no {mask}"),
        ("{mask} {mask} {text}", "2 times {mask}"),
        ("{mask} {text", "brace"),
        ("{mask} } {text}", "brace"),
        ("{mask} {}", "{}"),
        ("{mask} {text!r}", "{text!r}"),
        ("{mask} {text:shout}", "unknown filter 'shout'"),
        ("{mask:no_final_punctuation} {text}", "filter on {mask}"),
        ("{mask} || {text} || x", "3 segments"),
        ("{mask} {text} || ", "empty segment"),
    ],
)
def test_a_text_that_is_no_pattern_is_refused_with_its_reason(text, part):
    with pytest.raises(TaskError, match=".") as error:
        _ = Pattern(text).segments
    assert part in str(error.value)
    assert text in str(error.value)


def test_an_unknown_field_is_named_with_the_known_ones():
    (problem,) = Pattern("{mask} {txt}").problems(["text"])
    assert "{txt}" in problem
    assert "did you mean 'text'?" in problem


def test_a_pattern_without_a_field_is_a_problem():
    """Every row would get the same answer, which looks like a bad model."""
    assert "no field" in Pattern("It was {mask}.").problems(["text"])[0]


literal = st.text(st.characters(codec="utf-8", exclude_characters="|", exclude_categories=["Cs"]), max_size=12)


@given(before=literal, between=literal, after=literal)
def test_any_literal_text_survives_being_written_into_a_pattern(before, between, after):
    def escaped(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    pattern = Pattern(f"{escaped(before)}{{mask}}{escaped(between)}{{text}}{escaped(after)}")
    (segment,) = pattern.segments
    text = "".join(part if isinstance(part, str) else "\0" for part in segment)
    assert text == f"{before.lstrip()}\0{between}\0{after.rstrip()}"


@given(st.text(max_size=30))
def test_no_text_breaks_the_parser_with_anything_but_its_own_error(text):
    try:
        segments = Pattern(text).segments
    except TaskError:
        return
    assert sum(isinstance(part, Mask) for segment in segments for part in segment) == 1


def test_final_punctuation_goes_and_nothing_else():
    assert no_final_punctuation("Mia likes pie. Really?! ") == "Mia likes pie. Really"
