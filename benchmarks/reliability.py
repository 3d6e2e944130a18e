"""What PET says of itself without a test set, against test rows: calibration, the accuracy's interval, prediction sets.

For each draw of T, a run of the recipe `auto` with unlabelled and test rows. Printed are means over the draws: the
accuracy; the expected calibration error (15 bins of equally many rows) of the classifier and the ensemble, as trained
and calibrated; the estimate, half the width of its 95% interval, and how often it holds the accuracy on test rows;
how often a prediction set at 0.9 holds the true label, and its size. `--held-out` measures on rows of the training
files that are in no training set instead of the test rows. Data sets: agnews, yelp and emotion from folders under
CLOZIFY_DATA_FOLDER, and debian, the sample data.

    CLOZIFY_DATA_FOLDER=data python benchmarks/reliability.py run agnews --draws 0,1,2,3,4 --output results --cpu-recipe
    python benchmarks/reliability.py show results
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from methods import draw

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clozify.data.rows import Rows

EMOTION = {
    "name": "emotion",
    "fields": ["text"],
    "patterns": ["I feel {mask}. {text}", "{text} I felt {mask}.", "{text} This is about {mask}.", "{mask}: {text}"],
    "labels": {
        "sadness": "sad",
        "joy": "happy",
        "love": "love",
        "anger": "angry",
        "fear": "afraid",
        "surprise": "surprised",
    },
}
SOURCES: dict[str, tuple[Any, str, str, str]] = {  # task; labelled rows, unlabelled rows, test rows
    "agnews": ("agnews", "ag_news/train_first1000_per_class.csv", "ag_news/train_pool.csv", "ag_news/test.csv"),
    "yelp": ("yelp-full", "yelp_full/train_pool.csv", "", "yelp_full/test.csv"),
    "emotion": (EMOTION, "emotion/train.csv", "", "emotion/test.csv"),
    "debian": ("debian", "builtin:labeled", "builtin:unlabeled", "builtin:test"),
}
HELD_OUT_ROWS = 2000
UNLABELED_ROWS = 5000
LEVEL = 0.9  # of prediction sets
app = typer.Typer()


def read(name: str, size: int, seed: int, held_out: bool) -> tuple[Rows, Rows, Rows]:
    """T, the unlabelled rows, and the rows to measure on."""
    import clozify

    source, *files = SOURCES[name]
    task = clozify.load_task(source)
    folder = os.environ.get("CLOZIFY_DATA_FOLDER")
    if folder is None and not files[0].startswith("builtin"):
        sys.exit("Set CLOZIFY_DATA_FOLDER to the folder with the data sets; see the top of this script.")
    labeled, unlabeled, test = (
        clozify.read_rows(file if file.startswith("builtin") else f"{folder}/{file}", task) if file else None
        for file in files
    )
    assert labeled is not None
    assert test is not None
    few = draw(labeled, size, seed)
    others = labeled.excluding(few)
    order = np.random.default_rng([seed, 7]).permutation(len(others))
    if held_out:
        test = others.select(np.sort(order[:HELD_OUT_ROWS]))
    if unlabeled is None:
        unlabeled = others.select(np.sort(order[HELD_OUT_ROWS : HELD_OUT_ROWS + UNLABELED_ROWS]))
    return few, unlabeled.excluding(few, test), test


def set_coverage(probabilities: NDArray[Any], threshold: float, truth: NDArray[Any]) -> tuple[float, float]:
    """How often prediction sets hold the true label, and how many labels they have."""
    from clozify.methods.conformal import prediction_sets

    sets = prediction_sets(probabilities, threshold)
    return float(sets[np.arange(len(truth)), truth].mean()), float(sets.sum(axis=1).mean())


def measure(rows: tuple[Rows, Rows, Rows], folder: Path, settings: list[str], method: str) -> dict[str, float]:
    """The figures of one draw."""
    import clozify
    from clozify.data.decision import Decision
    from clozify.metrics import calibration_error
    from clozify.runs.reliability import load_reliability

    labeled, unlabeled, test = rows
    metrics = clozify.train(
        labeled.task, labeled, folder, unlabeled=unlabeled, test=test, settings=settings, method=method
    ).metrics
    reliability = load_reliability(folder)
    assert metrics.classifier is not None
    assert metrics.ensemble is not None
    assert metrics.classifier.calibration_error is not None
    assert metrics.classifier.accuracy is not None
    assert reliability is not None
    scores = np.load(folder / "classifiers" / metrics.classifier.jobs[0] / "test.npy")
    raw = Decision(labeled.task.labels)
    probabilities = raw.probabilities(scores / reliability.temperature)
    ensemble = json.loads((folder / "ensemble.json").read_text())
    members = [np.load(folder / "members" / member["member"] / "test.npy") for member in ensemble["weights"]]
    combined = np.average(members, axis=0, weights=[member["weight"] for member in ensemble["weights"]])
    coverage, size = set_coverage(probabilities, reliability.set_threshold(LEVEL), test.labels)
    return {
        "accuracy": metrics.classifier.accuracy,
        "raw error": calibration_error(test.labels, raw.probabilities(scores)),
        "error": metrics.classifier.calibration_error,
        "raw ensemble error": calibration_error(test.labels, raw.probabilities(combined)),
        "ensemble error": metrics.ensemble.calibration_error,
        "estimate": reliability.accuracy,
        "low": reliability.low,
        "high": reliability.high,
        "covered": float(reliability.low <= metrics.classifier.accuracy <= reliability.high),
        "set coverage": coverage,
        "set size": size,
        "temperature": reliability.temperature,
        "confidence": float(probabilities.max(axis=1).mean()),
    }


@app.command()
def run(
    name: str,
    output: Annotated[Path, typer.Option()],
    size: int = 50,
    draws: str = "0,1,2,3,4",
    method: str = "pet",
    held_out: bool = False,
    cpu_recipe: bool = False,
) -> None:
    """Measure every draw; those that are there are not computed again."""

    settings = []
    if cpu_recipe:
        settings = ["adapt_to=cpu", "kernels=torch", "precision=float32"]
    output.mkdir(parents=True, exist_ok=True)
    for seed in map(int, draws.split(",")):
        path = output / f"{name}-{method}-{size}-{seed}.json"
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                rows = read(name, size, seed, held_out)
                figures = measure(rows, Path(folder) / "run", [*settings, f"seed={seed}"], method)
            path.write_text(json.dumps(figures, indent=2), encoding="utf-8")
            print(path.name, {key: round(value, 3) for key, value in figures.items()}, flush=True)


@app.command()
def show(folder: Path) -> None:
    """Print a table: a line for each data set, method and size."""
    groups = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        groups[path.stem.rsplit("-", 1)[0]].append(json.loads(path.read_text(encoding="utf-8")))
    print(
        "| | draws | accuracy | calibration error: as trained, calibrated | ensemble | estimate | ± | covered | sets |"
    )
    print("|---" * 9 + "|")
    for name, draws in groups.items():
        mean = {key: 100 * np.mean([draw[key] for draw in draws]) for key in draws[0]}
        cells = [
            f"{mean['accuracy']:.1f} ± {100 * np.std([draw['accuracy'] for draw in draws], ddof=1):.1f}",
            f"{mean['raw error']:.1f}, {mean['error']:.1f}",
            f"{mean['raw ensemble error']:.1f}, {mean['ensemble error']:.1f}",
            f"{mean['estimate']:.1f}",
            f"{(mean['high'] - mean['low']) / 2:.1f}",
            f"{sum(draw['covered'] for draw in draws):.0f} of {len(draws)}",
            f"{mean['set coverage']:.1f}, {mean['set size'] / 100:.2f} labels",
        ]
        print(f"| {name} | {len(draws)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    app()
