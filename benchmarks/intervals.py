"""How often the 95% interval of an accuracy that is estimated without test rows holds the accuracy: many draws of T.

PET with a frozen encoder, which is cheap: states are computed once and cached (`selective.py`). For every draw of T,
label vectors are fitted to all of it and without each of five folds; the estimate is `methods/reliability.py`'s, with
300 unlabelled rows; the accuracy is that of all other rows. T is drawn at random, or with equally many rows a label.
The sample data's test file serves as a data set with known labels; nothing is chosen on it. The task's first three
patterns are used.

    CLOZIFY_DATA_FOLDER=data python benchmarks/intervals.py --draws 200 --size 50 --cache runs/selective
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import selective
import typer
from frozen import draw as draw_balanced
from scipy.special import softmax
from selective import FOLDS, States

DATA = {"AG's News": ("agnews", "ag_news/train_pool.csv"), "sample data": ("debian", "builtin:test")}  # all labelled
UNLABELED_ROWS, PATTERNS = 300, 3
selective.DATA |= {f"{name}, intervals": source for name, source in DATA.items()}


def one_draw(data: States, size: int, seed: int, balanced: bool) -> tuple[float, float, float, float]:
    """The accuracy, its estimate, and the interval's ends."""
    from clozify.methods.frozen import Centre, fit_label_vectors
    from clozify.methods.multilabel import split_folds
    from clozify.methods.reliability import HeldOutScores, estimate_accuracy, most_likely_temperature

    rng = np.random.default_rng(seed)
    if balanced:
        chosen = draw_balanced(data.labels.astype(np.int16), size, seed)
    else:
        chosen = rng.choice(len(data.labels), size, replace=False)
    labels, truth = len(data.words[0]), data.labels[chosen]
    folds = split_folds(np.eye(labels, dtype=np.int64)[truth], FOLDS, seed)
    others = rng.permutation(np.setdiff1d(np.arange(len(data.labels)), chosen))
    held_out, scores = np.zeros((size, labels)), np.zeros((len(others), labels))
    for states, words in list(zip(data.states, data.words, strict=True))[:PATTERNS]:
        centre = Centre.of([states], words.shape[1])
        fitted, penalty = fit_label_vectors(states[chosen], truth, words, centre)
        scores += fitted.scores(states[others]) / PATTERNS
        for fold in range(FOLDS):
            kept, left = chosen[folds != fold], chosen[folds == fold]
            of_fold, _ = fit_label_vectors(states[kept], data.labels[kept], words, centre, penalty)
            held_out[folds == fold] += of_fold.scores(states[left]) / PATTERNS
    scored = HeldOutScores(held_out, truth, FOLDS)
    accuracy = float((scores.argmax(axis=1) == data.labels[others]).mean())
    temperature = most_likely_temperature(scored, 1.0, 1.0)
    estimate = estimate_accuracy(scored, softmax(scores[:UNLABELED_ROWS] / temperature, axis=1).mean(axis=0))
    return accuracy, estimate.accuracy, estimate.low, estimate.high


def main(
    draws: int = 200,
    size: int = 50,
    rows: int = 2000,
    model: str = "builtin",
    processes: int = 1,
    cache: Annotated[Path, typer.Option()] = Path("runs/selective"),
) -> None:
    """Print a table: a line for each data set and way to draw T."""
    print("| T | draws | accuracy | estimate | half width | covered |\n" + "|---" * 6 + "|")
    for name in DATA:
        data = States.load(f"{name}, intervals", model, rows, cache)
        for balanced in (False, True):
            with ProcessPoolExecutor(processes) as pool:
                jobs = [pool.submit(one_draw, data, size, seed, balanced) for seed in range(draws)]
                each = np.array([job.result() for job in jobs])
            accuracy, estimate, low, high = each.T
            covered = int(((low <= accuracy) & (accuracy <= high)).sum())
            title = f"{name}, {size} rows, {'balanced' if balanced else 'at random'}"
            figures = f"{100 * accuracy.mean():.1f} | {100 * estimate.mean():.1f} | {50 * (high - low).mean():.1f}"
            print(f"| {title} | {draws} | {figures} | {covered} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
