"""How fast, how large and how accurate are ONNX exports?

Takes the classifier of a run of the sample task, or the built-in model with a head fitted to the labelled rows, exports
it to ONNX in 32 and in 8 bits, and labels the sample's test rows with all three, alternately, in one process.

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
from prediction import fit_head

from clozify.config.task import load_task
from clozify.data.rows import read_rows
from clozify.inference.export import export
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import load_classifier


def main(
    rows: Annotated[int, typer.Option(help="Test rows to label.")] = 400,
    repeats: Annotated[int, typer.Option(help="How often each is timed; the median counts.")] = 3,
    run: Annotated[Path | None, typer.Option(help="A finished run of the task 'debian'.")] = None,
) -> None:
    """Print rows per second, size, agreement and accuracy of each."""
    task = load_task("debian")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "classifier" if run is None else run / "classifier"
        if run is None:
            fit_head("builtin", 256).save(source)
        paths = {"PyTorch": source, "ONNX": Path(scratch) / "onnx", "ONNX int8": Path(scratch) / "int8"}
        for name, int8 in (("ONNX", False), ("ONNX int8", True)):
            export(source, paths[name], int8, "builtin:test", min_agreement=0)
        data = read_rows("builtin:test", task)
        data = data.select(np.linspace(0, len(data) - 1, rows).astype(np.int64))
        classifiers = {name: load_classifier(path, "cpu") for name, path in paths.items()}
        scores: dict[str, np.ndarray] = {}
        seconds: dict[str, list[float]] = {name: [] for name in paths}
        for number in range(repeats + 1):
            for name, classifier in classifiers.items():  # in turn, so that a busy moment hits all alike
                began = time.perf_counter()
                scores[name] = np.concatenate(
                    [part for _, part in classifier.score_rows(data, TOKENS_PER_BATCH["cpu"])]
                )
                if number:  # the first is a warm-up
                    seconds[name].append(time.perf_counter() - began)
        print(f"{rows} rows, {torch.get_num_threads()} threads, torch {torch.__version__}")
        first = scores["PyTorch"].argmax(axis=1)
        base = rows / statistics.median(seconds["PyTorch"])
        for name, path in paths.items():
            label = scores[name].argmax(axis=1)
            files = [file for file in path.iterdir() if file.suffix in (".onnx", ".safetensors", ".data")]
            rate = rows / statistics.median(seconds[name])
            print(
                f"{name}: {rate:.1f} rows/s ({rate / base:.2f}x), {sum(f.stat().st_size for f in files) / 1e6:.1f} MB, "
                f"{(label == first).mean():.2%} of the labels as PyTorch's, accuracy "
                f"{100 * (label == data.labels).mean():.1f}, scores differ by "
                f"{np.abs(scores[name] - scores['PyTorch']).max():.1e} at most"
            )


if __name__ == "__main__":
    typer.run(main)
