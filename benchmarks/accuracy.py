"""Accuracy on AG's News: supervised training, PET and iPET, with the paper's sizes, data selection and test set.

Every size of T runs `clozify.train` in its own process, with `--at-once` models at a time. PET and iPET share a run
folder, and so M^0. CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv`, `train_pool.csv` and
`test.csv` (headerless: class, title, description). To tune settings without the test rows, `--held-out 3000` evaluates
on rows of the pool, which then are not used as unlabelled rows.

    python benchmarks/accuracy.py --output runs --examples 0,10,50,100 --methods supervised,pet,ipet --model builtin
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

PAPER = {  # RoBERTa (large), Table 1: unsupervised mean, supervised, PET, iPET
    0: (69.5, None, None, 87.5),
    10: (69.5, 25.0, 87.5, 89.3),
    50: (69.5, 82.1, 86.3, 88.4),
    100: (69.5, 86.0, 88.3, 89.6),
}


def cell(options: dict[str, Any], size: int) -> None:
    """Run all methods with `examples` labelled rows; each writes its results to a file."""
    from clozify import train
    from clozify.config.task import load_task
    from clozify.data.rows import read_rows

    data = Path(os.environ["CLOZIFY_AGNEWS_FOLDER"])
    task = load_task(options["task"])
    unlabeled_rows, test = read_rows(data / "train_pool.csv", task), read_rows(data / "test.csv", task)
    if held_out := options["held_out"]:
        chosen = np.linspace(0, len(unlabeled_rows) - 1, held_out).astype(int)
        test = unlabeled_rows.select(chosen)
        unlabeled_rows = unlabeled_rows.select(np.setdiff1d(np.arange(len(unlabeled_rows)), chosen))
    for method in options["methods"]:
        if size == 0 and method != "ipet":
            continue
        path = Path(options["output"]) / f"{'supervised' if method == 'supervised' else 'pet'}-{size}"
        result = train(
            task,
            data / "train_first1000_per_class.csv" if size else None,
            path,
            unlabeled=None if method == "supervised" else unlabeled_rows,
            test=test,
            examples=size or None,
            at_once=options["at_once"],
            model=options["model"],
            method=method,
            recipe=options["recipe"],
            settings=options["settings"],
            log=lambda line: print(line, flush=True),
        )
        (Path(options["output"]) / f"{method}-{size}.json").write_text(json.dumps(result.metrics.to_json(), indent=2))


def numbers(output: str, method: str, size: int) -> dict[str, Any] | None:
    """A method's results, if it was run."""
    file = Path(output) / f"{method}-{size}.json"
    result: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return result


def mean(result: dict[str, Any] | None, part: str) -> str:
    """Mean and standard deviation in percent."""
    if result is None or part not in result:
        return "not run"
    spread = result[part].get("accuracy_std")
    return f"{100 * result[part]['accuracy']:.1f}" + (f" ± {100 * spread:.1f}" if spread else "")


def show(options: dict[str, Any], sizes: list[int]) -> None:
    """Print the table with the paper's figures."""
    print(f"AG's News, {options['model']}, recipe {options['recipe']} {' '.join(options['settings'])}")
    columns = (
        "examples | unsupervised, mean (best) | supervised | pairs, min-max | ensemble | PET | iPET ensemble | iPET"
    )
    print(f"| {columns} | paper: unsupervised, supervised, PET, iPET |\n" + "|---" * 9 + "|")
    for size in sizes:
        supervised, pet, ipet = (numbers(options["output"], method, size) for method in ("supervised", "pet", "ipet"))
        first = pet or ipet
        before = first["unsupervised"] if first else None
        cells = [
            f"{100 * before['accuracy']:.1f} ({100 * before['best']:.1f})" if before else "not run",
            mean(supervised, "supervised"),
            f"{100 * pet['members']['min']:.1f}-{100 * pet['members']['max']:.1f}" if pet else "not run",
            mean(pet, "ensemble"),
            mean(pet, "classifier"),
            mean(ipet, "ensemble"),
            mean(ipet, "classifier"),
            ", ".join("-" if share is None else str(share) for share in PAPER.get(size, ())),
        ]
        print(f"| {size} | " + " | ".join(cells) + " |", flush=True)
        for generation in (ipet or {}).get("generations", []):
            summary = {name: generation.get(name) for name in ("generation", "training_rows", "accuracy", "agreement")}
            print(f"  {summary}", file=sys.stderr)


def main(
    output: Annotated[str, typer.Option(help="Where the runs go; the same command resumes them.")] = "runs",
    examples: Annotated[str, typer.Option(help="Sizes of T, with commas between them.")] = "10,50,100",
    methods: Annotated[str, typer.Option(help="Which methods.")] = "supervised,pet",
    task: Annotated[str, typer.Option(help="Another task file for the same rows, with other words say.")] = "agnews",
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
    recipe: Annotated[str, typer.Option(help="The recipe.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
    held_out: Annotated[int, typer.Option(help="Measure on so many rows of the pool instead of the test rows.")] = 0,
    at_once: Annotated[int, typer.Option(help="Models that each size trains at a time.")] = 1,
    sizes_at_once: Annotated[int, typer.Option(help="Sizes that are run at a time.")] = 1,
    one: Annotated[str | None, typer.Option("--one", hidden=True)] = None,
) -> None:
    """Run the requested cells and print them as a Markdown table with the paper's figures."""
    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    if one:
        cell(*json.loads(one))
        return
    from clozify.executors.mps import mps_service

    options: dict[str, Any] = {"output": output, "model": model, "recipe": recipe, "settings": settings or []}
    options |= {"methods": methods.split(","), "held_out": held_out, "at_once": at_once, "task": task}
    sizes = [int(size) for size in examples.split(",")]
    Path(output).mkdir(parents=True, exist_ok=True)

    def run(size: int) -> None:
        with (Path(output) / f"log-{size}.txt").open("ab") as log:
            command = [sys.executable, __file__, "--one", json.dumps([options, size])]
            if subprocess.run(command, stdout=log, stderr=log).returncode:
                print(f"{size} examples failed; see {output}/log-{size}.txt", file=sys.stderr, flush=True)

    with mps_service(), ThreadPoolExecutor(sizes_at_once) as pool:
        list(pool.map(run, sizes))
    show(options, sizes)


if __name__ == "__main__":
    typer.run(main)
