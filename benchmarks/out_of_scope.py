"""Scores for "none of these labels", compared on CLINC150: AUROC and the false-positive rate at 95% recall.

PET is trained on CLINC150's labeled_5.csv and pile.csv; `--method supervised` trains on labeled_5.csv alone, whose rows
are then all reference rows. Every candidate score is computed from its classifier's logits
and states; SetFit's maximum softmax is of the same rows and encoder. A score is to be high for the rows of
out_of_scope_val.csv and low for those of labeled_10.csv that are not in labeled_5.csv; with `--test`, the same for
out_of_scope_test.csv and test.csv. CLOZIFY_DATA_FOLDER holds clinc150/.

Logits are divided by the temperature that suits the validation rows best, which the scores of probabilities depend on.
Logits and states are kept in `--output` as arrays (seven files below 16 MiB); `--no-train --no-setfit` prints the
tables of arrays that are there. SetFit runs as in `setfit_comparison.py`.

    CLOZIFY_DATA_FOLDER=data python benchmarks/out_of_scope.py --output runs/out-of-scope --cpu-recipe --test
    CLOZIFY_DATA_FOLDER=data python benchmarks/out_of_scope.py --method supervised --no-setfit --output runs/supervised
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from many_labels import load_data
from methods import setfit_accuracy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.config.task import Task
    from clozify.data.rows import Rows
    from clozify.inference.finished_run import FinishedRun
    from clozify.methods.scope import Scope

REFERENCE_ROWS = 3_000  # of the unlabelled rows, at random
Array = NDArray[Any]


@dataclass(frozen=True)
class Embedded:
    """The classifier's outputs for some rows."""

    logits: Array  # (rows, labels)
    first: Array  # (rows, hidden), the first token's last state
    mean: Array  # (rows, hidden), the mean of the last states
    labels: NDArray[np.int64]  # (rows,), -1 without a label

    def save(self, path: Path) -> None:
        """Write the arrays, states and logits in 16 bits."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez(path, **{n: a if n == "labels" else a.astype(np.float16) for n, a in arrays.items()})

    @classmethod
    def load(cls, path: Path) -> Embedded:
        """What `save` wrote."""
        with np.load(path) as stored:
            arrays = {field.name: stored[field.name] for field in fields(cls)}
        return cls(**{n: a if n == "labels" else a.astype(np.float64) for n, a in arrays.items()})

    def scaled(self, factor: float) -> Embedded:
        """With other logits."""
        return replace(self, logits=self.logits * factor)

    def joined(self, other: Embedded) -> Embedded:
        """These rows, then the other ones."""
        pairs = [(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return Embedded(*(np.concatenate(pair) for pair in pairs))

    @property
    def classes(self) -> NDArray[np.int64]:
        """The rows' labels; the predicted ones where there are none."""
        return np.where(self.labels >= 0, self.labels, self.logits.argmax(axis=1))


def unit(vectors: Array) -> Array:
    """The vectors with length 1."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


class Gaussians:
    """One Gaussian for each label with a shared covariance, and one for all rows (relative Mahalanobis distance)."""

    def __init__(self, states: Array, classes: NDArray[np.int64]) -> None:
        from sklearn.covariance import ledoit_wolf

        self.means = np.stack([states[classes == c].mean(axis=0) for c in np.unique(classes)])
        centred = states - self.means[np.unique(classes, return_inverse=True)[1]]
        self.precision = np.linalg.inv(ledoit_wolf(centred, assume_centered=True)[0])
        self.mean = states.mean(axis=0)
        self.background = np.linalg.inv(ledoit_wolf(states)[0])

    def distances(self, states: Array) -> Array:
        """The squared Mahalanobis distance from the nearest mean, (rows,)."""
        return np.asarray(np.stack([_squared(states - mean, self.precision) for mean in self.means]).min(axis=0))

    def relative(self, states: Array) -> Array:
        """`distances` less the distance from the Gaussian of all rows, (rows,)."""
        return self.distances(states) - _squared(states - self.mean, self.background)


def _squared(differences: Array, precision: Array) -> Array:
    return np.asarray(np.einsum("rh,rh->r", differences @ precision, differences))


class Neighbours:
    """Cosine distances from the nearest reference rows, after the reference's mean was subtracted."""

    def __init__(self, states: Array) -> None:
        self.mean = states.mean(axis=0)
        self.reference = unit(states - self.mean)

    def distances(self, states: Array, k: int) -> Array:
        """The mean distance from the k nearest rows, (rows,)."""
        similarities = unit(states - self.mean) @ self.reference.T
        return np.asarray(1 - np.sort(similarities, axis=1)[:, -k:].mean(axis=1))


