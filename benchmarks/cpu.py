"""Is it faster on a CPU to train one model at a time with all threads, or several with fewer threads (`--at-once`)?

Whole runs of the built-in model on its sample data, alternately, each in its own process. The time is that of
`clozify.train`, including the start of its processes; the ratio is that of the medians over several rounds.

    python benchmarks/cpu.py [--at-once 2] [--members 6] [--steps 20] [--rounds 3]
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import typer


def measure(at_once: int, members: int, steps: int) -> tuple[float, int]:
    """Seconds of a run with `at_once` models at a time, and the number of threads."""
    import torch

    from clozify import train
    from clozify.config.task import load_task
    from clozify.data.few_shot import few_shot
    from clozify.data.rows import read_rows

    task = load_task("debian")
    task = task.with_changes(patterns=task.patterns[:members])
    test = read_rows("builtin:test", task).select(np.arange(40))
    few = few_shot(read_rows("builtin:labeled", task), 28)
    settings = [f"finetune_without_lm.max_steps={steps}", f"repetitions={-(-members // len(task.patterns))}"]
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        train(
            task,
            few,
            Path(name) / "run",
            devices="cpu",
            at_once=at_once,
            test=test,
            recipe="quick",
            settings=settings,
        )
        return time.perf_counter() - began, torch.get_num_threads()


def main(
    at_once: Annotated[int, typer.Option(help="Models at a time, against one.")] = 2,
    members: Annotated[int, typer.Option(help="Members of a run.")] = 6,
    steps: Annotated[int, typer.Option(help="Steps a member.")] = 20,
    rounds: Annotated[int, typer.Option(help="How often each way is timed.")] = 3,
) -> None:
    """Print every round, both medians and their ratio."""
    seconds: dict[int, list[float]] = {1: [], at_once: []}
    context = multiprocessing.get_context("spawn")
    for number in range(rounds):
        for way, taken in seconds.items():
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                results, threads = pool.submit(measure, way, members, steps).result()
            taken.append(results)
            load = os.getloadavg()[0]
            print(
                f"round {number}: {way} at once, {threads // way} threads each: {results:.1f} s, load {load:.1f}",
                flush=True,
            )
    one, several = (statistics.median(taken) for taken in seconds.values())
    print(f"one at a time {one:.1f} s, {at_once} at a time {several:.1f} s: {one / several:.2f}x")


if __name__ == "__main__":
    typer.run(main)
