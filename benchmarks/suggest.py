"""Does `clozify suggest` choose better rows to label than random choice, and does it foresee what they bring?

Labelling is simulated: from 20 random labelled rows, rounds of 20 are chosen and added with their true labels. Every
seed has other candidates and other first rows, the same for all ways to choose; accuracy is measured on rows that are
never candidates, after every round.

    python benchmarks/suggest.py --data sample,agnews --data-folder FOLDER --cache CACHE
    python benchmarks/suggest.py --data sample,agnews,emotion --data-folder FOLDER --cache CACHE --choose --seeds 6 \\
        --strategies random,suggest,margin,entropy,disagreement,stratified,balanced,clusters,typical,badge
    python benchmarks/suggest.py --data sample,agnews --data-folder FOLDER --cache CACHE --method pet \\
        --seeds 3 --rounds 5

`--choose` measures on rows of training files, on which `clozify suggest` was chosen: labelled rows of the sample data,
and other rows of train_pool.csv (AG's News) and train.csv (Emotion). Without it, the sample data's candidates and the
rows to measure on are both of its test rows, 600 and 457, since no others have labels that are as unbalanced as in
practice; AG's News is measured on the first 2,000 test rows. FOLDER holds ag_news/ and emotion/; CACHE keeps the rows'
states, which take minutes, and the curves, so that a run that was stopped resumes.

The method is `frozen` with three patterns, or PET's ensemble, which is fine-tuned anew in every round (`--method pet`,
recipe quick; a GPU helps).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import t as student_t
from suggest_simulation import DataSet, FrozenTrainer, PetTrainer, States, Trainer, learning_curve, load_data
from suggest_strategies import STRATEGIES

Curve = list[dict[str, Any]]  # of one seed, an entry after every training
Curves = dict[str, list[Curve]]  # by strategy, one of each seed


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean, and the half of its 95% confidence interval by Student's t."""
    half = student_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
    return float(values.mean()), float(half)


def cell(values: NDArray[np.float64]) -> str:
    """Points with the half of their interval."""
    mean, half = interval(100 * values)
    return f"{mean:+.1f} ± {half:.1f}"


def column(curves: list[Curve], name: str) -> NDArray[np.float64]:
    """One number of all seeds and rounds, (seeds, rounds); NaN where it was not measured."""
    values = [[np.nan if (value := entry.get(name)) is None else value for entry in curve] for curve in curves]
    return np.array(values, dtype=np.float64)


def print_curves(curves: Curves) -> None:
    """Accuracy after every round, and what each strategy has over random choice."""
    others = [name for name in curves if name != "random"]
    baseline = column(curves["random"], "accuracy")
    print("| labels | random | " + " | ".join(f"{name} | difference" for name in others) + " |")
    print("|---:|---:|" + "---:|---:|" * len(others))
    for index, labels in enumerate(column(curves["random"], "labels")[0].astype(int)):
        cells = [f"{100 * baseline[:, index].mean():.1f}"]
        for name in others:
            values = column(curves[name], "accuracy")[:, index]
            cells += [f"{100 * values.mean():.1f}", cell(values - baseline[:, index])]
        print(f"| {labels} | " + " | ".join(cells) + " |")
    print("\n| | accuracy, mean of the rounds after the first | macro-F1 |\n|---|---:|---:|")
    for name in others:
        differences = [
            (column(curves[name], metric) - column(curves["random"], metric))[:, 1:].mean(axis=1)
            for metric in ("accuracy", "macro_f1")
        ]
        print(f"| {name} less random | " + " | ".join(map(cell, differences)) + " |")


