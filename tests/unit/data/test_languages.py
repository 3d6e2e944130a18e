"""Languages of texts, by py3langid."""

import pytest

from clozify.data.languages import MIN_LETTERS, Language, frequent_languages, identify_languages

pytest.importorskip("py3langid")


def test_languages_are_identified():
    texts = [
        "The government plans several new laws for next year, a spokesman said on Monday.",
        "Die Regierung plant für das kommende Jahr mehrere neue Gesetze, sagte ein Sprecher am Montag.",
        "Le gouvernement prévoit plusieurs nouvelles lois pour l'année prochaine, a dit un porte-parole.",
    ]
    assert [language.code for language in identify_languages(texts)] == ["en", "de", "fr"]


def test_short_texts_have_no_language():
    """A few words are too little to tell one from another."""
    assert identify_languages(["Guten Morgen", "", "12345 " * 20, "a" * (MIN_LETTERS - 1)]) == [None] * 4


def test_a_language_of_a_fifth_of_the_rows_belongs_to_the_data():
    english, german, french = (Language(code, 0.99) for code in ("en", "de", "fr"))
    assert frequent_languages([english] * 7 + [german] * 3 + [french] + [None] * 50) == ["en", "de"]
    assert frequent_languages([None]) == []
