"""How much do scores in fp8 differ from those in bf16? Fine-tuned pairs label rows of AG's News on a GPU.

Every pair is fine-tuned on the first rows of CLOZIFY_AGNEWS (a labelled file) and then scores others of them in
float32, bf16 and fp8. Printed are, against bf16, for each pair's probabilities (temperature 1) and for the soft labels
of the ensemble (the mean of the pairs' scores at temperature 2): the mean and the largest absolute difference, the rows
whose label changes, the rank correlation of the rows' highest probabilities, and the accuracy. float32 against bf16 is
the yardstick.

    CLOZIFY_AGNEWS=test.csv python benchmarks/fp8.py --model clozify-base [--rows 4000] [--labeled 40] [--steps 100]
"""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, Any

import numpy as np
import torch
import typer
from accelerate import Accelerator
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import spearmanr

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.data.rows import Rows, read_rows
from clozify.gpu.options import GpuOptions
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.training.loop import TrainingSetup, seed_everything

OPTIONS = {
    "bf16": GpuOptions(gpu_scoring="bf16"),
    "fp8": GpuOptions(gpu_scoring="fp8"),
    "float32": GpuOptions(precision="float32"),
}


def finetuned_scores(
    cloze: ClozeModel, data: Rows, pair: int, labeled: int, rows: int, steps: int
) -> tuple[dict[str, NDArray[np.float32]], dict[str, float]]:
    """A pair's scores by precision, (rows, labels), after fine-tuning; and the rows scored in a second."""
    training, scored = data.select(np.arange(labeled)), data.select(np.arange(labeled, labeled + rows))
    prompts = compile_task(cloze, data.task).for_pair(pair, None)
    (pattern,) = prompts.patterns
    if steps:
        encoded = EncodedRows(pattern.template, prompts.tokenize(cloze, training, 0, labeled), 128)
        settings = load_recipe("paper", [f"finetune_without_lm.max_steps={steps}"]).finetune_without_lm
        setup = TrainingSetup(settings, seed_everything(pair), Accelerator(mixed_precision="bf16"))
        cloze.options = GpuOptions()
        finetune(cloze, pattern.words[0], encoded, training.targets, None, setup)
    tokens = prompts.tokenize(cloze, scored, 0, len(scored))
    scores: dict[str, NDArray[np.float32]] = {}
    rates: dict[str, float] = {}
    for name, options in OPTIONS.items():
        cloze.options = options
        for _ in range(2):  # the first compiles kernels
            began = time.perf_counter()
            scores[name] = np.concatenate([s for _, s in score_rows(cloze, prompts, scored, tokens=tokens)], axis=1)[0]
            rates[name] = len(scored) / (time.perf_counter() - began)
    return scores, rates


def print_differences(
    title: str, probabilities: dict[str, NDArray[np.float64]], truth: NDArray[np.integer[Any]]
) -> None:
    """Print a line for each precision: how its probabilities, (rows, labels), differ from those in bf16."""
    reference = probabilities["bf16"]
    for name, values in probabilities.items():
        difference = np.abs(values - reference)
        changed = (values.argmax(axis=1) != reference.argmax(axis=1)).mean()
        ranks = spearmanr(values.max(axis=1), reference.max(axis=1)).statistic
        accuracy = (values.argmax(axis=1) == truth).mean()
        cells = f"{difference.mean():.4f} | {difference.max():.4f} | {100 * changed:.2f}% | {ranks:.4f}"
        print(f"| {title} | {name} | {cells} | {100 * accuracy:.2f}% |", flush=True)


def main(
    model: Annotated[str, typer.Option(help="Folder or name of the masked language model.")] = "builtin",
    rows: Annotated[int, typer.Option(help="Rows to score.")] = 4000,
    labeled: Annotated[int, typer.Option(help="Rows to fine-tune on.")] = 40,
    steps: Annotated[int, typer.Option(help="Steps of fine-tuning; 0: the pretrained model.")] = 100,
) -> None:
    """Print how scores in fp8 and in float32 differ from those in bf16."""
    path = os.environ.get("CLOZIFY_AGNEWS")
    if not path or not torch.cuda.is_available():
        sys.exit("This needs a CUDA device and CLOZIFY_AGNEWS, a file with AG's News' rows.")
    data = read_rows(path, load_task("agnews"))
    rows = min(rows, len(data) - labeled)
    truth = data.targets[labeled : labeled + rows]
    pairs = len(data.task.patterns)
    print(f"{model}, {torch.cuda.get_device_name()}, {rows:,} rows of AG's News, {pairs} pairs, {steps} steps each")
    print("| | | mean abs. difference | largest | labels changed | rank correlation | accuracy |")
    print("|---" * 7 + "|")
    totals: dict[str, NDArray[np.float64]] = {}
    for pair in range(pairs):
        scores, rates = finetuned_scores(load_model(model, "cuda"), data, pair, labeled, rows, steps)
        print_differences(f"pair {pair}", {name: softmax(values, axis=1) for name, values in scores.items()}, truth)
        totals = {name: totals.get(name, 0) + values.astype(np.float64) for name, values in scores.items()}
    print_differences("soft labels", {name: softmax(v / pairs / 2, axis=1) for name, v in totals.items()}, truth)
    print("rows/s: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))


if __name__ == "__main__":
    typer.run(main)
