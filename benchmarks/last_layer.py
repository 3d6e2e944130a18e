"""Rows scored per second where the last layer runs at the mask alone, against the whole encoder, on a CPU.

Each side scores the same rows of the sample data, whole (up to 64 tokens) and the summaries alone, in turns; medians.

    python benchmarks/last_layer.py [--model builtin] [--rows 128] [--repeats 9]
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Annotated

import numpy as np
import torch
import typer

from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.data.rows import read_rows
from clozify.gpu.options import GpuOptions
from clozify.methods.score import score_rows
from clozify.models.cloze import load_model
from clozify.models.last_layer import GatherOutput, GatherQueries
from clozify.models.task_prompts import compile_task


def main(
    model: Annotated[str, typer.Option(help="'builtin', a folder, or a name of the hub.")] = "builtin",
    rows: Annotated[int, typer.Option(help="Test rows, evenly spread.")] = 128,
    repeats: Annotated[int, typer.Option(help="Turns; medians count.")] = 9,
) -> None:
    """Print a Markdown table of the ratios."""
    task = load_task("debian")
    test = read_rows("builtin:test", task)
    test = test.select(np.linspace(0, len(test) - 1, rows).astype(np.int64))
    short = load_rows([{"summary": text, "description": ""} for text in test.texts("summary")], task)
    print(f"{model}, {rows} rows, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}\n")
    print("| precision | rows | whole encoder, rows/s | feed-forward network at the mask | and queries: chosen |")
    print("|---|---|---|---|---|")
    for scoring in ("float32", "int8"):
        loaded = load_model(model, "cpu", options=GpuOptions(scoring=scoring))
        prompts = compile_task(loaded, task).for_pair(0)
        last = loaded._scoring_last_layer
        assert last is not None, "the last layer of this model cannot run at one position"
        sides = [None, last._replace(gather=GatherOutput), last._replace(gather=GatherQueries)]
        for kind, data in (("whole", test), ("summary", short)):
            seconds: list[list[float]] = [[] for _ in sides]
            for turn in range(repeats + 1):  # the first is a warm-up
                for side, durations in zip(sides, seconds, strict=True):
                    loaded._scoring_last_layer = side
                    began = time.perf_counter()
                    list(score_rows(loaded, prompts, data, 64))
                    if turn:
                        durations.append(time.perf_counter() - began)
            whole, *others = seconds
            ratios = [statistics.median(w / o for w, o in zip(whole, other, strict=True)) for other in others]
            cells = " | ".join(f"{ratio:.2f}x" for ratio in ratios)
            print(f"| {scoring} | {kind} | {rows / statistics.median(whole):.0f} | {cells} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
