"""How much faster do UDA and MixText train with CUDA graphs and padding-free batches than kernel by kernel?

Training steps as a run takes them, on rows of AG's News (of the folder that CLOZIFY_AGNEWS_FOLDER names or the file
that CLOZIFY_AGNEWS names; else sample text cut to its lengths), each with two augmentations, which are its words in
another order. `--model` is clozify-base, clozify-mini, roberta-base or tiny, with random weights in that model's shape,
since speed does not depend on them; or a model's folder. The variants run in one process, in turns, from the same
weights and on the same batches; a rate is the median over blocks of 25 steps, without the first block.

    python benchmarks/baselines.py [--model clozify-base] [--steps 100] [--alternations 2] [--each] [--seconds 45]

`--each` also measures without graphs and without padding-free batches alone. On a CPU, `--model tiny --steps 50` tries
the script out; nothing is optimised there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from accelerate import Accelerator
from datasets import Dataset
from scoring import SHAPES, sample

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, load_task
from clozify.data.rows import Rows, read_rows
from clozify.gpu.features import without
from clozify.gpu.options import GpuOptions
from clozify.methods.mixtext import mixtext
from clozify.methods.uda import uda
from clozify.models.builtin import builtin_folder
from clozify.models.classifier import Classifier
from clozify.training.loop import LOG_EVERY, Monitor, TrainingSetup, seed_everything

METHODS: dict[str, Callable[..., list[float]]] = {"uda": uda, "mixtext": mixtext}
LABELED, UNLABELED = 100, 2_000  # rows
OFF, ON = "kernel by kernel", "graphs, padding-free"
SINGLE_FEATURES = {"without graphs": ("cuda_graphs",), "without padding-free batches": ("packing",)}


def sequence_classifier(name: str, labels: int) -> tuple[Any, Any]:
    """A classifier in a model's shape with random weights, or a folder's with a new head; and its tokenizer."""
    if Path(name).is_dir():
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        return transformers.AutoModelForSequenceClassification.from_pretrained(name, num_labels=labels), tokenizer
    folder = builtin_folder("builtin:mini")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config: Any
    if name == "clozify-base":
        config = transformers.MPNetConfig(max_position_embeddings=514)  # 12 layers, 768 wide
    elif name == "clozify-mini":
        config = transformers.AutoConfig.from_pretrained(folder)
    elif name in SHAPES:
        config = transformers.RobertaConfig(
            max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[name]
        )
    else:
        shapes = ", ".join(["clozify-base", "clozify-mini", *SHAPES])
        raise typer.BadParameter(f"'{name}' is no folder and none of {shapes}")
    config.num_labels = labels
    return transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32), tokenizer


def agnews_rows() -> tuple[Rows, list[Rows]]:
    """Rows of AG's News or of its lengths, and two versions of them with shuffled words."""
    if folder := os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        rows = read_rows(Path(folder) / "train_pool.csv", load_task("agnews")).select(np.arange(LABELED + UNLABELED))
    else:
        rows = sample(LABELED + UNLABELED)
    return rows, [shuffled(rows, seed) for seed in (1, 2)]


def shuffled(rows: Rows, seed: int) -> Rows:
    """The rows with every field's words in another order."""
    rng = np.random.default_rng(seed)
    columns = {
        field: [" ".join(rng.permutation(text.split()).tolist()) for text in rows.texts(field)]
        for field in rows.task.fields
    }
    return Rows(Dataset.from_dict(columns), Task.model_validate(rows.task.model_dump() | {"id": None}))


