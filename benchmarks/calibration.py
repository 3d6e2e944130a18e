"""Zero-shot accuracy with and without calibration: how many rows it needs, and what unbalanced labels do to it.

All pairs of a task score labelled rows once, which are cached. Then rows are drawn from them, many times, and the
ensemble's accuracy on the drawn rows is measured with raw scores and with scores that are calibrated on the drawn rows
alone, as `clozify zero-shot` does. Three tables:

- rows: random draws of 2 to 1,000 rows, every label equally likely; also of two labels of AG's News, in all pairs;
- a dominant label: 200 rows, of which one label (each in turn) has a given share, the others equal shares;
- Emotion as it is, with its own shares (joy 33.5%, surprise 3.6%): accuracy and macro-F1.

CLOZIFY_DATA_FOLDER names a folder with ag_news/train_pool.csv, yelp_full/train_pool.csv, yahoo_answers/train_head.jsonl
and emotion/train.csv; the sample data's labelled rows come with the package. None of them is a test set.

    CLOZIFY_DATA_FOLDER=data python benchmarks/calibration.py --model builtin --cache runs/calibration
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

SIZES = (2, 4, 8, 10, 12, 16, 20, 24, 28, 32, 64, 128, 256, 512, 1000)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
UNBALANCED_ROWS = 200
MAX_LENGTH = 64
EMOTION = {
    "name": "emotion",
    "fields": ["text"],
    "label": "label",
    "patterns": ["{text} || I am {mask}.", "I feel {mask}. {text}", "{text}. It made me {mask}.", "{mask}: {text}"],
    "labels": {
        "sadness": "sad",
        "joy": "happy",
        "love": "loving",
        "anger": "angry",
        "fear": "afraid",
        "surprise": "surprised",
    },
}
DATA: dict[str, tuple[Any, str, dict[str, str] | None]] = {  # name -> task, file, column mapping
    "AG's News": ("agnews", "ag_news/train_pool.csv", None),
    "Yelp": ("yelp-full", "yelp_full/train_pool.csv", None),
    "Yahoo": ("yahoo", "yahoo_answers/train_head.jsonl", {"question_title": "title"}),
    "Emotion": (EMOTION, "emotion/train.csv", None),
    "sample data": ("debian", "builtin:labeled", None),
}

Metric = Callable[[NDArray[np.int64], NDArray[np.int64]], float]  # of true and predicted labels
Scored = tuple[NDArray[np.float64], NDArray[np.int64]]  # scores (pairs, rows, labels) and labels (rows,)


def score(name: str, model_name: str, limit: int, cache: Path) -> Scored:
    """The pairs' raw scores (pairs, rows, labels) of at most `limit` random rows, and the rows' labels."""
    from clozify.config.task import load_task
    from clozify.data.rows import read_rows
    from clozify.methods.zero_shot import score_zero_shot
    from clozify.models.cloze import load_model

    path = cache / f"{Path(model_name).name}-{name.replace(' ', '-')}-{limit}.npz"
    if not path.exists():
        source, file, mapping = DATA[name]
        task = load_task(source)
        data = file if file.startswith("builtin:") else Path(os.environ["CLOZIFY_DATA_FOLDER"]) / file
        rows = read_rows(data, task, mapping)
        if len(rows) > limit:
            rows = rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:limit]))
        scores = score_zero_shot(load_model(model_name), rows, calibrated=False, max_length=MAX_LENGTH).scores
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, scores=scores, labels=rows.labels)
    stored = np.load(path)
    return stored["scores"].astype(np.float64), stored["labels"].astype(np.int64)


def accuracy(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """The fraction of right predictions."""
    return float((truth == predicted).mean())


def macro_f1(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """The mean F1 of the labels that are in the rows or predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average="macro"))


def evaluate(scored: Scored, rows: NDArray[np.int64], metric: Metric) -> tuple[float, float]:
    """The ensemble's metric on some rows, with raw scores and with scores calibrated on these rows."""
    from clozify.methods.calibration import calibrate, mean_probabilities

    scores, truth = scored[0][:, rows], scored[1][rows]
    calibrated = calibrate(scores, mean_probabilities(scores))
    raw, of_calibrated = (metric(truth, s.mean(axis=0).argmax(axis=-1)) for s in (scores, calibrated))
    return raw, of_calibrated


