"""Where the paper's data is: names on the hub, names of folders and files, and the sizes of the official data sets.

The files are those of Zhang et al. (CSV without a header), of MNLI and of x-stance (JSONL). Some smaller collections of
the same rows are supported too, each with a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TASK_FILES = {  # task of `clozify reproduce` -> shipped task
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
XSTANCE_LANGUAGES = {"xstance-de": ("de",), "xstance-fr": ("fr",), "xstance": ("de", "fr")}  # of the training set


@dataclass(frozen=True)
class FileLayout:
    """The files of a task's data, in a folder or on the hub."""

    train: tuple[str, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)  # test set -> file; only the first is required
    unlabeled: str | None = None  # rows without labels
    xstance: Mapping[str, str] = field(default_factory=dict)  # train and test, or a file for each language
    note: str = ""

    def required_files(self) -> list[str]:
        """The files that a folder must hold."""
        xstance = [file for name, file in self.xstance.items() if name != "it"]
        return [*self.train, *list(self.tests.values())[:1], *xstance]

    def all_files(self) -> list[str]:
        """All files, required or not."""
        unlabeled = [self.unlabeled] if self.unlabeled else []
        return [*self.train, *self.tests.values(), *unlabeled, *self.xstance.values()]

    def existing_files(self, folder: Path) -> list[str]:
        """The files that a folder holds, gzipped or not."""
        return [name for name in self.all_files() if any((folder / f"{name}{end}").is_file() for end in ("", ".gz"))]


ONE_TEST = {"test": "test.csv"}
UNKNOWN_ORDER = "The training rows are not in the original order, so T is not the paper's."
HUB = {
    "yelp": FileLayout(("Yelp/yelp_review_full@train",), {"test": "Yelp/yelp_review_full@test"}),
    # the hub's best-known copy joins title and description, which the patterns need apart
    "agnews": FileLayout(("sh0416/ag_news@train",), {"test": "sh0416/ag_news@test"}),
    "yahoo": FileLayout(
        ("community-datasets/yahoo_answers_topics@train",), {"test": "community-datasets/yahoo_answers_topics@test"}
    ),
    "mnli": FileLayout(
        ("nyu-mll/multi_nli@train",),
        {"m": "nyu-mll/multi_nli@validation_matched", "mm": "nyu-mll/multi_nli@validation_mismatched"},
    ),
    "xstance": FileLayout(xstance={"train": "ZurichNLP/x_stance@train", "test": "ZurichNLP/x_stance@test"}),
}
FOLDERS = {
    "yelp": ("yelp_full", "yelp_review_full_csv", "yelp_review_full", "yelp"),
    "agnews": ("ag_news", "ag_news_csv", "agnews"),
    "yahoo": ("yahoo_answers", "yahoo_answers_csv", "yahoo"),
    "mnli": ("mnli", "multinli_1.0", "multinli"),
    "xstance": ("x_stance", "xstance", "xstance-data-v1.0"),
}
LAYOUTS = {
    "yelp": [FileLayout(("train.csv",), ONE_TEST), FileLayout(("train_pool.csv",), ONE_TEST, note=UNKNOWN_ORDER)],
    "agnews": [
        FileLayout(("train.csv",), ONE_TEST),
        FileLayout(
            ("train_first1000_per_class.csv", "train_pool.csv"),
            ONE_TEST,
            note="T is the paper's up to 4,000 examples; D has other rows of the training set than the paper's D.",
        ),
    ],
    "yahoo": [
        FileLayout(("train.csv",), ONE_TEST),
        FileLayout(
            ("train_head.jsonl",),
            {"test": "test_titles.tsv"},
            "unlabeled.jsonl",
            note="The rows lack the question's body, and the test rows have only titles.",
        ),
    ],
    "mnli": [
        FileLayout(
            ("multinli_1.0_train.jsonl",),
            {"m": "multinli_1.0_dev_matched.jsonl", "mm": "multinli_1.0_dev_mismatched.jsonl"},
        ),
        FileLayout(("train.jsonl",), {"m": "dev_matched.jsonl", "mm": "dev_mismatched.jsonl"}),
        FileLayout(
            ("train_subset.jsonl",), {"m": "dev_matched.jsonl", "mm": "dev_mismatched.jsonl"}, note=UNKNOWN_ORDER
        ),
    ],
    "xstance": [
        FileLayout(xstance={"train": "train.jsonl", "test": "test.jsonl"}),
        FileLayout(
            xstance={"de": "de.jsonl", "fr": "fr.jsonl", "it": "it.jsonl"},
            note="The data has no official split; the test set is the last 30% of a language's rows.",
        ),
    ],
}
OFFICIAL_SIZES: Mapping[str, tuple[int, Mapping[str, int]]] = {  # training rows; labelled rows of each test set
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
_COLUMN_MAPPINGS = {  # beginning of a file's name -> field -> column
    "community-datasets/yahoo_answers_topics": {"label": "topic"},
    "train_head": _TITLE,
    "unlabeled": _TITLE,
    "test_titles": {"question_title": "sentence"},
    "multinli_1.0": _MULTINLI,
}


def column_mapping(file: str) -> dict[str, str]:
    """The columns of the task's fields in a file, where their names differ."""
    return next((mapping for start, mapping in _COLUMN_MAPPINGS.items() if file.startswith(start)), {})