class VirtualLogit:
    """ViM: the part of a state outside the reference's principal directions, scaled to logits, less the logsumexp."""

    def __init__(self, states: Array, logits: Array, directions: int) -> None:
        self.mean = states.mean(axis=0)
        _, vectors = np.linalg.eigh(np.cov((states - self.mean).T))  # ascending
        self.rest = vectors[:, :-directions]
        residuals = np.linalg.norm((states - self.mean) @ self.rest, axis=1)
        self.scale = logits.max(axis=1).mean() / residuals.mean()

    def scores(self, states: Array, logits: Array) -> Array:
        """The virtual logit less the logsumexp of the others, (rows,)."""
        return np.asarray(self.scale * np.linalg.norm((states - self.mean) @ self.rest, axis=1) + energy(logits))


def energy(logits: Array) -> Array:
    """-logsumexp of the logits, (rows,)."""
    largest = logits.max(axis=1)
    return np.asarray(-largest - np.log(np.exp(logits - largest[:, None]).sum(axis=1)))


def softmax(logits: Array) -> Array:
    """Probabilities, (rows, labels)."""
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exps / exps.sum(axis=1, keepdims=True))


def entropy(logits: Array) -> Array:
    """The entropy of the probabilities, (rows,)."""
    p = softmax(logits)
    return np.asarray(-(p * np.log(np.maximum(p, 1e-12))).sum(axis=1))


