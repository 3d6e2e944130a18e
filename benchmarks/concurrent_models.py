"""Several models trained at a time on one GPU: fine-tuning steps per second of one process and of several.

Every process fine-tunes its own model on rows of AG's News or Yelp (CLOZIFY_YELP), as an ensemble member is trained: 4
micro-batches of 1 labelled and 3 unlabelled rows per step. All start at the same time, and the first 100 steps are not
counted. Weights are random, since speed does not depend on them. On a GPU the processes run with NVIDIA's MPS, which
`--at-once` starts, and without it.

    CLOZIFY_AGNEWS=test.csv python benchmarks/concurrent_models.py --processes 1,3 [--shape roberta-base] [--steps 400]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from gpu import make_model

SOURCES = {"agnews": "CLOZIFY_AGNEWS", "yelp-full": "CLOZIFY_YELP"}
FIRST = 100  # steps that are not counted: kernels are loaded, and CUDA graphs captured


def train(model_folder: str, gate: str, count: int, steps: int, name: str) -> None:
    """One process: wait for the others, train, and print the steps per second."""
    import torch
    from accelerate import Accelerator

    from clozify.config.recipe import load_recipe
    from clozify.config.task import load_task
    from clozify.data.rows import read_rows
    from clozify.methods.finetune import finetune
    from clozify.models.cloze import load_model
    from clozify.models.task_prompts import compile_task
    from clozify.prompts.encode import EncodedRows
    from clozify.training.loop import Monitor, TrainingSetup, seed_everything

    on_gpu = torch.cuda.is_available()
    task = load_task(name)
    rows = read_rows(os.environ[SOURCES[name]], task).select(np.arange(2000))
    model = load_model(model_folder, "cuda" if on_gpu else "cpu")
    questions = compile_task(model, task)
    question, columns = questions.patterns[0], questions.tokenize(model, rows, 0, len(rows))
    unlabeled = EncodedRows(question.template, columns, 256)
    few = EncodedRows(question.template, {column: texts.slice(0, 10) for column, texts in columns.items()}, 256)
    recipe = load_recipe("paper", [f"finetune.max_steps={steps}"])
    accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no")
    seen: list[tuple[int, float]] = []
    monitor = Monitor(on_step=lambda step, _: seen.append((step, time.monotonic())))
    Path(gate, str(os.getpid())).touch()
    while len(list(Path(gate).iterdir())) < count:
        time.sleep(0.02)
    setup = TrainingSetup(recipe.finetune, seed_everything(1), accelerator, monitor)
    finetune(model, question.words[0], few, rows.labels[:10], unlabeled, setup)
    (first, began), (last, ended) = next(at for at in seen if at[0] >= min(FIRST, steps // 2)), seen[-1]
    print(json.dumps({"steps_per_second": (last - first) / (ended - began)}))


def measure(model: Path, count: int, steps: int, task: str, mps: bool) -> float:
    """The steps per second of `count` processes, summed."""
    from clozify.executors.mps import mps_service

    with tempfile.TemporaryDirectory() as gate, mps_service(mps) as own:
        command = [sys.executable, __file__, "--part", json.dumps([str(model), gate, count, steps, task])]
        how: Any = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | own}
        processes = [subprocess.Popen(command, **how) for _ in range(count)]
        result: list[dict[str, float]] = [json.loads(process.communicate()[0]) for process in processes]
    return sum(of_one["steps_per_second"] for of_one in result)


def main(
    processes: Annotated[str, typer.Option(help="Numbers of processes, separated by commas.")] = "1,3",
    shape: Annotated[str, typer.Option(help="roberta-large, roberta-base or tiny.")] = "roberta-base",
    steps: Annotated[int, typer.Option(help="Steps of every process, a multiple of 25.")] = 400,
    task: Annotated[str, typer.Option(help="The task whose rows are used: agnews or yelp-full.")] = "agnews",
    part: Annotated[str | None, typer.Option("--part", hidden=True)] = None,
) -> None:
    """Print the steps per second for each number of processes."""
    if part:
        train(*json.loads(part))
        return
    if not os.environ.get(SOURCES[task]):
        sys.exit(f"Set {SOURCES[task]} to the data set's test.csv: it does not come with clozify.")
    import torch

    ways = (False, True) if torch.cuda.is_available() else (False,)
    print(f"| {shape} | " + " | ".join("with MPS" if mps else "without MPS" for mps in ways) + " |")
    print("|---" * (1 + len(ways)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), shape)
        for count in map(int, processes.split(",")):
            rates = [f"{measure(Path(folder), count, steps, task, mps):.1f} steps/s" for mps in ways]
            print(f"| {count} at once | " + " | ".join(rates) + " |", flush=True)


if __name__ == "__main__":
    typer.run(main)
