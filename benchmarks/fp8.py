"""How much do scores in fp8 differ from those in bf16? A fine-tuned pair labels rows of AG's News on a GPU.

A pair is fine-tuned on the first rows of CLOZIFY_AGNEWS (a labelled file) and then scores others of them in float32,
bf16 and fp8. Printed are, against bf16, the mean and the largest absolute difference of probabilities, the rows whose
label changes, the rank correlation of the rows' highest probabilities, and the accuracy; float32 against bf16 is the
yardstick.

    CLOZIFY_AGNEWS=test.csv python benchmarks/fp8.py --model clozify-base [--rows 4000] [--labeled 40] [--steps 100]
"""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import numpy as np
import torch
import typer
from accelerate import Accelerator
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import spearmanr

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.data.rows import read_rows
from clozify.gpu.options import GpuOptions
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.training.loop import TrainingSetup, seed_everything

OPTIONS = {
    "bf16": GpuOptions(scoring="bf16"),
    "fp8": GpuOptions(scoring="fp8"),
    "float32": GpuOptions(precision="float32"),
}


def main(
    model: Annotated[str, typer.Option(help="Folder or name of the masked language model.")] = "builtin",
    rows: Annotated[int, typer.Option(help="Rows to score.")] = 4000,
    labeled: Annotated[int, typer.Option(help="Rows to fine-tune on.")] = 40,
    steps: Annotated[int, typer.Option(help="Steps of fine-tuning; 0: the pretrained model.")] = 100,
    pair: Annotated[int, typer.Option(help="The pair's index.")] = 1,
) -> None:
    """Print how scores in fp8 and in float32 differ from those in bf16."""
    path = os.environ.get("CLOZIFY_AGNEWS")
    if not path or not torch.cuda.is_available():
        sys.exit("This needs a CUDA device and CLOZIFY_AGNEWS, a file with AG's News' rows.")
    accelerator = Accelerator(mixed_precision="bf16")
    data, cloze = read_rows(path, load_task("agnews")), load_model(model, "cuda")
    training, scored = data.select(np.arange(labeled)), data.select(np.arange(labeled, min(len(data), labeled + rows)))
    prompts = compile_task(cloze, data.task).for_pair(pair, None)
    if steps:
        (pattern,) = prompts.patterns
        encoded = EncodedRows(pattern.template, prompts.tokenize(cloze, training, 0, labeled), 128)
        settings = load_recipe("paper", [f"finetune_without_lm.max_steps={steps}"]).finetune_without_lm
        setup = TrainingSetup(settings, seed_everything(0), accelerator)
        finetune(cloze, pattern.words[0], encoded, training.targets, None, setup)
    tokens = prompts.tokenize(cloze, scored, 0, len(scored))
    print(f"{model}, {torch.cuda.get_device_name()}, {len(scored):,} rows of AG's News, pair {pair}, {steps} steps")
    scores: dict[str, NDArray[np.float32]] = {}
    for name, options in OPTIONS.items():
        cloze.options = options
        for _ in range(2):  # the first compiles kernels
            began = time.perf_counter()
            scores[name] = np.concatenate([s for _, s in score_rows(cloze, prompts, scored, tokens=tokens)], axis=1)[0]
            seconds = time.perf_counter() - began
        print(f"{name}: {len(scored) / seconds:,.0f} rows/s")
    reference = softmax(scores["bf16"], axis=1)
    print("| against bf16 | mean abs. difference | largest | labels changed | rank correlation | accuracy |")
    print("|---|---|---|---|---|---|")
    for name in OPTIONS:
        probabilities = softmax(scores[name], axis=1)
        difference = np.abs(probabilities - reference)
        changed = (probabilities.argmax(axis=1) != reference.argmax(axis=1)).mean()
        ranks = spearmanr(probabilities.max(axis=1), reference.max(axis=1)).statistic
        accuracy = (probabilities.argmax(axis=1) == scored.targets).mean()
        cells = f"{difference.mean():.4f} | {difference.max():.4f} | {100 * changed:.2f}% | {ranks:.4f}"
        print(f"| {name} | {cells} | {100 * accuracy:.2f}% |")


if __name__ == "__main__":
    typer.run(main)
