import pytest
from datasets import Dataset

from clozify.data.columns import guess_columns, open_with_header
from clozify.errors import DataError

LABELS = ["a_b", "c", "c", "a_b", "c", "a_b"]
TEXTS = [f"some words about number {index}" for index in range(6)]


def guess(columns, **options):
    chosen = guess_columns(Dataset.from_dict(columns), "rows.csv", **options)
    return [field.name for field in chosen.fields], chosen.label and chosen.label.name, chosen.id and chosen.id.name


def test_usual_names_are_recognised():
    columns = {"fold": [1, 1, 2, 2, 3, 3], "uid": range(6), "Intent": LABELS, "utterance": TEXTS}
    assert guess(columns) == (["utterance"], "Intent", "uid")


def test_columns_with_unusual_names_are_recognised_by_their_content():
    columns = {"was": LABELS, "satz": TEXTS, "url": [f"https://x.org/{index} y" for index in range(6)]}
    assert guess(columns) == (["satz"], "was", None)


def test_two_text_columns_are_two_fields():
    assert guess({"title": TEXTS, "label": LABELS, "review_body": TEXTS})[0] == ["title", "review_body"]


def test_the_user_names_columns():
    columns = {"label": LABELS, "kind": LABELS[::-1], "text": TEXTS, "more": TEXTS}
    assert guess(columns, text=["more"], label="kind") == (["more"], "kind", None)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": LABELS, "b": LABELS, "text": TEXTS}, {}, "could hold the labels: 'a' and 'b'; name one with --label"),
        ({"text": TEXTS}, {}, "no column that looks like labels, but 'text'; name the column with --label, or the"),
        ({"text": TEXTS, "label": LABELS}, {"text": ["txt"]}, "has no column 'txt' (did you mean 'text'?)"),
        ({"label": LABELS}, {}, "has no column with texts; name the column with --text"),
    ],
)
def test_what_cannot_be_guessed_is_one_sentence(columns, options, message):
    with pytest.raises(DataError) as error:
        guess(columns, **options)
    assert message in str(error.value)
    assert len(error.value.problems) == 1


def test_unlabelled_data_needs_no_label_column_where_labels_are_named():
    assert guess({"text": TEXTS}, needs_label=False) == (["text"], None, None)


def test_a_file_without_a_header_is_recognised(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('"3","Wall Street bears claw back","Short sellers are seeing green again."\n' * 3, encoding="utf-8")
    dataset, names = open_with_header(path)
    assert names == dataset.column_names == ["text_1", "text_2", "text_3"]
    assert len(dataset) == 3
    path.write_text("label,text\na,b\n", encoding="utf-8")
    assert open_with_header(path)[1] is None