def print_outlook(curves: Curves) -> None:
    """How well the gain of the next 20 labels was foreseen, and the accuracy estimated."""
    print("\n| rows | accuracy by | bias | mean error |\n|---|---|---:|---:|")
    for name, of_seeds in curves.items():
        for kind, title in (("held_out", "labelled rows, held out"), ("estimate", "confidence on unlabelled rows")):
            errors = 100 * (column(of_seeds, kind) - column(of_seeds, "accuracy"))
            if not np.isnan(errors).all():
                print(f"| {name} | {title} | {np.nanmean(errors):+.1f} | {np.nanmean(abs(errors)):.1f} |")
    print("\n| rows | next 20 labels | mean gain | expected | mean error | correlation | in the interval |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, of_seeds in curves.items():
        gain = np.diff(column(of_seeds, "accuracy"), axis=1)[:, 1:]
        last = np.diff(column(of_seeds, "estimate"), axis=1)[:, :-1]
        lines: dict[str, tuple[NDArray[np.float64], NDArray[np.bool_] | None]]
        lines = {"no gain": (0 * gain, None), "the estimates' last difference": (last, None)}
        for kind, title in (("alone", "from the run alone"), ("gain", "with the run before")):
            low, high = (column(of_seeds, f"{kind}_{end}")[:, 1:-1] for end in ("low", "high"))
            lines[title] = column(of_seeds, kind)[:, 1:-1], (low <= gain) & (gain <= high)
        for title, (expected, covered) in lines.items():
            if np.isnan(expected).any():
                continue
            correlation = np.corrcoef(expected.ravel(), gain.ravel())[0, 1] if expected.std() else np.nan
            cells = [f"{100 * value:+.2f}" for value in (gain.mean(), expected.mean())]
            cells += [f"{100 * abs(gain - expected).mean():.2f}", "" if np.isnan(correlation) else f"{correlation:.2f}"]
            print(f"| {name} | {title} | {' | '.join(cells)} | {'' if covered is None else f'{covered.mean():.0%}'} |")


def print_stops(curves: Curves) -> None:
    """When labelling would have stopped, and what the labels after that brought."""
    print("\n| rows | stop when | seeds that stop | labels at the stop, median | gain of the labels after it |")
    print("|---|---|---:|---:|---:|")
    for name, of_seeds in curves.items():
        rules = {
            "less than half a point is expected": column(of_seeds, "gain") < 0.005,
            "kappa is 0.99": column(of_seeds, "kappa") >= 0.99,
        }
        for title, holds in rules.items():
            stops = [int(row.argmax()) for row in holds if row.any()]
            seeds = np.flatnonzero(holds.any(axis=1))
            cells = ["", ""]
            if stops:
                accuracy, labels = column(of_seeds, "accuracy"), column(of_seeds, "labels")[0]
                rest = accuracy[seeds, -1] - accuracy[seeds, stops]
                cells = [f"{np.median(labels[stops]):.0f}", f"{100 * rest.mean():+.1f}"]
            print(f"| {name} | {title} | {len(stops)} of {len(holds)} | {' | '.join(cells)} |")


def compute_curves(
    data: DataSet,
    names: list[str],
    seeds: range,
    sizes: list[int],
    states: States,
    kept: Path,
    pet: tuple[str, list[str]] | None,
    outlook: bool,
) -> Curves:
    """The learning curves of all strategies and seeds; those in the file `kept` are not computed again."""
    if pet is None:
        states.add(data.rows)
        if data.test is not None:
            states.add(data.test)
    done: dict[str, Curve] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for seed in seeds:
        keys = {name: f"{name}/{seed}/{sizes[-1]}" for name in names}
        if all(key in done for key in keys.values()):
            continue
        candidates, test = data.split(seed)
        trainer: Trainer
        if pet is None:
            trainer = FrozenTrainer(states, candidates, test)
        else:
            trainer = PetTrainer(kept.with_suffix(""), candidates, test, *pet, seed)
        for name, key in keys.items():
            if key not in done:
                with_outlook = outlook and name in ("random", "suggest")
                curve = learning_curve(trainer, STRATEGIES[name], (candidates, test), seed, sizes, with_outlook)
                done[key] = list(curve)
                kept.write_text(json.dumps(done), encoding="utf-8")
    return {name: [done[f"{name}/{seed}/{sizes[-1]}"] for seed in seeds] for name in names}


def main(
    data: Annotated[str, typer.Option(help="sample, agnews, emotion, with commas between them.")] = "sample",
    cache: Annotated[Path, typer.Option(help="A folder that keeps states and curves.")] = Path("runs/suggest"),
    data_folder: Annotated[
        Path | None, typer.Option(envvar="CLOZIFY_DATA", help="The folder of ag_news/ and emotion/.")
    ] = None,
    choose: Annotated[bool, typer.Option("--choose", help="Measure on training rows.")] = False,
    strategies: Annotated[str, typer.Option(help=f"Of {', '.join(STRATEGIES)}.")] = "random,suggest",
    method: Annotated[str, typer.Option(help="frozen or pet.")] = "frozen",
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
    first: Annotated[int, typer.Option(help="Labelled rows to begin with.")] = 20,
    count: Annotated[int, typer.Option(help="Rows that are labelled in a round.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 9,
    seeds: Annotated[int, typer.Option(help="Repetitions.")] = 10,
    candidates: Annotated[int | None, typer.Option(help="Rows that a seed may label; default: by data set.")] = None,
    test_rows: Annotated[int | None, typer.Option(help="Measure on at most so many rows.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="With PET: NAME=VALUE of the recipe.")] = None,
) -> None:
    """Print the learning curves as Markdown tables."""
    if method not in ("frozen", "pet"):
        raise SystemExit(f"There is no method '{method}' here; use frozen or pet.")
    names = list(dict.fromkeys(["random", *strategies.split(",")]))
    if missing := [name for name in names if name not in STRATEGIES]:
        raise SystemExit(f"There is no strategy '{missing[0]}'; use {', '.join(STRATEGIES)}.")
    cache.mkdir(parents=True, exist_ok=True)
    for name in data.split(","):
        data_set = load_data(name, data_folder, not choose)
        data_set = replace(data_set, candidates=candidates or data_set.candidates, test_rows=test_rows)
        most = min(rounds, (data_set.candidates // 2 - first) // count)  # so that there is a choice
        sizes = [first + index * count for index in range(most + 1)]
        kept = cache / f"curves-{name}-{method}-{'choose' if choose else 'final'}.json"
        states = States(data_set.task, model, cache)
        pet = (model, settings or []) if method == "pet" else None
        used = range(100, 100 + seeds) if choose else range(seeds)
        curves = compute_curves(data_set, names, used, sizes, states, kept, pet, not choose)
        print(f"\n### {name}: {method}, {seeds} seeds\n")
        print_curves(curves)
        if not choose:
            print_outlook(curves)
            print_stops(curves)


if __name__ == "__main__":
    typer.run(main)
