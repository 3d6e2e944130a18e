"""Abstaining and prediction sets over many draws of T: is the risk, the coverage, the level what was asked for?

PET with a frozen encoder, which is cheap: states are computed once and cached. For every draw of T, label vectors are
fitted to five folds of T and to T itself; the folds' held-out probabilities, calibrated by one temperature, choose the
thresholds, and the rows that are not in T say what these do with the model of T. Printed are, over the draws:

- sets: how often a set contains the true label, and how many labels it has;
- `--max-risk`: the fraction of wrong answers among the answered rows (pooled over the draws, and the mean of the draws
  that have a threshold) and the coverage; next to what other rules for the threshold do;
- `--coverage`: the realised one.

CLOZIFY_DATA_FOLDER names a folder with ag_news/train_pool.csv; the sample data's labelled rows come with the package.
None of them is a test set.

    CLOZIFY_DATA_FOLDER=data python benchmarks/selective.py --draws 50 --size 50 --cache runs/selective
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from frozen import draw as draw_rows
from numpy.typing import NDArray

DATA = {"AG's News": ("agnews", "ag_news/train_pool.csv"), "sample data": ("debian", "builtin:labeled")}
FOLDS, LENGTH = 5, 64
LEVELS, RISKS, COVERAGES = (0.8, 0.9, 0.95), (0.05, 0.1, 0.2), (0.5, 0.8)
Array = NDArray[Any]


@dataclass(frozen=True)
class States:
    """Rows of a task: each pattern's states and words, and the labels."""

    states: list[Array]  # of each pattern, (rows, states)
    words: list[Array]  # of each pattern, (labels, width)
    labels: NDArray[np.int64]

    @classmethod
    def load(cls, name: str, model_name: str, limit: int, cache: Path) -> States:
        """From the cache, or computed from at most `limit` random rows."""
        path = cache / f"{Path(model_name).name.replace(':', '-')}-{name.replace(' ', '-')}-{limit}.npz"
        if not path.exists():
            _compute(name, model_name, limit, path)
        with np.load(path) as stored:
            patterns = range(len(stored.files) // 2)
            return cls(
                [stored[f"states{p}"] for p in patterns], [stored[f"words{p}"] for p in patterns], stored["labels"]
            )


def _compute(name: str, model_name: str, limit: int, path: Path) -> None:
    from clozify.config.task import load_task
    from clozify.data.in_memory import load_rows
    from clozify.methods.frozen import compute_states
    from clozify.models.cloze import load_model
    from clozify.models.task_prompts import compile_task
    from clozify.prompts.encode import EncodedRows

    task_name, file = DATA[name]
    source = file if file.startswith("builtin:") else Path(os.environ["CLOZIFY_DATA_FOLDER"]) / file
    model, rows = load_model(model_name), load_rows(source, load_task(task_name))
    rows = rows.select(np.sort(np.random.default_rng(0).permutation(len(rows))[:limit]))
    prompts = compile_task(model, rows.task)
    tokens = prompts.tokenize(model, rows, 0, len(rows))
    arrays: dict[str, Array] = {"labels": rows.labels.astype(np.int64)}
    for index, prompt in enumerate(prompts.patterns):
        arrays[f"states{index}"] = compute_states(model, EncodedRows(prompt.template, tokens, LENGTH))
        arrays[f"words{index}"] = model.label_vectors(prompt.words[0])[0].detach().double().cpu().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def scores_of(data: States, training: Array, rows: Array) -> Array:
    """The ensemble's scores of some rows with label vectors fitted to others, (rows, labels)."""
    from clozify.methods.frozen import Centre, fit_label_vectors

    scores = np.zeros((len(rows), len(data.words[0])))
    for states, words in zip(data.states, data.words, strict=True):
        centre = Centre.of([states], words.shape[1])
        fitted, _ = fit_label_vectors(states[training], data.labels[training], words, centre)
        scores += fitted.scores(states[rows]) / len(data.states)
    return scores


def temperature_for(scores: Array, labels: Array) -> float:
    """The temperature with the highest likelihood of the labels."""
    from scipy.special import log_softmax

    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 200))
    rows = np.arange(len(labels))
    return float(max(grid, key=lambda t: log_softmax(scores / t, axis=1)[rows, labels].sum()))


@dataclass(frozen=True)
class Draw:
    """The held-out rows of one draw of T, and the rows that are not in T."""

    held_out: Array  # probabilities, (rows of T, labels)
    held_out_labels: Array
    probabilities: Array  # (other rows, labels)
    labels: Array

    @classmethod
    def make(cls, data: States, size: int, seed: int) -> Draw:
        """Cross-fit on a random T, balanced by label, and score the other rows."""
        from scipy.special import softmax

        chosen = np.random.default_rng(seed).permutation(draw_rows(data.labels.astype(np.int16), size, seed))
        others = np.setdiff1d(np.arange(len(data.labels)), chosen)
        folds = np.argsort(np.argsort(data.labels[chosen], kind="stable")) % FOLDS  # each label in all folds
        held_out = np.zeros((size, len(data.words[0])))
        for fold in range(FOLDS):
            held_out[folds == fold] = scores_of(data, chosen[folds != fold], chosen[folds == fold])
        temperature = temperature_for(held_out, data.labels[chosen])
        probabilities = softmax(scores_of(data, chosen, others) / temperature, axis=1)
        return cls(softmax(held_out / temperature, axis=1), data.labels[chosen], probabilities, data.labels[others])


