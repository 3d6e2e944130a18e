"""The paper's data sets in their original formats, made up: T, D and the test sets as appendix C says."""

import csv
import gzip
import json

import pytest

from clozify.config.recipe import load_recipe
from clozify.errors import ClozifyError
from clozify.reproduce.datasets import PaperData

RECIPE = load_recipe()


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def news(tmp_path):
    write_csv(tmp_path / "ag_news_csv/train.csv", [[1 + n % 4, f"title {n}", f"first\\line {n}"] for n in range(80)])
    write_csv(tmp_path / "ag_news_csv/test.csv", [[1 + n % 4, f"test {n}", "text"] for n in range(12)])
    return tmp_path


def test_t_is_the_first_rows_of_each_label_and_d_the_next_ones(news):
    """Unlabelled rows that hold T, or a T drawn at random, would be another experiment under the paper's name."""
    data = PaperData(news, unlabeled_per_label=5).load("agnews")
    labeled, unlabeled = data.select(10, RECIPE)
    assert sorted(labeled.texts("title"), key=lambda text: int(text[6:])) == [f"title {n}" for n in range(10)]
    assert len(unlabeled) == 20
    assert not set(unlabeled.texts("title")) & set(labeled.texts("title"))
    assert unlabeled.texts("title")[0] == "title 10"  # label 3 had two rows in T
    assert labeled.texts("description")[0] == "first line 0"
    assert [len(data.select(10, RECIPE, share)[1]) for share in (1.0, 0.4)] == [20, 8]
    assert data.select(0, RECIPE)[0] is None


def test_what_is_not_the_paper_s_is_said(news):
    notes = " ".join(PaperData(news, unlabeled_per_label=5, test_rows=6).load("agnews").notes)
    assert "80 training rows; the official set has 120,000" in notes
    assert "5 rows per label; the paper has 10,000" in notes
    assert "Measured on 6 evenly spaced test rows" in notes


def test_too_few_rows_for_a_training_set_are_an_error_not_a_smaller_one(news):
    with pytest.raises(ClozifyError, match="has 80 rows for 100 examples over 4 labels; ask for fewer"):
        PaperData(news).load("agnews").select(100, RECIPE)


def test_a_pool_beside_the_first_rows_and_gzipped_files_are_known(tmp_path):
    write_csv(tmp_path / "ag_news/train_first1000_per_class.csv", [[1 + n % 4, f"first {n}", "x"] for n in range(8)])
    write_csv(tmp_path / "ag_news/train_pool.csv", [[1 + n % 4, f"pool {n}", "x"] for n in range(8)])
    write_csv(tmp_path / "ag_news/test.csv", [[1 + n % 4, f"test {n}", "x"] for n in range(4)])
    plain = tmp_path / "ag_news/test.csv"
    with gzip.open(tmp_path / "ag_news/test.csv.gz", "wb") as file:
        file.write(plain.read_bytes())
    plain.unlink()
    data = PaperData(tmp_path).load("agnews")
    labeled, unlabeled = data.select(4, RECIPE)
    assert labeled.texts("title") == [f"first {n}" for n in range(4)]
    assert unlabeled.texts("title") == [*(f"first {n}" for n in range(4, 8)), *(f"pool {n}" for n in range(8))]
    assert len(data.test) == 4
    assert any("D has other rows" in note for note in data.notes)


def test_yahoo_without_bodies_takes_unlabelled_rows_into_d(tmp_path):
    rows = [{"label": n % 10, "title": f"q {n}", "best_answer": "because\\nso"} for n in range(20)]
    write_jsonl(tmp_path / "yahoo_answers/train_head.jsonl", rows)
    write_jsonl(tmp_path / "yahoo_answers/unlabeled.jsonl", [{"title": f"u {n}", "best_answer": ""} for n in range(5)])
    (tmp_path / "yahoo_answers/test_titles.tsv").write_text("sentence\tlabel\n" + "what?\t8\n" * 3 + "why?\t0\n")
    data = PaperData(tmp_path).load("yahoo")
    labeled, unlabeled = data.select(10, RECIPE)
    assert len(labeled) == 10
    assert unlabeled.texts("question_title")[-1] == "u 4"
    assert len(unlabeled) == 15
    assert data.test.labels.tolist() == [8, 8, 8, 0]
    assert labeled.texts("best_answer")[0] == "because so"