def measure(
    scored: Scored, shares: NDArray[np.float64], rows: int, draws: int, metric: Metric = accuracy
) -> NDArray[np.float64]:
    """`evaluate` in percent for random rows whose labels have these shares, (draws, 2).

    Rows are drawn with replacement where a label has too few.
    """
    rng = np.random.default_rng([rows, draws])
    by_label = [np.flatnonzero(scored[1] == label) for label in range(len(shares))]
    values = []
    for _ in range(draws):
        counts = rng.multinomial(rows, shares)
        drawn = [rng.choice(own, n, replace=n > len(own)) for own, n in zip(by_label, counts, strict=True)]
        values.append(evaluate(scored, np.concatenate(drawn), metric))
    return 100 * np.array(values)


def equal_shares(scored: Scored, rows: int, draws: int) -> NDArray[np.float64]:
    """`measure` with equally likely labels."""
    count = scored[0].shape[-1]
    return measure(scored, np.full(count, 1 / count), rows, draws)


def dominant_label(scored: Scored, share: float, draws: int) -> NDArray[np.float64]:
    """`measure` with one label that has a share, each label in turn, and equal shares of the others."""
    count, values = scored[0].shape[-1], []
    for label in range(count):
        shares = np.full(count, (1 - share) / (count - 1))
        shares[label] = share
        values.append(measure(scored, shares, UNBALANCED_ROWS, max(1, draws // count)))
    return np.concatenate(values)


def two_labels(scored: Scored, rows: int, draws: int) -> NDArray[np.float64]:
    """`equal_shares` with all pairs of labels."""
    scores, labels = scored
    values = []
    for pair in itertools.combinations(range(scores.shape[-1]), 2):
        kept = np.isin(labels, pair)
        reduced = scores[:, kept][:, :, list(pair)], (labels[kept] == pair[1]).astype(np.int64)
        values.append(equal_shares(reduced, rows, draws))
    return np.concatenate(values)


def cell(values: NDArray[np.float64]) -> str:
    """Raw, calibrated, and the mean difference with its standard error."""
    raw, calibrated = values.mean(axis=0)
    gains = values[:, 1] - values[:, 0]
    return f"{raw:.1f} {calibrated:.1f} ({gains.mean():+.1f} ± {gains.std() / np.sqrt(len(gains)):.1f})"


def print_table(header: list[str], lines: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print(flush=True)


def main(
    model: Annotated[str, typer.Option(help="A model as --model of clozify takes it.")] = "builtin",
    limit: Annotated[int, typer.Option(help="The most rows of a data set that are scored.")] = 1000,
    draws: Annotated[int, typer.Option(help="Draws for a cell; four times as many of fewer than 64 rows.")] = 500,
    cache: Annotated[Path, typer.Option(help="A folder for the scores.")] = Path("runs/calibration"),
) -> None:
    """Print the three tables for one model."""
    scored = {name: score(name, model, limit, cache) for name in DATA}
    print(f"{model}: raw, calibrated (difference ± standard error)\n")
    lines = []
    for rows in SIZES:
        repeats = draws if rows >= 64 else 4 * draws
        cells = [cell(equal_shares(one, rows, repeats)) if rows <= len(one[1]) else "" for one in scored.values()]
        news = scored["AG's News"]
        cells.append(cell(two_labels(news, rows, repeats // 6)) if rows <= len(news[1]) // 2 else "")
        lines.append([f"{rows:,}", *cells])
    print_table(["rows", *(f"{name} ({one[0].shape[-1]})" for name, one in scored.items()), "two of AG's News"], lines)
    lines = [
        [f"{100 * share:.0f}%", *(cell(dominant_label(one, share, draws)) for one in scored.values())]
        for share in SHARES
    ]
    print_table([f"largest share of {UNBALANCED_ROWS}", *scored], lines)
    emotion = scored["Emotion"]
    own = np.bincount(emotion[1]) / len(emotion[1])
    lines = [
        [f"{rows:,}", *(cell(measure(emotion, own, rows, draws, metric)) for metric in (accuracy, macro_f1))]
        for rows in SIZES
    ]
    print_table(["rows", "Emotion with its own shares: accuracy", "macro-F1"], lines)


if __name__ == "__main__":
    typer.run(main)
