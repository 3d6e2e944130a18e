"""Calibration and accuracy estimates of PET without a test set: collects the scores that they are computed from.

For each draw of T one run is trained on all of T, and one without each of `--folds` parts of it, as cross-fitting does.
Stored are the scores of the ensemble and the classifier on T (held-out), the unlabelled rows, rows of the training
files that are in no training set, to choose by, and test rows. Data sets: agnews, yelp and emotion from folders under
CLOZIFY_DATA_FOLDER, and debian, the sample data.

    CLOZIFY_DATA_FOLDER=data python benchmarks/reliability.py agnews --draws 0,1,2,3,4 --output scores --cpu-recipe
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parent))

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
UNLABELED_ROWS = 300
MEASURED_ROWS = 1000  # held-out rows, and test rows, at most


@dataclass(frozen=True)
class Draw:
    """The rows of one draw."""

    labeled: Rows
    unlabeled: Rows  # that the classifier is trained on
    other: Rows  # unlabelled, too, but not used in training
    held_out: Rows
    test: Rows | None


def read(name: str, size: int, seed: int, balanced: bool) -> Draw:
    """T, the unlabelled rows, rows to choose by, and test rows."""
    import clozify

    source, *files = SOURCES[name]
    task = clozify.load_task(source)
    if any(file and not file.startswith("builtin") for file in files) and "CLOZIFY_DATA_FOLDER" not in os.environ:
        sys.exit("Set CLOZIFY_DATA_FOLDER to the folder with the data sets; see the top of this script.")
    folder = os.environ.get("CLOZIFY_DATA_FOLDER", "")
    labeled, unlabeled, test = (
        None if not file else clozify.read_rows(file if file.startswith("builtin") else f"{folder}/{file}", task)
        for file in files
    )
    assert labeled is not None
    rng = np.random.default_rng([seed, 7])
    few = draw(labeled, size, seed)
    if not balanced:
        few = labeled.select(np.sort(np.random.default_rng(seed).choice(len(labeled), size, replace=False)))
    others = labeled.excluding(few)
    order = rng.permutation(len(others))
    held_out = others.select(np.sort(order[:MEASURED_ROWS]))
    if unlabeled is None:
        unlabeled = others.select(np.sort(order[MEASURED_ROWS : MEASURED_ROWS + 5000]))
    unlabeled = unlabeled.excluding(few, held_out, *([] if test is None else [test]))
    chosen = rng.permutation(len(unlabeled))[: 2 * UNLABELED_ROWS]
    if test is not None and len(test) > MEASURED_ROWS:
        test = test.select(np.sort(np.random.default_rng(0).choice(len(test), MEASURED_ROWS, replace=False)))
    used, other = (unlabeled.select(np.sort(part)) for part in np.split(chosen, [UNLABELED_ROWS]))
    return Draw(few, used, other, held_out, test)


def scores(run: Any, rows: Rows) -> NDArray[np.float32]:
    """Log-probabilities of a finished run's classifier, (rows, labels)."""
    logs: NDArray[np.float32] = np.log(np.maximum(run.probabilities(rows), 1e-9)).astype(np.float32)
    return logs


def train(rows: Draw, labeled: Rows, measured: Rows, folder: Path, settings: list[str]) -> dict[str, NDArray[Any]]:
    """Train PET; the scores of `measured` and of unlabelled rows by each member and by the classifier."""
    import clozify
    from clozify.runs.records import EnsembleRecord

    result = clozify.train(
        rows.labeled.task, labeled, folder, unlabeled=rows.unlabeled, test=measured, settings=settings
    )
    ensemble = EnsembleRecord.load(folder)
    members = [folder / "members" / member.member for member in ensemble.weights]
    (classifier,) = (folder / "classifiers").glob("*/test.npy")
    return {
        "weights": np.array([member.weight for member in ensemble.weights]),
        "members": np.stack([np.load(path / "test.npy") for path in members]),
        "members_unlabeled": np.stack([np.load(path / "unlabeled.npy") for path in members]),
        "classifier": np.load(classifier),
        "classifier_unlabeled": scores(result.run, rows.unlabeled),
        "classifier_other": scores(result.run, rows.other),
    }


def collect(name: str, size: int, seed: int, folds: int, balanced: bool, settings: list[str]) -> dict[str, Any]:
    """All scores of one draw."""
    from clozify.data.label_matrix import indicators
    from clozify.methods.multilabel import split_folds
    from clozify.reproduce.datasets import concat_rows

    rows = read(name, size, seed, balanced)
    truth = rows.labeled.labels
    sets = [rows.held_out] + ([] if rows.test is None else [rows.test])
    arrays: dict[str, Any] = {
        "truth": truth,
        "held_out_truth": rows.held_out.labels,
        "test_truth": np.zeros(0) if rows.test is None else rows.test.labels,
    }
    with tempfile.TemporaryDirectory() as tmp:
        measured = concat_rows(sets, rows.labeled.task, "measured rows")
        whole = train(rows, rows.labeled, measured, Path(tmp) / "whole", settings)
        arrays |= {f"whole_{key}": value for key, value in whole.items()}
        assigned = split_folds(indicators(rows.labeled).astype(np.int64), folds, seed)
        arrays["folds"] = assigned
        for fold in range(folds):
            held_out = rows.labeled.select(np.flatnonzero(assigned == fold))
            part = rows.labeled.select(np.flatnonzero(assigned != fold))
            of_fold = train(rows, part, held_out, Path(tmp) / f"fold{fold}", settings)
            arrays |= {f"fold{fold}_{key}": value for key, value in of_fold.items()}
    return arrays


def main(
    name: str,
    output: Annotated[Path, typer.Option()],
    size: int = 50,
    draws: str = "0,1,2,3,4",
    folds: int = 4,
    balanced: bool = True,
    cpu_recipe: bool = False,
    model: str = "builtin",  # noqa: ARG001
) -> None:
    """Collect the scores of all draws; those that are there are not computed again."""
    from clozify.config.auto import Conditions

    settings = []
    if cpu_recipe:
        patch("clozify.pipeline.prepare.Conditions", lambda **more: Conditions(**(more | {"device": "cpu"}))).start()
        settings = ["kernels=torch", "precision=float32"]
    output.mkdir(parents=True, exist_ok=True)
    for seed in map(int, draws.split(",")):
        path = output / f"{name}-{size}-{seed}.npz"
        if not path.exists():
            np.savez_compressed(path, **collect(name, size, seed, folds, balanced, [*settings, f"seed={seed}"]))
            print(path, flush=True)


if __name__ == "__main__":
    typer.run(main)
