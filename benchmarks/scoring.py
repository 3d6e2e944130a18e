"""How much faster is scoring at the mask than the straightforward way?

Both score rows of the same file with the same pattern and the same weights, in one run on this machine:

- straightforward: every row padded to 256 tokens, batches of 8, logits over the vocabulary at every position;
- clozify: fields tokenised once, rows of like length together, the head at the mask for the labels' words alone.

Weights are random: speed does not depend on them. Texts have the lengths of AG's News: its own test file where
the variable CLOZIFY_AGNEWS names it, else the sample data's words cut to the same lengths. The straightforward
way costs the same for every row, so it is timed on every eighth.

    python benchmarks/scoring.py [--rows 48] [--repeats 3] [--shapes roberta-base,xlm-roberta-base]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from datasets import Dataset

from clozify.config.task import Task, load_task
from clozify.data.rows import Rows, read_rows
from clozify.methods.score import score_rows
from clozify.models.cloze import BUILTIN, ClozeModel
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows

SHAPES: dict[str, dict[str, Any]] = {
    "roberta-base": {"vocab_size": 50_265},
    "xlm-roberta-base": {"vocab_size": 250_002},
    "roberta-large": {
        "vocab_size": 50_265,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    },
}
SHARE = 8  # one row in so many is scored the straightforward way
# Words of a description in AG's News' test file at the 2nd, 7th, 12th, ... 97th percentile
LENGTHS = (14, 19, 22, 23, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 38, 40, 42, 50)


def sample(count: int, name: str = "agnews") -> Rows:
    """Rows with the lengths of AG's News, or Yelp's own; the task is theirs with its first pattern alone."""
    task = load_task(name)
    task = Task.model_validate(task.model_dump() | {"patterns": task.patterns[:1]})
    variable = {"agnews": "CLOZIFY_AGNEWS", "yelp-full": "CLOZIFY_YELP"}[name]
    place = os.environ.get(variable)
    if name != "agnews" and not place:
        sys.exit(f"Set {variable} to a file with Yelp's rows: it does not come with clozify.")
    if place:
        rows = read_rows(place, task)
        return rows.select(np.linspace(0, len(rows) - 1, count).astype(int))
    print("CLOZIFY_AGNEWS is not set: the sample data's words, cut to the lengths of AG's News, stand in for its rows.")
    source = read_rows("builtin:unlabeled", load_task("debian"))
    words = " ".join(source.texts("description", 0, 2000)).split()
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(count)]
    starts = np.cumsum([0, *lengths])
    texts = [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=False)]
    return Rows(
        Dataset.from_dict({"title": ["A headline of some seven words or so"] * count, "description": texts}), task
    )


def straightforward(model: ClozeModel, rows: Rows) -> np.ndarray[Any, Any]:
    """Padded to 256, batches of 8, the whole vocabulary at every position."""
    questions = compile_task(model, rows.task)
    question = questions.patterns[0]
    encoded = EncodedRows(question.template, questions.tokenize(model, rows, 0, len(rows)), 256)
    found = []
    for start in range(0, len(rows), 8):
        batch = encoded.batch(np.arange(start, min(start + 8, len(rows))))
        pad = 256 - batch.input_ids.shape[1]
        ids = model.tensor(np.pad(batch.input_ids, ((0, 0), (0, pad)), constant_values=model.tokenizer.pad_id))
        mask = model.tensor(np.pad(batch.attention_mask, ((0, 0), (0, pad))))
        with torch.no_grad():
            logits = model.model(input_ids=ids, attention_mask=mask).logits  # (8, 256, vocabulary)
        at_mask = logits[torch.arange(len(ids)), model.tensor(batch.mask_positions)]
        found.append(at_mask[:, model.tensor(question.words[0].ids)].cpu().numpy())
    return np.concatenate(found)


def lean(model: ClozeModel, rows: Rows) -> np.ndarray[Any, Any]:
    """clozify's way."""
    questions = compile_task(model, rows.task)
    scores: np.ndarray[Any, Any] = np.concatenate([part for _, part in score_rows(model, questions, rows)], axis=1)[0]
    return scores


def timed(work: Callable[[], np.ndarray[Any, Any]]) -> tuple[float, np.ndarray[Any, Any]]:
    """Seconds and what came out."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def main(
    rows: Annotated[
        int, typer.Option(help="Rows to score the straightforward way; clozify scores 8 times as many.")
    ] = 48,
    repeats: Annotated[int, typer.Option(help="How often each is timed; the median counts.")] = 3,
    shapes: Annotated[
        str, typer.Option(help="Which shapes, with commas between them.")
    ] = "roberta-base,xlm-roberta-base",
) -> None:
    """Print each shape's rows a second, both ways, and the ratio."""
    data = sample(rows * SHARE)
    few = data.select(np.arange(0, len(data), SHARE))
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN)
    print(f"{len(few)} and {len(data)} rows, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    for shape in shapes.split(","):
        torch.manual_seed(0)
        config = transformers.RobertaConfig(
            max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
        )
        model = ClozeModel(transformers.RobertaForMaskedLM(config), tokenizer, shape)
        lean(model, data)  # warm-up
        slow, fast = [], []
        for _ in range(repeats):
            seconds, expected = timed(lambda model=model: straightforward(model, few))  # type: ignore[misc]
            slow.append(seconds)
            seconds, scores = timed(lambda model=model: lean(model, data))  # type: ignore[misc]
            fast.append(seconds)
        rate, lean_rate = len(few) / statistics.median(slow), len(data) / statistics.median(fast)
        difference = float(np.abs(scores[::SHARE] - expected).max())
        print(
            f"{shape}: straightforward {rate:.2f} rows/s, clozify {lean_rate:.2f} rows/s: {lean_rate / rate:.1f}x; "
            f"largest difference of a score {difference:.1e}"
        )


if __name__ == "__main__":
    typer.run(main)
