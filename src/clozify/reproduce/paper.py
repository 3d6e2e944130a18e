"""The paper's values: its tables and the points of its figures, transcribed from its text.

Accuracy, and macro-F1 for x-stance, in percent. The solid lines of figure 4 are missing, because the paper's text does
not give their values. The mBERT row of table 3 is the paper's quotation of another paper.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """A mean and its standard deviation, if any."""

    mean: float
    std: float | None = None


def _row(columns: tuple[str, ...], text: str) -> dict[str, Value]:
    """Parse `33.8±9.6 69.5±7.2`, one value a column."""
    values = [tuple(map(float, word.split("±"))) for word in text.split()]
    return {column: Value(*numbers) for column, numbers in zip(columns, values, strict=True)}


ENGLISH = ("yelp", "agnews", "yahoo", "mnli")  # columns; "mnli" is the matched development set
WITH_MISMATCHED = (*ENGLISH, "mnli-mm")
LANGUAGES = ("de", "fr", "it")

# Table 1: accuracy of RoBERTa (large), by |T| and method.
TABLE1 = {
    key: _row(WITH_MISMATCHED, text)
    for key, text in {
        (0, "unsupervised (avg)"): "33.8±9.6 69.5±7.2 44.0±9.1 39.1±4.3 39.8±5.1",
        (0, "unsupervised (max)"): "40.8±0.0 79.4±0.0 56.4±0.0 43.8±0.0 45.0±0.0",
        (0, "iPET"): "56.7±0.2 87.5±0.1 70.7±0.1 53.6±0.1 54.2±0.1",
        (10, "supervised"): "21.1±1.6 25.0±0.1 10.1±0.1 34.2±2.1 34.1±2.0",
        (10, "PET"): "52.9±0.1 87.5±0.0 63.8±0.2 41.8±0.1 41.5±0.2",
        (10, "iPET"): "57.6±0.0 89.3±0.1 70.7±0.1 43.2±0.0 45.7±0.1",
        (50, "supervised"): "44.8±2.7 82.1±2.5 52.5±3.1 45.6±1.8 47.6±2.4",
        (50, "PET"): "60.0±0.1 86.3±0.0 66.2±0.1 63.9±0.0 64.2±0.0",
        (50, "iPET"): "60.7±0.1 88.4±0.1 69.7±0.0 67.4±0.3 68.3±0.3",
        (100, "supervised"): "53.0±3.1 86.0±0.7 62.9±0.9 47.9±2.8 51.2±2.6",
        (100, "PET"): "61.9±0.0 88.3±0.1 69.2±0.0 74.7±0.3 75.9±0.4",
        (100, "iPET"): "62.9±0.0 89.6±0.1 71.2±0.1 78.4±0.7 78.6±0.5",
        (1000, "supervised"): "63.0±0.5 86.9±0.4 70.5±0.3 73.1±0.2 74.8±0.3",
        (1000, "PET"): "64.8±0.1 86.9±0.2 72.7±0.0 85.3±0.2 85.5±0.4",
    }.items()
}

# Table 2: accuracy of RoBERTa (base), by |T| and method.
TABLE2 = {
    key: _row(ENGLISH, text)
    for key, text in {
        (10, "UDA"): "27.3 72.6 36.7 34.7",
        (10, "MixText"): "20.4 81.1 20.6 32.9",
        (10, "PET"): "48.8 84.1 59.0 39.5",
        (10, "iPET"): "52.9 87.5 67.0 42.1",
        (50, "UDA"): "46.6 83.0 60.2 40.8",
        (50, "MixText"): "31.3 84.8 61.5 34.8",
        (50, "PET"): "55.3 86.4 63.3 55.1",
        (50, "iPET"): "56.7 87.3 66.4 56.3",
    }.items()
}

# Table 3: macro-F1 on x-stance of XLM-R (base), by training set and method; 'full' is a language's whole training
# set, 'joint' both languages'.
TABLE3 = {
    key: _row(LANGUAGES, text)
    for key, text in {
        (1000, "supervised"): "43.3 49.5 41.0",
        (1000, "PET"): "66.4 68.7 64.7",
        (2000, "supervised"): "57.4 62.1 52.8",
        (2000, "PET"): "69.5 71.7 67.3",
        (4000, "supervised"): "63.2 66.7 58.7",
        (4000, "PET"): "71.7 74.0 69.5",
        ("full", "supervised"): "76.6 76.0 71.0",
        ("full", "PET"): "77.9 79.0 73.6",
        ("joint", "sup. (*)"): "76.8 76.7 70.2",
        ("joint", "supervised"): "77.6 79.1 75.9",
        ("joint", "PET"): "78.8 80.6 77.2",
    }.items()
}

# Table 4: accuracy of single pairs and of their combinations, |T| = 10.
TABLE4 = {
    key: _row(ENGLISH, text)
    for key, text in {
        "min": "39.6 82.1 50.2 36.4",
        "max": "52.4 85.0 63.6 40.2",
        "PET (no distillation)": "51.7 87.0 62.8 40.6",
        "PET uniform": "52.7 87.3 63.8 42.0",
        "PET weighted": "52.9 87.5 63.8 41.8",
    }.items()
}

# Table 7: accuracy with automatic verbalizer search, |T| = 50.
TABLE7 = {
    key: _row(ENGLISH, text)
    for key, text in {
        "supervised": "44.8 82.1 52.5 45.6",
        "PET": "60.0 86.3 66.2 63.9",
        "PET + AVS": "55.2 85.0 58.2 52.6",
    }.items()
}

# Table 8: the most probable words of the verbalizer search for Yelp, |T| = 50.
TABLE8 = {
    "1": "worthless, BAD, useless, appalling",
    "2": "worse, slow, frustrating, annoying",
    "3": "edible, mixed, cute, tasty, Okay",
    "4": "marvelous, loved, love, divine, fab",
    "5": "golden, magical, marvelous, perfection",
}

SIZES = (10, 50, 100, 1000)  # the training sets of figures 3 and 5


def _points(names: tuple[int, ...], text: str) -> dict[int, Value]:
    return {name: Value(float(word)) for name, word in zip(names, text.split(), strict=True)}


# Figure 3: improvement of PET's accuracy by auxiliary language modelling, in the order of the figure's legend.
FIGURE3 = {
    task: _points(SIZES, text)
    for task, text in {
        "yelp": "14.116 0.693 -0.068 -0.342",
        "agnews": "7.417 -0.2455 -0.129 0.1228",
        "mnli": "2.265 3.148 3.834 0.493",
        "yahoo": "6.03 0.09 0.483 0.181",
    }.items()
}

# Figure 4: the dashed lines, which skip generations 2 and 3; the solid ones are not in the paper's text.
FIGURE4_SKIPPED = {"agnews": _points((1, 4), "74.7 81.3"), "yahoo": _points((1, 4), "57.3 67.5")}

# Figure 5: accuracy on Yelp with and without in-domain pretraining (PT).
FIGURE5 = {
    name: _points(SIZES, text)
    for name, text in {
        "PET": "52.9 60 61.9 64.8",
        "PET + PT": "58 62.1 63.5 66.4",
        "sup.": "21.1 44.8 53 63",
        "sup. + PT": "20.2 48 56.6 64.8",
    }.items()
}

# Figure 6: accuracy on Yelp with 100 examples, by learning rate and number of training steps.
STEPS = (50, 100, 250, 500, 1000)
FIGURE6 = {
    key: _points(STEPS, text)
    for key, text in {
        ("1e-5", "sup."): "32.2 48.7 53.0 52.2 51.8",
        ("1e-5", "PET"): "62.7 62.5 62.0 61.9 61.8",
        ("2e-5", "sup."): "44.4 49.1 50.1 51.1 47.1",
        ("2e-5", "PET"): "61.9 61.6 61.1 60.4 59.8",
        ("5e-5", "sup."): "43.1 44.7 46.4 36.7 43.6",
        ("5e-5", "PET"): "59.5 57.0 57.5 56.6 54.6",
    }.items()
}
