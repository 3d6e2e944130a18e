"""How fast, how large and how true is an export?

Trains a classifier on the sample data's labelled rows (supervised, in a minute or so) unless a run is named, exports it
to ONNX in 32 and in 8 bits, and lets all three label the sample's test rows in turn, in one run on this machine.

    python benchmarks/export.py [--rows 400] [--repeats 3] [--run DIR]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from clozify.classifier import load_classifier
from clozify.data import read
from clozify.export import export
from clozify.pet import train
from clozify.steps.annotate import TOKENS_A_BATCH
from clozify.task import load_task


def main(
    rows: Annotated[int, typer.Option(help="Test rows to label.")] = 400,
    repeats: Annotated[int, typer.Option(help="How often each is timed; the median counts.")] = 3,
    run: Annotated[Path | None, typer.Option(help="A finished run of the task 'debian'.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of the training, where no run is named.")] = 150,
) -> None:
    """Print rows a second, size, agreement and accuracy of each."""
    task = load_task("debian")
    with tempfile.TemporaryDirectory() as scratch:
        if run is None:
            run = Path(scratch) / "run"
            settings = ["repetitions=1", f"supervised.max_steps={steps}"]
            train(task, "builtin:labeled", run, "cpu", method="supervised", recipe="quick", settings=settings)
        places = {"PyTorch": run / "classifier", "ONNX": Path(scratch) / "onnx", "ONNX int8": Path(scratch) / "int8"}
        for name, int8 in (("ONNX", False), ("ONNX int8", True)):
            export(run, places[name], int8, "builtin:test", least_agreement=0)
        data = read("builtin:test", task)
        data = data.select(np.linspace(0, len(data) - 1, rows).astype(np.int64))
        classifiers = {name: load_classifier(place, "cpu") for name, place in places.items()}
        scores: dict[str, np.ndarray] = {}
        seconds: dict[str, list[float]] = {name: [] for name in places}
        for number in range(repeats + 1):
            for name, classifier in classifiers.items():  # in turn, so that a busy moment hits all alike
                began = time.perf_counter()
                scores[name] = np.concatenate([part for _, part in classifier.annotate(data, TOKENS_A_BATCH["cpu"])])
                if number:  # the first is a warm-up
                    seconds[name].append(time.perf_counter() - began)
        print(f"{rows} rows, {torch.get_num_threads()} threads, torch {torch.__version__}")
        first = scores["PyTorch"].argmax(axis=1)
        base = rows / statistics.median(seconds["PyTorch"])
        for name, place in places.items():
            label = scores[name].argmax(axis=1)
            files = [file for file in place.iterdir() if file.suffix in (".onnx", ".safetensors", ".data")]
            rate = rows / statistics.median(seconds[name])
            print(
                f"{name}: {rate:.1f} rows/s ({rate / base:.2f}x), {sum(f.stat().st_size for f in files) / 1e6:.1f} MB, "
                f"{(label == first).mean():.2%} of the labels as PyTorch's, accuracy "
                f"{100 * (label == data.labels).mean():.1f}, scores differ by "
                f"{np.abs(scores[name] - scores['PyTorch']).max():.1e} at most"
            )


if __name__ == "__main__":
    typer.run(main)