def nli(count, name):
    kinds = ["entailment", "neutral", "contradiction"]
    return [
        {"sentence1": f"{name} {n}", "sentence2": "b", "gold_label": kinds[n % 3], "pairID": n} for n in range(count)
    ]


def test_mnli_s_own_files_have_two_test_sets_and_rows_without_a_label(tmp_path):
    """Rows that the annotators did not agree on count in neither half."""
    odd = {"sentence1": "?", "sentence2": "?", "gold_label": "-", "pairID": 99}
    folder = tmp_path / "multinli_1.0"
    write_jsonl(folder / "multinli_1.0_train.jsonl", nli(30, "train"))
    write_jsonl(folder / "multinli_1.0_dev_matched.jsonl", [*nli(6, "m"), odd])
    write_jsonl(folder / "multinli_1.0_dev_mismatched.jsonl", nli(9, "mm"))
    data = PaperData(tmp_path).load("mnli")
    assert data.test_slices() == {"m": slice(0, 6), "mm": slice(6, 15)}
    assert data.test.texts("premise")[5:7] == ["m 5", "mm 0"]
    assert data.test.labels.tolist() == [0, 1, 2] * 5


def stance(language, count, **more):
    return [
        {"question": f"{language}?", "comment": f"{language} {n} {more}", "label": ("FAVOR", "AGAINST")[n % 2]}
        | {"language": language, "question_id": 1}
        | more
        for n in range(count)
    ]


@pytest.mark.parametrize("known_by", ["test_set", "question_id"])
def test_xstance_is_split_by_language_and_tested_on_known_questions(tmp_path, known_by):
    """Rows on new questions or topics would make the scores those of another test."""
    new = {"question_id": 2} | ({"test_set": "new_questions_defr"} if known_by == "test_set" else {})
    old = {"test_set": "new_comments_defr"} if known_by == "test_set" else {}
    italian = {"test_set": "new_comments_it"} if known_by == "test_set" else {}
    write_jsonl(tmp_path / "xstance/train.jsonl", stance("de", 12) + stance("fr", 8))
    write_jsonl(
        tmp_path / "xstance/test.jsonl",
        stance("de", 4, **old) + stance("de", 4, **new) + stance("fr", 2, **old) + stance("it", 6, **italian),
    )
    data = PaperData(tmp_path)
    german, joint = data.load("xstance-de"), data.load("xstance")
    assert (len(german.train), {part: len(rows) for part, rows in german.tests.items()}) == (12, {"de": 4, "it": 6})
    assert (len(joint.train), {part: len(rows) for part, rows in joint.tests.items()}) == (
        20,
        {"de": 4, "fr": 2, "it": 6},
    )
    whole, same = joint.select("full", RECIPE)
    assert whole is same


def test_an_xstance_sample_without_a_split_holds_its_last_rows_out(tmp_path):
    write_jsonl(tmp_path / "x_stance/de.jsonl", stance("de", 10))
    write_jsonl(tmp_path / "x_stance/fr.jsonl", stance("fr", 10))
    data = PaperData(tmp_path).load("xstance-de")
    assert (len(data.train), len(data.test)) == (7, 3)
    assert data.missing == {"it": "the data has no Italian rows"}
    assert any("last 30%" in note for note in data.notes)


def test_a_task_without_its_folder_or_files_is_named(tmp_path):
    with pytest.raises(ClozifyError, match="no folder for the task 'yelp'; it may be called 'yelp_full'"):
        PaperData(tmp_path).load("yelp")
    (tmp_path / "yelp_full").mkdir()
    with pytest.raises(
        ClozifyError, match="lacks the files of 'yelp': 'train.csv' with 'test.csv' or 'train_pool.csv'"
    ):
        PaperData(tmp_path).load("yelp")
    with pytest.raises(ClozifyError, match="does not exist"):
        PaperData(tmp_path / "nowhere")


def test_a_changed_file_is_other_data(news):
    """Old numbers under a new file's name would never be noticed."""
    before = PaperData(news).key("agnews")
    assert PaperData(news).key("agnews") == before
    write_csv(news / "ag_news_csv/test.csv", [[1, "other", "text"]])
    assert PaperData(news).key("agnews") != before