def risk_thresholds(confidence: Array, correct: Array, max_risk: float) -> dict[str, float | None]:
    """The threshold for a risk by several rules; the first is the one in use."""
    from scipy.stats import beta

    from clozify.methods.selective import risk_coverage, threshold_for_risk

    curve = risk_coverage(confidence, correct)
    bounds = {
        "E / A": curve.risk,
        "(E + 1) / (A + 1)": (curve.errors + 1) / (curve.answered + 1),
        "95% upper bound": beta.ppf(0.95, curve.errors + 1, curve.answered - curve.errors),
    }
    thresholds: dict[str, float | None] = {"80% upper bound": threshold_for_risk(confidence, correct, max_risk)}
    for name, risk in bounds.items():
        within = np.flatnonzero(np.nan_to_num(risk, nan=1.0) <= max_risk)
        thresholds[name] = float(curve.thresholds[within[-1]]) if len(within) else None
    return thresholds


def show_risks(draws: list[Draw], max_risk: float) -> None:
    """Print a line for each rule."""
    answered: dict[str, list[tuple[int, int, int]]] = {}
    for draw in draws:
        predicted = draw.held_out.argmax(axis=1)
        thresholds = risk_thresholds(draw.held_out.max(axis=1), predicted == draw.held_out_labels, max_risk)
        wrong = draw.probabilities.argmax(axis=1) != draw.labels
        for rule, threshold in thresholds.items():
            if threshold is not None:
                of_draw = draw.probabilities.max(axis=1) >= threshold
                counts = int(of_draw.sum()), int((of_draw & wrong).sum()), len(wrong)
                answered.setdefault(rule, []).append(counts)
            else:
                answered.setdefault(rule, [])
    for rule, of_rule in answered.items():
        line = f"| {max_risk:g} | {rule} | {len(of_rule)} of {len(draws)} | "
        if of_rule:
            rows, errors, total = np.array(of_rule).T
            each = errors / np.maximum(rows, 1)
            line += f"{100 * errors.sum() / rows.sum():.1f} | {100 * each.mean():.1f} | "
            line += f"{100 * (each > max_risk).mean():.0f} | {100 * (rows / total).mean():.0f} |"
        print(line if of_rule else f"{line} | | | |", flush=True)


def show_sets(draws: list[Draw], level: float) -> None:
    """Print how often sets contain the true label, and their size."""
    from clozify.methods.conformal import prediction_sets, set_threshold

    hits, sizes = [], []
    for draw in draws:
        rows = np.arange(len(draw.held_out_labels))
        sets = prediction_sets(draw.probabilities, set_threshold(draw.held_out[rows, draw.held_out_labels], level))
        hits.append(sets[np.arange(len(sets)), draw.labels].mean())
        sizes.append(sets.sum(axis=1).mean())
    spread = 100 * np.std(hits, ddof=1)
    line = f"| {level:g} | {100 * np.mean(hits):.1f} ± {spread / np.sqrt(len(hits)):.1f} | {spread:.1f}"
    print(f"{line} | {np.mean(sizes):.2f} |")


def show_coverage(draws: list[Draw], coverage: float) -> None:
    """Print the realised coverage and the accuracy of the answers, next to the expected one."""
    from clozify.methods.selective import operating_point, threshold_for_coverage

    realised, accuracy, expected = [], [], []
    for draw in draws:
        confidence = draw.held_out.max(axis=1)
        threshold = threshold_for_coverage(confidence, coverage)
        point = operating_point(confidence, draw.held_out.argmax(axis=1) == draw.held_out_labels, threshold)
        answered = draw.probabilities.max(axis=1) >= threshold
        realised.append(answered.mean())
        accuracy.append((draw.probabilities.argmax(axis=1) == draw.labels)[answered].mean())
        expected.append(point.accuracy)
    values = " | ".join(
        f"{100 * np.mean(each):.1f} ± {100 * np.std(each, ddof=1):.1f}" for each in (realised, accuracy)
    )
    print(f"| {coverage:g} | {values} | {100 * np.mean(np.array(expected, dtype=float)):.1f} |")


def main(
    model: Annotated[str, typer.Option(help="A model as --model of clozify takes it.")] = "builtin",
    draws: Annotated[int, typer.Option(help="Random T.")] = 50,
    size: Annotated[int, typer.Option(help="Rows of T.")] = 50,
    rows: Annotated[int, typer.Option(help="The most rows of a data set that are used.")] = 650,
    cache: Annotated[Path, typer.Option(help="A folder for the states.")] = Path("runs/selective"),
    names: Annotated[str, typer.Option("--data", help="Data sets, with commas between them.")] = ",".join(DATA),
) -> None:
    """Print the tables of the data sets."""
    for name in names.split(","):
        data = States.load(name, model, rows, cache)
        each = [Draw.make(data, size, seed) for seed in range(draws)]
        accuracies = [(draw.probabilities.argmax(axis=1) == draw.labels).mean() for draw in each]
        held_out = [(draw.held_out.argmax(axis=1) == draw.held_out_labels).mean() for draw in each]
        print(
            f"\n{name}, {model}: {draws} draws of {size} rows, measured on {len(each[0].labels)} others; accuracy ",
            end="",
        )
        print(f"{100 * np.mean(accuracies):.1f}, held-out {100 * np.mean(held_out):.1f}\n")
        print("| level of the sets | true label in the set ± standard error | spread of draws | labels in a set |")
        print("|---|---|---|---|")
        for level in LEVELS:
            show_sets(each, level)
        print("\n| max. risk | rule | draws with a threshold | risk, pooled | mean | draws above it, % | coverage |")
        print("|---|---|---|---|---|---|---|")
        for risk in RISKS:
            show_risks(each, risk)
        print("\n| coverage | realised ± spread | accuracy of the answers | expected |\n|---|---|---|---|")
        for coverage in COVERAGES:
            show_coverage(each, coverage)


if __name__ == "__main__":
    typer.run(main)
