"""Where the paper's data is found: names on the hub, names of folders and files, and how many rows the originals have.

Nothing comes in; out come tables that `datasets.py` reads. The files are those of Zhang et al. (CSV without a header),
of MNLI and of x-stance (JSONL); some smaller collections of the same rows are known too, each with a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SHIPPED = {  # a task here -> its task file
    "yelp": "yelp-full",
    "agnews": "agnews",
    "yahoo": "yahoo",
    "mnli": "mnli",
    "xstance-de": "xstance-de",
    "xstance-fr": "xstance-fr",
    "xstance": "xstance",
    "sample": "debian",
}
TITLES = {"yelp": "Yelp", "agnews": "AG's", "yahoo": "Yahoo", "mnli": "MNLI", "xstance": "x-stance", "sample": "sample"}
XSTANCE = {"xstance-de": ("de",), "xstance-fr": ("fr",), "xstance": ("de", "fr")}  # the languages of the training set


@dataclass(frozen=True)
class Layout:
    """Files that make a task's data: in a folder, or on the hub."""

    train: tuple[str, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)  # part -> file; the first must be there
    pile: str | None = None  # rows without labels
    parts: Mapping[str, str] = field(default_factory=dict)  # of x-stance, which is split by language
    note: str = ""

    def needed(self) -> list[str]:
        """The files without which there is nothing to do."""
        needed = [file for part, file in self.parts.items() if part != "it"]
        return [*self.train, *list(self.tests.values())[:1], *needed]

    def files(self) -> list[str]:
        """All files that may be there."""
        return [*self.train, *self.tests.values(), *([self.pile] if self.pile else []), *self.parts.values()]

    def present(self, folder: Path) -> list[str]:
        """Those of them that are there, gzipped or not."""
        return [name for name in self.files() if any((folder / f"{name}{end}").is_file() for end in ("", ".gz"))]


ONE_TEST = {"test": "test.csv"}
NO_ORDER = "The training rows are in no known order, so T is not the paper's."
HUB = {
    "yelp": Layout(("Yelp/yelp_review_full@train",), {"test": "Yelp/yelp_review_full@test"}),
    # the hub's best-known copy joins title and description, which the patterns need apart
    "agnews": Layout(("sh0416/ag_news@train",), {"test": "sh0416/ag_news@test"}),
    "yahoo": Layout(
        ("community-datasets/yahoo_answers_topics@train",), {"test": "community-datasets/yahoo_answers_topics@test"}
    ),
    "mnli": Layout(
        ("nyu-mll/multi_nli@train",),
        {"m": "nyu-mll/multi_nli@validation_matched", "mm": "nyu-mll/multi_nli@validation_mismatched"},
    ),
    "xstance": Layout(parts={"train": "ZurichNLP/x_stance@train", "test": "ZurichNLP/x_stance@test"}),
}
FOLDERS = {
    "yelp": ("yelp_full", "yelp_review_full_csv", "yelp_review_full", "yelp"),
    "agnews": ("ag_news", "ag_news_csv", "agnews"),
    "yahoo": ("yahoo_answers", "yahoo_answers_csv", "yahoo"),
    "mnli": ("mnli", "multinli_1.0", "multinli"),
    "xstance": ("x_stance", "xstance", "xstance-data-v1.0"),
}
LAYOUTS = {
    "yelp": [Layout(("train.csv",), ONE_TEST), Layout(("train_pool.csv",), ONE_TEST, note=NO_ORDER)],
    "agnews": [
        Layout(("train.csv",), ONE_TEST),
        Layout(
            ("train_first1000_per_class.csv", "train_pool.csv"),
            ONE_TEST,
            note="T is the paper's up to 4,000 examples; D is other rows of the training set than the paper's.",
        ),
    ],
    "yahoo": [
        Layout(("train.csv",), ONE_TEST),
        Layout(
            ("train_head.jsonl",),
            {"test": "test_titles.tsv"},
            "unlabeled.jsonl",
            note="Rows are without the question's body, and the test rows are the titles alone.",
        ),
    ],
    "mnli": [
        Layout(
            ("multinli_1.0_train.jsonl",),
            {"m": "multinli_1.0_dev_matched.jsonl", "mm": "multinli_1.0_dev_mismatched.jsonl"},
        ),
        Layout(("train.jsonl",), {"m": "dev_matched.jsonl", "mm": "dev_mismatched.jsonl"}),
        Layout(("train_subset.jsonl",), {"m": "dev_matched.jsonl", "mm": "dev_mismatched.jsonl"}, note=NO_ORDER),
    ],
    "xstance": [
        Layout(parts={"train": "train.jsonl", "test": "test.jsonl"}),
        Layout(
            parts={"de": "de.jsonl", "fr": "fr.jsonl", "it": "it.jsonl"},
            note="There is no official split: the last 30% of a language's rows are its test set.",
        ),
    ],
}
OFFICIAL: Mapping[str, tuple[int, Mapping[str, int]]] = {  # training rows, and labelled test rows by part
    "yelp": (650_000, {"test": 50_000}),
    "agnews": (120_000, {"test": 7_600}),
    "yahoo": (1_400_000, {"test": 60_000}),
    "mnli": (392_702, {"m": 9_815, "mm": 9_832}),
    "xstance-de": (33_850, {"de": 3_479, "it": 1_173}),
    "xstance-fr": (11_790, {"fr": 1_284, "it": 1_173}),
    "xstance": (45_640, {"de": 3_479, "fr": 1_284, "it": 1_173}),
}
_TITLE = {"question_title": "title"}
_MULTINLI = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
_COLUMNS = {  # how a file's name begins -> field -> its column there
    "community-datasets/yahoo_answers_topics": {"label": "topic"},
    "train_head": _TITLE,
    "unlabeled": _TITLE,
    "test_titles": {"question_title": "sentence"},
    "multinli_1.0": _MULTINLI,
}


def columns_of(file: str) -> dict[str, str]:
    """Which columns of a file the task's fields are, where the file calls them otherwise."""
    return next((columns for start, columns in _COLUMNS.items() if file.startswith(start)), {})
