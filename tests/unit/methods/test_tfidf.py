"""The trivial baseline on hand-made rows."""

from datasets import Dataset

from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.methods.tfidf import tfidf_predictions

TASK = Task(
    name="made",
    fields=["title", "text"],
    patterns=["{mask} {title} {text}"],
    verbalizers=[{"words": {"bad": ("bad",), "good": ("good",)}}],
)


def rows(*lines):
    titles, texts, labels = zip(*lines, strict=True)
    return Rows(Dataset.from_dict({"title": titles, "text": texts, "label": labels}), TASK, "memory")


def test_words_of_any_field_decide():
    labeled = rows(("awful", "", "bad"), ("", "a fine film", "good"), ("dull", "x", "bad"), ("fine", "y", "good"))
    test = rows(("", "awful", "bad"), ("fine", "", "good"), ("", "so dull", "bad"))
    assert tfidf_predictions(labeled, test).tolist() == [0, 1, 0]


def test_one_label_or_no_text_is_answered_by_the_most_frequent_label():
    test = rows(("x", "y", "bad"))
    assert tfidf_predictions(rows(("a", "b", "good")), test).tolist() == [1]
    assert tfidf_predictions(rows(("", "", "bad"), ("", " ", "good"), ("", "", "good")), test).tolist() == [1]


def test_symbols_are_words():
    """Labelled rows of emoji alone would else have no vocabulary."""
    assert tfidf_predictions(
        rows(("\U0001f600", "", "good"), ("\U0001f622", "", "bad")), rows(("\U0001f600", "", "good"))
    ).tolist() == [1]
