"""What 150 labels cost: the time a row with few and with many labels, on the same rows, in turns.

    python benchmarks/labels.py [--few 4] [--many 150] [--rows 256] [--steps 20] [--turns 3] [--model builtin]

The labels are made up: words of the model's vocabulary, one or two of them a label, and every row gets one at random.
Measured are the scores of a pair, a member's fine-tuning, the classifier's distillation and scores, and predictions
written as CSV and as JSONL. Each turn measures few and many labels one after the other; shown are the medians of the
turns and their ratio.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from accelerate import Accelerator

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, load_task
from clozify.data.in_memory import load_rows
from clozify.data.predictions import write_predictions
from clozify.data.rows import Rows, read_rows
from clozify.methods.distill import distill
from clozify.methods.finetune import finetune
from clozify.methods.score import TOKENS_PER_BATCH, score_rows
from clozify.models.classifier import new_classifier
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.training.loop import Monitor, TrainingSetup, seed_everything


def make_task(model: ClozeModel, labels: int) -> Task:
    """A task with made-up labels: every other one has a word of two tokens."""
    tokenizer = model.tokenizer
    vocabulary = (tokenizer.decode([token]) for token in range(len(tokenizer.is_special)))
    words = [word for word in vocabulary if word.isalpha() and word.islower() and len(word) > 4]
    words = [word for word in words if len(tokenizer.encode_after_slot(" ", word)) == 1][: 3 * labels]
    names = {f"label_{n}": " ".join(words[3 * n : 3 * n + 1 + n % 2]) for n in range(labels)}
    return load_task({"fields": ["text"], "patterns": ["{text} It is about {mask}."], "labels": names})


@dataclass
class Work:
    """The steps of a run on rows with made-up labels."""

    model: ClozeModel
    name: str
    rows: Rows
    recipe: Recipe

    def __post_init__(self) -> None:
        labels = len(self.rows.task.labels)
        rng = np.random.default_rng(0)
        self.prompts = compile_task(self.model, self.rows.task)
        self.labels = rng.integers(labels, size=len(self.rows)).astype(np.int16)
        self.targets = rng.dirichlet(np.ones(labels), size=len(self.rows)).astype(np.float32)
        self.weights = {key: value.clone() for key, value in self.model.model.state_dict().items()}
        self.classifier = new_classifier(self.name, self.rows.task, self.recipe, "cpu")

    def score(self) -> int:
        """Score the rows with the pair; returns their number."""
        for _ in score_rows(self.model, self.prompts, self.rows, self.recipe.max_seq_length):
            pass
        return len(self.rows)

    def finetune(self) -> int:
        """Fine-tune a member, and undo that; returns the rows of all steps."""
        settings = self.recipe.finetune_without_lm
        (pattern,) = self.prompts.patterns
        tokens = self.prompts.tokenize(self.model, self.rows, 0, len(self.rows))
        encoded = EncodedRows(pattern.template, tokens, self.recipe.max_seq_length)
        setup = TrainingSetup(settings, seed_everything(0), Accelerator(cpu=True), Monitor(), False)
        finetune(self.model, pattern.words[0], encoded, self.labels, None, setup)
        self.model.model.load_state_dict(self.weights, strict=False)
        return settings.steps(len(self.rows)) * settings.rows_per_step

    def distill(self) -> int:
        """Train the classifier on soft labels; returns the rows of all steps."""
        settings = self.recipe.distill
        setup = TrainingSetup(settings, seed_everything(0), Accelerator(cpu=True), Monitor(), False)
        distill(self.classifier, self.classifier.encode(self.rows), self.targets, setup)
        return settings.steps(len(self.rows)) * settings.rows_per_step

    def classify(self) -> int:
        """Score the rows with the classifier; returns their number."""
        for _ in self.classifier.score_rows(self.rows, TOKENS_PER_BATCH["cpu"]):
            pass
        return len(self.rows)

    def write(self, suffix: str) -> int:
        """Write the rows' predictions; returns their number."""
        with tempfile.TemporaryDirectory() as folder:
            write_predictions(Path(folder) / f"out{suffix}", self.rows, [(0, self.targets.astype(np.float64))])
        return len(self.rows)


def milliseconds(work: Callable[[], int]) -> float:
    """The milliseconds a row."""
    started = time.perf_counter()
    rows = work()
    return 1000 * (time.perf_counter() - started) / rows


def main(
    few: Annotated[int, typer.Option(help="A number of labels.")] = 4,
    many: Annotated[int, typer.Option(help="A larger one.")] = 150,
    rows: Annotated[int, typer.Option(help="Rows of the sample data.")] = 256,
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = 20,
    turns: Annotated[int, typer.Option(help="Measurements of each kind.")] = 3,
    model: Annotated[str, typer.Option(help="The model.")] = "builtin",
) -> None:
    """Print milliseconds a row with few and with many labels, and their ratio."""
    sample = read_rows("builtin:unlabeled", load_task("debian"))
    texts = sample.texts("summary", 0, rows)
    settings = [f"{section}.max_steps={steps}" for section in ("finetune_without_lm", "distill")]
    recipe = load_recipe("auto", [*settings, "max_seq_length=64"])
    cloze, works = load_model(model), {}
    for count in (few, many):
        works[count] = Work(cloze, model, load_rows(texts, make_task(cloze, count)), recipe)
    kinds: dict[str, Callable[[Work], int]] = {
        "scores of a pair": Work.score,
        "fine-tuning of a member": Work.finetune,
        "distillation": Work.distill,
        "scores of the classifier": Work.classify,
        "predictions as CSV": lambda work: work.write(".csv"),
        "predictions as JSONL": lambda work: work.write(".jsonl"),
    }
    print(f"| ms a row, {rows} rows, {model} | {few} labels | {many} labels | ratio |\n|---|---:|---:|---:|")
    for name, kind in kinds.items():
        seconds: dict[int, list[float]] = {few: [], many: []}
        for turn in range(-1, turns):  # the first turn initialises libraries
            for count in (few, many) if turn % 2 else (many, few):
                value = milliseconds(partial(kind, works[count]))
                if turn >= 0:
                    seconds[count].append(value)
        medians = [float(np.median(seconds[count])) for count in (few, many)]
        print(f"| {name} | {medians[0]:.3f} | {medians[1]:.3f} | {medians[1] / medians[0]:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
