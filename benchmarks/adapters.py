"""What do adapters (`--adapter lora`) do to accuracy, time, disk and memory?

The built-in model on its sample data, recipe `quick`, without a pile: members are trained whole and as adapters, in
turns, each seed and way in a process of its own, with the same labelled rows and test rows. Accuracy is the mean of the
members and of their ensembles; a step's time is the median over members; memory is the process' greatest.

    python benchmarks/adapters.py [--seeds 3] [--patterns 2] [--examples 42] [--test 200] [--set NAME=VALUE]
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer


def measure(settings: list[str], patterns: int, examples: int, test: int) -> dict[str, Any]:
    """One run: accuracies, seconds a step of each member, bytes a member, and the greatest memory."""
    from clozify import train
    from clozify.data import few_shot, read
    from clozify.task import load_task

    task = load_task("debian")
    task = task.changed(patterns=task.patterns[:patterns])
    rows = read("builtin:test", task)
    rows = rows.select(np.unique(np.linspace(0, len(rows) - 1, min(test, len(rows))).astype(int)))
    few = few_shot(read("builtin:labeled", task), examples)
    with tempfile.TemporaryDirectory() as name:
        before = _peak()
        found = train(task, few, Path(name) / "run", test=rows, recipe="quick", settings=settings)
        members = list((Path(name) / "run" / "members").iterdir())
        recipe = json.loads((Path(name) / "run" / "run.json").read_text())["recipe"]
        steps = recipe["finetune_without_lm"]["max_steps"]
        return {
            "untrained": found["unsupervised"]["accuracy"],
            "members": [of_one["accuracy"] for of_one in found["members"]["each"]],
            "ensemble": found["ensemble"]["accuracy"],
            "step": [json.loads((place / "member.json").read_text())["training_seconds"] / steps for place in members],
            "bytes": sum(file.stat().st_size for file in (members[0] / "model").iterdir()),
            "memory": _peak() - before,
        }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(
    seeds: Annotated[int, typer.Option(help="Runs each way.")] = 3,
    patterns: Annotated[int, typer.Option(help="Patterns of the sample task: members of a run.")] = 2,
    examples: Annotated[int, typer.Option(help="Labelled rows.")] = 42,
    test: Annotated[int, typer.Option(help="Test rows.")] = 200,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe, for both.")] = None,
) -> None:
    """Print a line for each way, and what adapters change."""
    ways: dict[str, list[dict[str, Any]]] = {"none": [], "lora": []}
    context = multiprocessing.get_context("spawn")
    for seed in range(seeds):
        for way, found in ways.items():
            asked = [*(settings or []), f"seed={seed}", f"adapter.method={way}"]
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found.append(pool.submit(measure, asked, patterns, examples, test).result())
            print(f"seed {seed}, adapter {way}: ensemble {100 * found[-1]['ensemble']:.1f}", flush=True)
    for way, found in ways.items():
        members = [100 * accuracy for one in found for accuracy in one["members"]]
        ensembles = [100 * one["ensemble"] for one in found]
        step = statistics.median(seconds for one in found for seconds in one["step"])
        print(
            f"adapter {way}: untrained {100 * found[0]['untrained']:.1f}; members {statistics.mean(members):.1f} "
            f"(standard deviation {statistics.pstdev(members):.1f}, {len(members)} of them); ensembles "
            f"{statistics.mean(ensembles):.1f}; {1000 * step:.0f} ms a step; "
            f"{found[0]['bytes'] / 2**20:.2f} MiB a member; "
            f"{statistics.median(one['memory'] for one in found):,.0f} MiB of memory beyond the libraries"
        )
    pairs = zip(ways["none"], ways["lora"], strict=True)
    changes = [100 * (b - a) for one, two in pairs for a, b in zip(one["members"], two["members"], strict=True)]
    spread = statistics.stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    print(f"a member with an adapter instead: {statistics.mean(changes):+.1f} points (standard error {spread:.1f})")
    times = [statistics.median(seconds for one in found for seconds in one["step"]) for found in ways.values()]
    print(f"a step takes {times[1] / times[0]:.2f} times as long")


if __name__ == "__main__":
    typer.run(main)
