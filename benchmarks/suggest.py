"""Does `clozify suggest` choose better rows to label than random choice? On the sample data.

Both start from the same few labelled rows. A round trains PET's members, chooses unlabelled rows (by `clozify suggest`
or at random) and adds them with their true labels. Measured is the ensemble's accuracy on some of the test rows; the
unlabelled rows are others of them, whose labels are available and as unbalanced as in practice.

    python benchmarks/suggest.py --output runs/suggest --rounds 3 --seeds 3
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

CHOICES = ("suggest", "random")


def frame(rows: Any, names: list[str]) -> pd.DataFrame:
    """Rows with labels, as a table that is written to a file."""
    columns = {field: rows.texts(field) for field in names}
    return pd.DataFrame({"id": rows.ids(), **columns, "label": [rows.task.labels[n] for n in rows.labels]})


def numbers(path: Path, labeled: Path, options: dict[str, Any], seed: int) -> dict[str, float]:
    """Train on a file of labelled rows; the run is kept for suggesting."""
    from clozify import load_task, train

    task = load_task("debian")
    task = task.with_changes(patterns=task.patterns[:: max(1, len(task.patterns) // options["patterns"])])
    result = train(
        task,
        labeled,
        path,
        unlabeled=options["output"] / f"pile-{seed}.csv",
        test=options["output"] / "test.csv",
        recipe="quick",
        settings=["distillation=false", f"seed={seed}", *options["settings"]],
        log=lambda line: None,
    ).metrics.ensemble
    assert result is not None
    return {"accuracy": result.accuracy, "macro_f1": result.macro_f1}


def course(choice: str, seed: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """One learning curve: rounds of training and choosing rows."""
    from clozify.inference.suggest import suggest

    output = options["output"]
    unlabeled_rows = pd.read_csv(output / f"pile-{seed}.csv", dtype=str)
    truth = pd.read_csv(output / f"truth-{seed}.csv", dtype=str).set_index("id")["label"]
    labeled = output / f"first-{seed}.csv"
    result = []
    for number in range(options["rounds"] + 1):
        rows = pd.read_csv(labeled, dtype=str)
        run = output / f"run-{choice}-{seed}-{number}" if number else output / f"run-{seed}"
        done = output / f"{run.name}.json"
        if not done.exists():
            done.write_text(json.dumps(numbers(run, labeled, options, seed)))
        result.append({"rows": len(rows), **json.loads(done.read_text())})
        print(f"{choice}, seed {seed}: {len(rows)} rows, {100 * result[-1]['accuracy']:.1f}", flush=True)
        if number == options["rounds"]:
            break
        following = output / f"{choice}-{seed}-{number + 1}.csv"
        if not following.exists() and choice == "suggest":
            suggest(run, options["count"], following)
            new = pd.read_csv(following, dtype=str)
            new["label"] = new["id"].map(truth)  # the person who fills the file in
            pd.concat([rows, new]).to_csv(following, index=False)
        elif not following.exists():
            free = unlabeled_rows[~unlabeled_rows["id"].isin(rows["id"])]
            rng = np.random.default_rng([seed, number])
            new = free.iloc[rng.permutation(len(free))[: options["count"]]].copy()
            new["label"] = new["id"].map(truth)
            pd.concat([rows, new]).to_csv(following, index=False)
        labeled = following
        if number:
            shutil.rmtree(run, ignore_errors=True)  # its members' weights
    shutil.rmtree(output / f"run-{choice}-{seed}-{options['rounds']}", ignore_errors=True)
    return result


def main(
    output: Annotated[Path, typer.Option(help="Where the runs go; given again, they go on where they were.")] = Path(
        "runs/suggest"
    ),
    first: Annotated[int, typer.Option(help="Labelled rows to begin with.")] = 28,
    count: Annotated[int, typer.Option(help="Rows that are labelled a round.")] = 14,
    rounds: Annotated[int, typer.Option(help="Rounds of choosing.")] = 3,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with rows and seeds of its own.")] = 3,
    patterns: Annotated[int, typer.Option(help="Patterns of the sample task.")] = 3,
    unlabeled_rows: Annotated[int, typer.Option(help="Unlabelled rows.")] = 400,
    test: Annotated[int, typer.Option(help="Test rows.")] = 400,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
) -> None:
    """Print both learning curves as a Markdown table."""
    from clozify import few_shot, load_task, read_rows

    task = load_task("debian")
    expected, tests = read_rows("builtin:labeled", task), read_rows("builtin:test", task)
    output.mkdir(parents=True, exist_ok=True)
    spread = np.unique(np.linspace(0, len(tests) - 1, test).astype(int))
    frame(tests.select(spread), task.fields).to_csv(output / "test.csv", index=False)
    others = tests.select(np.setdiff1d(np.arange(len(tests)), spread)).excluding(tests.select(spread))
    for seed in range(seeds):
        begun = few_shot(expected, first, seed=seed)
        rest = others.excluding(begun)
        drawn = np.sort(np.random.default_rng(seed).permutation(len(rest))[:unlabeled_rows])
        whole = frame(rest.select(drawn), task.fields)
        frame(begun, task.fields).to_csv(output / f"first-{seed}.csv", index=False)
        whole.drop(columns="label").to_csv(output / f"pile-{seed}.csv", index=False)
        whole[["id", "label"]].to_csv(output / f"truth-{seed}.csv", index=False)
    options = {"output": output, "count": count, "rounds": rounds, "patterns": patterns, "settings": settings or []}
    curves = {choice: [course(choice, seed, options) for seed in range(seeds)] for choice in CHOICES}
    print("| labelled rows | " + " | ".join(f"{choice}: accuracy | macro-F1" for choice in CHOICES) + " |")
    print("|---:|" + "---:|" * 2 * len(CHOICES))
    for number in range(rounds + 1):
        cells = []
        for choice in CHOICES:
            for metric in ("accuracy", "macro_f1"):
                values = [100 * curve[number][metric] for curve in curves[choice]]
                cells.append(f"{np.mean(values):.1f} ({', '.join(f'{value:.1f}' for value in values)})")
        print(f"| {first + number * count} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    typer.run(main)
