"""Accuracy on AG's News against the supervised baseline: the paper's sizes, data selection and test set.

A cell is one run, cut into parts that run side by side in processes of their own: the members of each pair, then each
training of the classifier. What they compute is what `clozify train` computes one after another. The variable
CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv`, `train_pool.csv` and `test.csv`
(headerless: class, title, description). `--held-out 3000` measures on the pool's last rows, which then are not in the
pile, and leaves the test rows alone: for trying settings out.

    python benchmarks/accuracy.py --output runs --examples 10,50,100 --model builtin --recipe paper [--set NAME=VALUE]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

PAPER = {  # RoBERTa (large): supervised, PET
    10: (25.0, 87.5),
    50: (82.1, 86.3),
    100: (86.0, 88.3),
}


@dataclass
class Asked:
    """What the cells share."""

    output: str
    model: str
    recipe: str
    settings: list[str]
    held_out: int


def part(asked: Asked, size: int, what: str, number: int) -> None:
    """One part of a cell: `members` of a pair, `pet` or `supervised` with one training of the classifier."""
    from clozify.cloze import load_model
    from clozify.data import read
    from clozify.members import first_jobs, train_members
    from clozify.pet import _run, prepare
    from clozify.questions import ask
    from clozify.run import RunFolder
    from clozify.task import Task, load_task

    data = Path(os.environ["CLOZIFY_AGNEWS_FOLDER"])
    task = load_task("agnews")
    whole = task
    if what == "members":
        task = Task.model_validate(task.model_dump() | {"patterns": [task.patterns[number]]})
    pile, test = read(data / "train_pool.csv", task), read(data / "test.csv", task)
    if asked.held_out:
        rows = np.arange(len(pile))
        pile, test = pile.select(rows[: -asked.held_out]), pile.select(rows[-asked.held_out :])
    plan = prepare(
        task,
        data / "train_first1000_per_class.csv",
        unlabeled=None if what == "supervised" else pile,
        test=test,
        examples=size,
        model=asked.model,
        method="supervised" if what == "supervised" else "pet",
        recipe=asked.recipe,
        settings=asked.settings,
        say=lambda line: print(line, flush=True),
    )
    place = Path(asked.output) / f"{what}-{size}-{number}"
    with RunFolder(place) as folder:
        if what == "members":
            seeds = plan.seeds(len(whole.pairs))[number]
            plan.seeds = lambda trainings=1: [seeds]  # type: ignore[method-assign]
            folder.write_json("run.json", {})
            model = load_model(plan.model, plan.device, attention_dropout=plan.recipe.attention_dropout)
            train_members(plan, folder, model, ask(model, task, plan.labeled, plan.recipe.wording), first_jobs(plan))
            return
        of_members, (seeds,) = plan.seeds(len(task.pairs)), plan.seeds()
        plan.seeds = lambda trainings=1: of_members if trainings > 1 else [[seeds[number]]]  # type: ignore[method-assign]
        for members in Path(asked.output).glob(f"members-{size}-*/members/*"):
            if what == "pet" and not (place / "members" / members.name).exists():
                shutil.copytree(members, place / "members" / members.name)
        _run(plan, folder)


def in_order(asked: Asked, jobs: list[tuple[int, str, int]], at_once: int) -> None:
    """Run parts side by side; each one's log lies beside its folder."""
    waiting, running = list(jobs), dict[subprocess.Popen[bytes], tuple[int, str, int]]()
    Path(asked.output).mkdir(parents=True, exist_ok=True)
    while waiting or running:
        for process in [process for process in running if process.poll() is not None]:
            job = running.pop(process)
            if process.returncode:
                print(f"{job} failed with {process.returncode}; see its log.", file=sys.stderr, flush=True)
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            log = (Path(asked.output) / f"{job[1]}-{job[0]}-{job[2]}.log").open("wb")
            command = [sys.executable, __file__, "--part", json.dumps([vars(asked), *job])]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            running[subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)] = job
        time.sleep(0.5)


def spread(values: list[float]) -> str:
    """Mean and standard deviation in percent."""
    if not values:
        return "not run"
    deviation = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{deviation}"


def show(asked: Asked, sizes: list[int]) -> None:
    """The table, beside the paper's."""
    print(f"AG's News, {asked.model}, recipe {asked.recipe} {' '.join(asked.settings)}")
    print("| examples | unsupervised | supervised | pairs, min-max | ensemble | PET | paper: supervised | paper: PET |")
    print("|---|---|---|---|---|---|---|---|")
    for size in sizes:
        runs: dict[str, list[dict[str, Any]]] = {
            what: [
                json.loads(file.read_text())
                for file in sorted(Path(asked.output).glob(f"{what}-{size}-*/metrics.json"))
            ]
            for what in ("pet", "supervised")
        }
        first = runs["pet"][0] if runs["pet"] else None
        cells = [
            spread([first["unsupervised"]["accuracy"]] if first else []),
            spread([run["supervised"]["accuracy"] for run in runs["supervised"]]),
            f"{100 * first['members']['min']:.1f}-{100 * first['members']['max']:.1f}" if first else "not run",
            spread([first["ensemble"]["accuracy"]] if first else []),
            spread([run["classifier"]["accuracy"] for run in runs["pet"]]),
            *(str(share) for share in PAPER.get(size, ("", ""))),
        ]
        print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


def main(
    output: Annotated[str, typer.Option(help="Where the runs go; given again, they go on where they were.")] = "runs",
    examples: Annotated[str, typer.Option(help="Sizes of T, with commas between them.")] = "10,50,100",
    methods: Annotated[str, typer.Option(help="Which methods.")] = "supervised,pet",
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
    recipe: Annotated[str, typer.Option(help="The recipe.")] = "paper",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
    held_out: Annotated[int, typer.Option(help="Measure on so many rows of the pool instead of the test rows.")] = 0,
    at_once: Annotated[int, typer.Option(help="Parts that run side by side.")] = 1,
    one_part: Annotated[str | None, typer.Option("--part", hidden=True)] = None,
) -> None:
    """Run the cells asked for and print them as a Markdown table beside the paper's."""
    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    if one_part:
        shared, size, what, number = json.loads(one_part)
        part(Asked(**shared), size, what, number)
        return
    from clozify.recipe import load_recipe
    from clozify.task import load_task

    asked = Asked(output, model, recipe, settings or [], held_out)
    sizes, repetitions = [int(size) for size in examples.split(",")], load_recipe(recipe, settings or []).repetitions
    pairs = len(load_task("agnews").pairs)
    jobs = [(size, "members", pair) for size in sizes for pair in range(pairs)] if "pet" in methods else []
    in_order(asked, jobs, at_once)
    jobs = [(size, what, number) for what in methods.split(",") for size in sizes for number in range(repetitions)]
    in_order(asked, jobs, at_once)
    show(asked, sizes)


if __name__ == "__main__":
    typer.run(main)
