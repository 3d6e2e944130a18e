"""The paper's Yelp experiment with 10 examples, whole, on this machine's GPU: each stage's time and share of the chip.

12 members (4 patterns, 3 seeds) of 1,000 steps with the auxiliary task, each labelling 50,000 rows, and a classifier of
5,000 steps, in the shape of RoBERTa-large, by `clozify.train` as a user would call it; but a run trains its classifier
three times, to see how far it varies, and here it does so once. Weights are random, since speed does not depend on
them; the rows have Yelp's lengths: the variable CLOZIFY_YELP names a file of them (headerless:
stars, text), which is repeated, each time with its words shuffled, until there are enough.

    CLOZIFY_YELP=test.csv python benchmarks/gpu.py --output runs [--at-once 2] [--shape roberta-large]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from scoring import SHAPES

from clozify.config.task import load_task
from clozify.data.rows import read_rows
from clozify.models.loading import BUILTIN
from clozify.runs.plan import Plan

PEAK = 989e12  # an H200's matrix rate in bf16, without sparsity


def make_model(folder: Path, shape: str) -> int:
    """A random masked language model in this shape, with the built-in tokenizer; returns its encoder's parameters."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN)
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
    """Ten labelled rows and a pile of so many, with Yelp's lengths; returns the mean number of tokens of a row."""
    source = os.environ.get("CLOZIFY_YELP")
    if not source:
        sys.exit("Set CLOZIFY_YELP to a file with Yelp's rows: it does not come with clozify.")
    rows = read_rows(source, load_task("yelp-full"))
    texts, rng = rows.texts("text", 0, len(rows)), np.random.default_rng(0)
    with (folder / "pile.jsonl").open("w") as pile:
        for number in range(count):
            words = texts[number % len(texts)].split()
            pile.write(json.dumps({"text": " ".join(rng.permutation(words).tolist())}) + "\n")
    with (folder / "labeled.jsonl").open("w") as labeled:
        for number in range(10):
            labeled.write(json.dumps({"label": str(1 + number % 5), "text": texts[-1 - number]}) + "\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN)
    some = tokenizer(texts[:1000], truncation=True, max_length=256)["input_ids"]
    return float(np.mean([len(ids) for ids in some]))


def train_one_classifier() -> None:
    """Have a run train its classifier once, and its members as often as ever."""
    seeds_of = Plan.seeds

    def seeds(plan: Plan, trainings: int = 1) -> list[list[int]]:
        found = seeds_of(plan, trainings)
        return found if trainings > 1 else [found[0][:1]]

    Plan.seeds = seeds  # type: ignore[method-assign,assignment]


def main(
    output: Annotated[Path, typer.Option(help="Where the model, the rows and the run go; the run is made anew.")],
    shape: Annotated[str, typer.Option(help="roberta-large, roberta-base or tiny.")] = "roberta-large",
    rows: Annotated[int, typer.Option(help="Unlabelled rows.")] = 50_000,
    at_once: Annotated[int | None, typer.Option(help="Members at a time.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
) -> None:
    """Run the experiment and print each stage's time, rate and share of the chip's matrix rate."""
    from clozify import train
    from clozify.config.recipe import load_recipe

    output.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output / "run", ignore_errors=True)
    parameters, tokens = make_model(output / "model", shape), make_rows(output, rows)
    recipe = load_recipe("paper", settings or [])
    train_one_classifier()
    began, said = time.monotonic(), list[tuple[float, str]]()

    def say(line: str) -> None:
        said.append((time.monotonic() - began, line))
        print(f"[{said[-1][0]:6.0f} s] {line}", file=sys.stderr, flush=True)

    train(
        "yelp-full",
        output / "labeled.jsonl",
        output / "run",
        at_once=at_once,
        unlabeled=output / "pile.jsonl",
        model=output / "model",
        recipe=recipe,
        log=say,
    )
    whole = time.monotonic() - began
    report(output / "run", whole, said, recipe, parameters, tokens, rows)


def report(
    run: Path, whole: float, said: list[tuple[float, str]], recipe: Any, parameters: int, tokens: float, rows: int
) -> None:
    """Each stage: how long it took from end to end, how much of that was work, and the arithmetic it did."""
    members = [json.loads(path.read_text()) for path in run.glob("members/*/member.json")]
    classifiers = [json.loads(path.read_text()) for path in run.glob("classifiers/*/classifier.json")]
    last = max(seconds for seconds, line in said if line.startswith("member"))
    training = sum(member["training_seconds"] for member in members)
    labelling = sum(member["seconds"] - member["training_seconds"] for member in members)
    a_step = 6 * parameters * tokens * 16  # forward and backward, 16 rows
    of = {
        "members: training": (training, len(members) * recipe.finetune.max_steps * a_step),
        "members: labelling": (labelling, 2 * parameters * tokens * len(members) * rows),
        "classifier": (sum(c["seconds"] for c in classifiers), len(classifiers) * recipe.distill.max_steps * a_step),
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, {parameters / 1e6:.0f} M parameters in the encoder, {tokens:.0f} tokens a row, {rows:,} rows")
    print("| stage | seconds, summed over processes | TFLOP | TFLOP/s | share of the chip |\n|---|---|---|---|---|")
    for name, (seconds, arithmetic) in of.items():
        rate = arithmetic / max(seconds, 1e-9)
        print(f"| {name} | {seconds:.0f} | {arithmetic / 1e12:,.0f} | {rate / 1e12:.0f} | {100 * rate / PEAK:.0f}% |")
    total = sum(arithmetic for _, arithmetic in of.values())
    print(f"{len(members)} members after {last:.0f} s, all after {whole:.0f} s ({whole / 60:.1f} minutes):")
    print(f"{total / 1e12 / whole:.0f} TFLOP/s, {100 * total / whole / PEAK:.0f}% of an H200's {PEAK / 1e12:.0f}.")


if __name__ == "__main__":
    typer.run(main)