class Bench:
    """A classifier, its rows, and the rates that were measured."""

    def __init__(self, model: str) -> None:
        on_gpu = torch.cuda.is_available()
        self.accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no")
        torch.manual_seed(0)
        self.rows, self.versions = agnews_rows()
        labels = len(self.rows.task.labels)
        made, self.tokenizer = sequence_classifier(model, labels)
        self.model = made.to(self.accelerator.device)
        self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        encode = self.classifier("auto").encode
        encoded = [encode(rows.select(np.arange(LABELED, len(rows)))) for rows in (self.rows, *self.versions)]
        self.labeled = encode(self.rows.select(np.arange(LABELED)))
        self.unlabeled, *self.augmented = encoded
        self.labels = (np.arange(LABELED) % labels).astype(np.int16)
        self.blocks: dict[tuple[str, str], list[float]] = {}  # (method, variant) -> seconds of each block
        device = torch.cuda.get_device_name() if on_gpu else "CPU"
        tokens = float(self.unlabeled.lengths.mean())
        print(f"{model}, {device}, torch {torch.__version__}, rows of {tokens:.0f} tokens, two augmentations")

    def classifier(self, kernels: Any) -> Classifier:
        """The classifier anew: whether it packs is determined once per object."""
        return Classifier(self.model, self.tokenizer, self.rows.task, 256, GpuOptions(kernels=kernels))

    def measure(self, method: str, variant: str, recipe: Recipe) -> None:
        """Train from the same weights, on the same batches, and keep the seconds of each block of steps."""
        self.model.load_state_dict(self.weights)
        times: list[float] = []

        def on_step(*_: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())

        with without(*SINGLE_FEATURES.get(variant, ())):
            classifier = self.classifier("torch" if variant == OFF else "auto")
            setup = TrainingSetup(getattr(recipe, method), seed_everything(0), self.accelerator, Monitor(on_step))
            METHODS[method](classifier, self.labeled, self.labels, self.unlabeled, self.augmented, setup)
        self.blocks.setdefault((method, variant), []).extend(np.diff(times).tolist())

    def rate(self, method: str, variant: str) -> float:
        """Steps per second: the median over blocks."""
        return LOG_EVERY / float(np.median(self.blocks[method, variant]))


def print_table(bench: Bench, variants: list[str]) -> None:
    """Print every variant's steps per second, and how many times as many there are with everything on."""
    print(f"\n| steps per second | {' | '.join(variants)} | {ON} / {OFF} |\n|---" + "|---" * (len(variants) + 1) + "|")
    for method in METHODS:
        rates = [bench.rate(method, variant) for variant in variants]
        ratio = bench.rate(method, ON) / bench.rate(method, OFF)
        print(f"| {method} | {' | '.join(f'{rate:.1f}' for rate in rates)} | {ratio:.1f}x |", flush=True)


def main(
    model: Annotated[str, typer.Option(help="clozify-base, clozify-mini, roberta-base, tiny, or a folder.")] = (
        "clozify-base"
    ),
    steps: Annotated[int, typer.Option(help="Steps per measurement, the first 25 uncounted.", min=2 * LOG_EVERY)] = 100,
    alternations: Annotated[int, typer.Option(help="How often every variant is measured.", min=1)] = 2,
    each: Annotated[
        bool, typer.Option("--each", help="Also without graphs, and without padding-free batches.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="No alternation starts that would end later.")] = 45.0,
) -> None:
    """Print the steps per second of UDA and MixText, kernel by kernel and with CUDA graphs and padding-free batches."""
    began = time.monotonic()
    steps -= steps % LOG_EVERY  # whole blocks
    bench = Bench(model)
    recipe = load_recipe("paper", [f"{method}.max_steps={steps}" for method in METHODS])
    variants = [OFF, *(SINGLE_FEATURES if each else ()), ON]
    if torch.cuda.is_available():
        packs = bench.classifier("auto").supports_packing
        print(
            "padding-free batches: "
            + ("UDA's; MixText's are padded to a few widths" if packs else "none, padded to a few widths")
        )
    duration = 0.0
    for index in range(alternations):
        if index and time.monotonic() - began + duration > seconds:
            print(f"Stopped after {index} of {alternations} alternations: another would end after {seconds:g} s.")
            break
        alternation_began = time.monotonic()
        for method in METHODS:
            for variant in variants if index % 2 == 0 else variants[::-1]:
                bench.measure(method, variant, recipe)
        duration = time.monotonic() - alternation_began
    print_table(bench, variants)
    print(f"{time.monotonic() - began:.0f} s in all.")


if __name__ == "__main__":
    typer.run(main)
