"""The paper's Yelp experiment with 10 examples on one GPU: each stage's time and arithmetic rate.

12 ensemble members (4 patterns, 3 seeds) of 1,000 steps with the auxiliary task, each labelling 50,000 rows, and a
classifier of 5,000 steps, in RoBERTa-large's shape, by `clozify.train`. The classifier is trained once, not three times
as in a run with the paper's recipe. Weights are random, since speed does not depend on them. The rows have Yelp's
lengths: CLOZIFY_YELP names a file of them (headerless: stars, text), whose texts are repeated with their words
shuffled.

    CLOZIFY_YELP=test.csv python benchmarks/gpu.py --output runs [--at-once 2] [--shape roberta-large]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import transformers
import typer
from scoring import SHAPES

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import load_task
from clozify.data.rows import read_rows
from clozify.models.builtin import builtin_folder
from clozify.runs.plan import Plan
from clozify.runs.tracking import Tracking
from clozify.training.loop import LOG_EVERY

PEAK = 989e12  # an H200's matrix rate in bf16, without sparsity


def make_model(folder: Path, shape: str) -> int:
    """Save a masked language model with random weights; returns the number of its encoder's parameters."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    config = transformers.RobertaConfig(
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[shape],
    )
    torch.manual_seed(0)
    model = transformers.RobertaForMaskedLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.roberta.encoder.parameters())


def make_rows(folder: Path, count: int) -> float:
    """Write ten labelled and `count` unlabelled rows of Yelp's lengths; returns the mean number of tokens per row."""
    source = os.environ.get("CLOZIFY_YELP")
    if not source:
        sys.exit("Set CLOZIFY_YELP to a file with Yelp's rows: it does not come with clozify.")
    rows = read_rows(source, load_task("yelp-full"))
    texts, rng = rows.texts("text", 0, len(rows)), np.random.default_rng(0)
    with (folder / "unlabeled.jsonl").open("w") as unlabeled:
        for index in range(count):
            words = texts[index % len(texts)].split()
            unlabeled.write(json.dumps({"text": " ".join(rng.permutation(words).tolist())}) + "\n")
    with (folder / "labeled.jsonl").open("w") as labeled:
        for index in range(10):
            labeled.write(json.dumps({"label": str(1 + index % 5), "text": texts[-1 - index]}) + "\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    token_ids = tokenizer(texts[:1000], truncation=True, max_length=256)["input_ids"]
    return float(np.mean([len(ids) for ids in token_ids]))


def train_one_classifier() -> None:
    """Make runs train their classifier once; the members are trained as often as usual."""
    all_seeds = Plan.seeds

    def seeds(plan: Plan, trainings: int = 1) -> list[list[int]]:
        drawn = all_seeds(plan, trainings)
        return drawn if trainings > 1 else [drawn[0][:1]]

    Plan.seeds = seeds  # type: ignore[method-assign,assignment]


def note_first_losses() -> dict[str, float]:
    """The time of the first loss of each training, by its name; filled by runs from now on."""
    times: dict[str, float] = {}
    log_loss = Tracking.log_loss

    def log_timed(tracking: Tracking, name: str, step: int, loss: float) -> None:
        times.setdefault(name, time.time())
        log_loss(tracking, name, step, loss)

    Tracking.log_loss = log_timed  # type: ignore[method-assign,assignment]
    return times


def main(
    output: Annotated[Path, typer.Option(help="Folder of the model, the rows and the run; an earlier run is deleted.")],
    shape: Annotated[str, typer.Option(help="roberta-large, roberta-base or tiny.")] = "roberta-large",
    rows: Annotated[int, typer.Option(help="Unlabelled rows.")] = 50_000,
    at_once: Annotated[int | None, typer.Option(help="Members trained at a time.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
) -> None:
    """Run the experiment and print each stage's time, rate and fraction of the GPU's peak rate."""
    from clozify import train

    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output / "run", ignore_errors=True)
    parameters, tokens = make_model(output / "model", shape), make_rows(output, rows)
    recipe = load_recipe("paper", settings or [])
    train_one_classifier()
    first_losses = note_first_losses()
    began = time.time()

    def log(line: str) -> None:
        print(f"[{time.time() - began:6.0f} s] {line}", file=sys.stderr, flush=True)

    train(
        "yelp-full",
        output / "labeled.jsonl",
        output / "run",
        at_once=at_once,
        unlabeled=output / "unlabeled.jsonl",
        model=output / "model",
        recipe=recipe,
        log=log,
    )
    ended = time.time()
    report(output / "run", began, ended, recipe, parameters, tokens, rows)
    print_timeline(output / "run", began, ended, first_losses)


def report(run: Path, began: float, ended: float, recipe: Recipe, parameters: int, tokens: float, rows: int) -> None:
    """Print each stage's seconds and arithmetic, and the time of the whole run."""
    files = list(run.glob("members/*/member.json"))
    members = [json.loads(path.read_text()) for path in files]
    classifiers = [json.loads(path.read_text()) for path in run.glob("classifiers/*/classifier.json")]
    last, elapsed = max(path.stat().st_mtime for path in files) - began, ended - began
    training = sum(member["training_seconds"] for member in members)
    labelling = sum(member["seconds"] - member["training_seconds"] for member in members)
    step_flop = 6 * parameters * tokens * 16  # forward and backward, 16 rows
    stages = {
        "members: training": (training, len(members) * recipe.finetune.max_steps * step_flop),
        "members: labelling": (labelling, 2 * parameters * tokens * len(members) * rows),
        "classifier": (sum(c["seconds"] for c in classifiers), len(classifiers) * recipe.distill.max_steps * step_flop),
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, {parameters / 1e6:.0f} M parameters in the encoder, {tokens:.0f} tokens a row, {rows:,} rows")
    print("| stage | seconds, summed over processes | TFLOP | TFLOP/s | share of the peak |\n|---|---|---|---|---|")
    for name, (seconds, arithmetic) in stages.items():
        rate = arithmetic / max(seconds, 1e-9)
        print(f"| {name} | {seconds:.0f} | {arithmetic / 1e12:,.0f} | {rate / 1e12:.0f} | {100 * rate / PEAK:.0f}% |")
    total = sum(arithmetic for _, arithmetic in stages.values())
    print(f"{len(members)} members after {last:.0f} s, all after {elapsed:.0f} s ({elapsed / 60:.1f} minutes):")
    print(f"{total / 1e12 / elapsed:.0f} TFLOP/s, {100 * total / elapsed / PEAK:.0f}% of an H200's {PEAK / 1e12:.0f}.")


def print_timeline(run: Path, began: float, ended: float, first_losses: dict[str, float]) -> None:
    """Print when each stage was reached; losses are read every `LOG_EVERY` steps."""
    first = {
        kind: min(at for name, at in first_losses.items() if name.startswith(kind)) for kind in ("member", "class")
    }
    reached = {
        f"the first {LOG_EVERY} steps of a member": first["member"],
        "all members": max(path.stat().st_mtime for path in run.glob("members/*/member.json")),
        "as many of the classifier": first["class"],
        "the classifier": max(path.stat().st_mtime for path in run.glob("classifiers/*/classifier.json")),
        "the run": ended,
    }
    print("timeline: " + ", ".join(f"{name} after {at - began:.1f} s" for name, at in reached.items()))


if __name__ == "__main__":
    typer.run(main)
