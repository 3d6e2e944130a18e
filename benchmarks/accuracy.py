"""Accuracy on AG's News against the supervised baseline: the paper's sizes, data selection and test set.

Each cell is one `clozify train`, in a process of its own; on a GPU several run side by side. The variable
CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv`, `train_pool.csv` and `test.csv`
(headerless: class, title, description).

    python benchmarks/accuracy.py --output runs --examples 10,50,100 --model builtin --recipe paper [--set NAME=VALUE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

PAPER = {  # RoBERTa (large): supervised, PET
    10: (25.0, 87.5),
    50: (82.1, 86.3),
    100: (86.0, 88.3),
}


def start(
    data: Path, output: Path, size: int, method: str, model: str, recipe: str, settings: list[str]
) -> subprocess.Popen[bytes]:
    """Start one cell; its log lies beside its run."""
    command = [sys.executable, "-m", "clozify", "train", "agnews", "--examples", str(size), "--method", method]
    command += ["--labeled", str(data / "train_first1000_per_class.csv"), "--test", str(data / "test.csv")]
    command += ["--unlabeled", str(data / "train_pool.csv")] if method == "pet" else []
    command += ["--model", model, "--recipe", recipe, "--output", str(output)]
    command += [word for setting in settings for word in ("--set", setting)]
    output.parent.mkdir(parents=True, exist_ok=True)
    log = output.with_suffix(".log").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})


def main(
    output: Annotated[Path, typer.Option(help="Where the runs go; given again, they go on where they were.")],
    examples: Annotated[str, typer.Option(help="Sizes of T, with commas between them.")] = "10,50,100",
    methods: Annotated[str, typer.Option(help="Which methods.")] = "supervised,pet",
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
    recipe: Annotated[str, typer.Option(help="The recipe.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
    at_once: Annotated[int, typer.Option(help="Cells that run side by side.")] = 1,
) -> None:
    """Run the cells asked for and print them as a Markdown table beside the paper's."""
    place = os.environ.get("CLOZIFY_AGNEWS_FOLDER")
    if not place:
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    cells = [(int(size), method) for size in examples.split(",") for method in methods.split(",")]
    waiting = [(size, method, output / f"{method}-{size}") for size, method in cells]
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < at_once:
            size, method, folder = waiting.pop(0)
            running.append(start(Path(place), folder, size, method, model, recipe, settings or []))
        time.sleep(0.5)
    print(f"AG's News, {model}, recipe {recipe} {' '.join(settings or [])}")
    print("| examples | unsupervised | supervised | pairs, min-max | ensemble | PET | paper: supervised | paper: PET |")
    print("|---|---|---|---|---|---|---|---|")
    for size in dict.fromkeys(size for size, _ in cells):
        found: dict[str, dict[str, float]] = {}
        for method in ("supervised", "pet"):
            file = output / f"{method}-{size}" / "metrics.json"
            found |= json.loads(file.read_text()) if file.exists() else {}

        def shown(key: str, name: str = "accuracy", found: dict[str, dict[str, float]] = found) -> str:
            if key not in found:
                return "not run"
            spread = f" ± {100 * found[key][f'{name}_std']:.1f}" if f"{name}_std" in found[key] else ""
            return f"{100 * found[key][name]:.1f}{spread}"

        pairs = f"{shown('members', 'min')}-{shown('members', 'max')}"
        paper = " | ".join(f"{value}" for value in PAPER.get(size, ("-", "-")))
        print(
            f"| {size} | {shown('unsupervised')} | {shown('supervised')} | {pairs} | {shown('ensemble')} "
            f"| {shown('classifier')} | {paper} |"
        )


if __name__ == "__main__":
    typer.run(main)
