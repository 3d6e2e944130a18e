"""Pieces of a text with the words that moved a label."""

import pytest

from clozify.report.format import MAX_CHARACTERS, shorten
from clozify.report.highlight import SMALLEST_SCALE, explained_texts, strength
from clozify.runs.explanations import ExplainedPart, ExplainedRow


def part(field, start, end, effect):
    return ExplainedPart(field=field, start=start, end=end, effect=effect)


def test_pieces_join_to_the_text_and_words_have_sign_and_strength():
    row = ExplainedRow(
        row=0, label="great", parts=[part("text", 2, 6, 2.0), part("text", 7, 11, -0.9), part("text", 12, 14, 0.1)]
    )
    explained = explained_texts(row, ["title", "text"], ["Title", "a good slow x!"])
    title, text = explained.texts
    assert [piece.text for piece in title] == ["Title"]
    assert [(piece.text, piece.effect, piece.strength) for piece in text] == [
        ("a ", None, 0),
        ("good", 2.0, 3),
        (" ", None, 0),
        ("slow", -0.9, 2),
        (" x!", None, 0),
    ]
    assert explained.strongest == [("good", 2.0), ("slow", -0.9)]


def test_a_long_text_is_cut_as_the_page_cuts_it():
    text = "word " * 200
    row = ExplainedRow(row=0, label="great", parts=[part("text", 0, 4, 1.0), part("text", 995, 999, 1.0)])
    ((*pieces,),) = explained_texts(row, ["text"], [text]).texts
    assert "".join(piece.text for piece in pieces) == shorten(text)
    assert len(shorten(text)) <= MAX_CHARACTERS + 4
    assert [piece.text for piece in pieces if piece.strength] == ["word"]


@pytest.mark.parametrize(("effect", "largest", "level"), [(0.0, 1.0, 0), (1.0, 1.0, 3), (-0.4, 1.0, 2), (0.2, -0.0, 2)])
def test_strength_is_relative_to_the_rows_largest_effect(effect, largest, level):
    assert strength(effect, largest) == level


def test_where_all_effects_are_small_none_is_shown_as_strong():
    assert strength(0.2 * SMALLEST_SCALE, 0.2 * SMALLEST_SCALE) == 1
    assert strength(0.01, 0.01) == 0


def test_empty_texts_have_no_pieces():
    row = ExplainedRow(row=0, label="great", parts=[])
    assert explained_texts(row, ["text"], [""]).texts == [[]]