def score_in_use(reference: Embedded) -> Scope:
    """The score that clozify uses, with as many reference rows as a classifier's folder has."""
    from clozify.methods.scope import Scope
    from clozify.runs.scope import max_reference_rows

    rng, limit = np.random.default_rng(0), max_reference_rows(reference.mean.shape[1])
    labeled, unlabeled = (
        rng.permutation(np.flatnonzero(rows)) for rows in (reference.labels >= 0, reference.labels < 0)
    )
    labeled = labeled[: max(limit // 2, limit - len(unlabeled))]
    chosen = np.concatenate([labeled, unlabeled])[:limit]
    return Scope.fit(reference.mean[chosen], np.arange(len(chosen)) < len(labeled))


def temperature_for(rows: Embedded) -> float:
    """The temperature at which the logits have the highest likelihood of the labels."""
    grid = np.exp(np.linspace(np.log(0.01), np.log(1000), 400))
    index = np.arange(len(rows.labels))
    return float(max(grid, key=lambda t: np.log(softmax(rows.logits / t)[index, rows.labels] + 1e-30).sum()))


def candidates(reference: Embedded, rows: Embedded) -> Iterator[tuple[str, Array]]:
    """The scores of the rows, (rows,), by name; higher for those out of scope."""
    yield "1 - maximum softmax", 1 - softmax(rows.logits).max(axis=1)
    yield "-maximum logit", -rows.logits.max(axis=1)
    yield "energy", energy(rows.logits)
    yield "entropy", entropy(rows.logits)
    yield "in use: nearest of 2,048 rows, mean", score_in_use(reference).scores(rows.mean)
    labeled, classes = reference.labels >= 0, reference.classes
    for name in ("first", "mean"):
        references, new = np.asarray(getattr(reference, name)), np.asarray(getattr(rows, name))
        gaussians = Gaussians(references, classes)
        yield f"Mahalanobis, {name}", gaussians.distances(new)
        yield f"relative Mahalanobis, {name}", gaussians.relative(new)
        yield f"Mahalanobis of unit vectors, {name}", Gaussians(unit(references), classes).distances(unit(new))
        own = Gaussians(references[labeled], reference.labels[labeled])
        yield f"Mahalanobis of the labelled rows, {name}", own.distances(new)
        neighbours = Neighbours(references)
        for k in (1, 5, 10):
            yield f"{k} nearest rows, {name}", neighbours.distances(new, k)
        means = np.stack([references[classes == c].mean(axis=0) for c in np.unique(classes)])
        yield f"nearest label mean, {name}", Neighbours(means).distances(new, 1)
        for directions in sorted({min(d, references.shape[1] // 2) for d in (64, 256)}):
            virtual = VirtualLogit(references, reference.logits, directions)
            yield f"virtual logit, {directions} directions, {name}", virtual.scores(new, rows.logits)
        spreads = energy(reference.logits).std(), neighbours.distances(references, 5).std()
        both = energy(rows.logits) / spreads[0] + neighbours.distances(new, 5) / spreads[1]
        yield f"energy + 5 nearest rows, {name}", both


def measures(inside: Array, outside: Array) -> tuple[float, float]:
    """AUROC, and the fraction of rows in scope that are rejected where 95% of those out of scope are."""
    from sklearn.metrics import roc_auc_score

    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    threshold = np.quantile(outside, 0.05)
    return float(roc_auc_score(truth, np.r_[inside, outside])), float((inside >= threshold).mean())


def print_table(folder: Path, part: str) -> None:
    """Print every candidate's measures on the rows of a part, "val" or "test"; thresholds are the run's own."""
    from clozify.runs.scope import load_scope

    if not (folder / "reference.npz").is_file():
        print("The folder has no arrays of a classifier.")
        return
    reference, inside, outside = (Embedded.load(folder / f"{n}.npz") for n in ("reference", part, f"{part}-out"))
    temperature = temperature_for(Embedded.load(folder / "val.npz"))
    reference, inside, outside = (rows.scaled(1 / temperature) for rows in (reference, inside, outside))
    accuracy = (inside.logits.argmax(axis=1) == inside.labels).mean()
    print(f"\n{part}: {len(inside.labels):,} rows in scope, {len(outside.labels):,} out of scope")
    print(f"accuracy on those in scope: {100 * accuracy:.1f}\n")
    print("| score | AUROC | false positives at 95% recall |\n|---|---|---|")
    if (folder / f"setfit-{part}.npz").is_file():
        with np.load(folder / f"setfit-{part}.npz") as stored:
            line = measures(*(1 - stored[name].astype(np.float64).max(axis=1) for name in ("inside", "outside")))
            right = (stored["inside"].argmax(axis=1) == inside.labels).mean()
        print(f"| SetFit ({100 * right:.1f}): 1 - maximum softmax | {100 * line[0]:.1f} | {100 * line[1]:.1f} |")
    for name, scores in candidates(reference, inside.joined(outside)):
        auroc, rejected = measures(scores[: len(inside.labels)], scores[len(inside.labels) :])
        print(f"| {name} | {100 * auroc:.1f} | {100 * rejected:.1f} |", flush=True)
    scope = load_scope(folder) or score_in_use(reference)
    for fraction in (0.01, 0.05, 0.1):
        threshold = scope.threshold(fraction)
        if threshold is None:
            print(f"--reject-out-of-scope {fraction}: too few rows of the training")
            continue
        wrongly, rightly = (100 * (scope.scores(rows.mean) > threshold).mean() for rows in (inside, outside))
        print(f"--reject-out-of-scope {fraction}: {wrongly:.1f}% of the rows in scope, {rightly:.1f}% of the others")


def embed(run: FinishedRun, rows: Rows, path: Path) -> None:
    """Write the classifier's outputs of the rows."""
    from clozify.methods.score import TOKENS_PER_BATCH
    from clozify.models.static_classifier import StaticClassifier

    classifier = run.loaded_classifier
    assert not isinstance(classifier, StaticClassifier)
    chunks = list(classifier.embed_rows(rows, TOKENS_PER_BATCH[run.device]))
    logits, states = (np.concatenate([chunk[part] for chunk in chunks]) for part in (1, 2))
    labels = rows.labels if rows.has_labels else np.full(len(rows), -1)
    Embedded(logits, states[:, 0], states[:, 1], labels.astype(np.int64)).save(path)


def joined(task: Task, *parts: Rows) -> Rows:
    """The rows of all parts, some of them without labels."""
    from clozify.data.in_memory import make_rows

    columns: dict[str, list[Any]] = {
        field: [text for rows in parts for text in rows.texts(field)] for field in task.fields
    }
    columns[task.label] = [
        None if label < 0 else task.labels[label]
        for rows in parts
        for label in (rows.labels if rows.has_labels else np.full(len(rows), -1))
    ]
    return make_rows(columns, task, "rows in memory")


def write_subset(folder: Path, count: int, target: Path) -> None:
    """Write the data of the task's first labels; of the unlabelled rows those that TF-IDF gives one of them."""
    import clozify
    from clozify.methods.tfidf import tfidf_predictions

    task = clozify.init_task(folder / "labeled_10.csv").task
    names = set(task.labels[:count])
    labeled, unlabeled = (clozify.read_rows(folder / name, task) for name in ("labeled_10.csv", "pile.csv"))
    kept = set(np.flatnonzero(np.isin(tfidf_predictions(labeled, unlabeled), np.arange(count))).tolist())
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        if "label" in header:
            lines = [line for line in lines if line[header.index("label")] in names]
        elif path.name == "pile.csv":
            lines = [line for index, line in enumerate(lines) if index in kept]
        with (target / path.name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *lines])


@dataclass(frozen=True)
class Data:
    """CLINC150's rows; `inside` and `outside` have "val" and, with `--test`, "test"."""

    task: Task
    labeled: Rows
    unlabeled: Rows
    inside: dict[str, Rows]
    outside: dict[str, Rows]

    @classmethod
    def load(cls, folder: Path, with_test: bool) -> Data:
        """From clinc150/."""
        import clozify
        from clozify.data.in_memory import load_rows

        task, labeled, unlabeled, val = load_data(folder, 5, 0, held_out=True)
        parts = ["val", "test"] if with_test else ["val"]
        inside = {"val": val} | ({"test": clozify.read_rows(folder / "test.csv", task)} if with_test else {})
        outside = {part: load_rows(folder / f"out_of_scope_{part}.csv", task, None) for part in parts}
        return cls(task, labeled, unlabeled, inside, outside)


def run_clozify(data: Data, output: Path, model: str, method: str, settings: list[str]) -> None:
    """Train a method and write its classifier's outputs for the reference, validation and test rows."""
    import clozify
    from clozify.runs.scope import SCOPE_FILE

    with tempfile.TemporaryDirectory() as name:
        started, unlabeled = time.monotonic(), None if method == "supervised" else data.unlabeled
        result = clozify.train(
            data.task,
            data.labeled,
            Path(name) / "run",
            unlabeled=unlabeled,
            method=method,
            model=model,
            settings=settings,
            log=print,
        )
        print(f"{method}: {time.monotonic() - started:.0f} s", flush=True)
        reference = data.labeled
        if unlabeled is not None:
            some = np.sort(np.random.default_rng(0).permutation(len(unlabeled))[:REFERENCE_ROWS])
            reference = joined(data.task, data.labeled, unlabeled.select(some))
        embed(result.run, reference, output / "reference.npz")
        assert result.classifier is not None
        shutil.copy(result.classifier / SCOPE_FILE, output)
        for part in data.inside:
            embed(result.run, data.inside[part], output / f"{part}.npz")
            embed(result.run, data.outside[part], output / f"{part}-out.npz")


def run_setfit(data: Data, output: Path, model: str, python: str, site: str) -> None:
    """Train SetFit and write its probabilities of the validation and test rows."""
    import clozify

    started = time.monotonic()
    parts = [rows for part in data.inside for rows in (data.inside[part], data.outside[part])]
    with tempfile.TemporaryDirectory() as name:
        encoder, path = str(Path(name) / "encoder"), Path(name) / "probabilities.npy"
        clozify.load_model(model).save(Path(encoder))
        rows = joined(data.task, *parts)
        setfit_accuracy(data.labeled, rows, encoder, 64, 0, [python], site, {"num_iterations": 20}, path)
        arrays = np.split(np.load(path).astype(np.float16), np.cumsum([len(rows) for rows in parts])[:-1])
    print(f"SetFit: {time.monotonic() - started:.0f} s", flush=True)
    for index, part in enumerate(data.inside):
        np.savez(output / f"setfit-{part}.npz", inside=arrays[2 * index], outside=arrays[2 * index + 1])


def main(
    output: Annotated[Path, typer.Option(help="A folder for the arrays.")] = Path("runs/out-of-scope"),
    test: Annotated[bool, typer.Option("--test", help="Score the test rows, too.")] = False,
    model: str = "builtin",
    seed: int = 0,
    labels: Annotated[int, typer.Option(help="Use the first labels alone, to try this script; 0: all.")] = 0,
    cpu_recipe: bool = False,
    method: Annotated[str, typer.Option(help="pet or supervised.")] = "pet",
    train: Annotated[bool, typer.Option(help="Train; without, the arrays are in the folder already.")] = True,
    setfit: Annotated[bool, typer.Option(help="Train SetFit.")] = True,
    setfit_python: str = sys.executable,
    setfit_site: str = "",
    setting: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe auto.")] = None,
) -> None:
    """Train, keep the arrays, and print a table for the validation rows and, if asked for, the test rows."""

    if train or setfit:
        if not os.environ.get("CLOZIFY_DATA_FOLDER"):
            sys.exit("Set CLOZIFY_DATA_FOLDER to the folder with clinc150/.")
        settings = [f"seed={seed}", *(setting or [])]
        if cpu_recipe:
            settings += ["adapt_to=cpu", "kernels=torch", "precision=float32"]
        folder = Path(os.environ["CLOZIFY_DATA_FOLDER"]) / "clinc150"
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as subset:
            if labels:
                write_subset(folder, labels, Path(subset))
                folder = Path(subset)
            data = Data.load(folder, test)
            if train:
                run_clozify(data, output, model, method, settings)
            if setfit:
                run_setfit(data, output, model, setfit_python, setfit_site)
    for part in ["val", "test"] if test else ["val"]:
        print_table(output, part)


if __name__ == "__main__":
    typer.run(main)
