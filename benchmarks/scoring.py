"""How much faster does clozify score rows than a straightforward implementation?

Both score rows of the same file with the same pattern and the same weights, in one process:

- straightforward: every row padded to 256 tokens, batches of 8, logits over the vocabulary at every position;
- clozify: fields tokenised once, batches sorted by length, logits at the mask only, for the verbalizer's words only.

Weights are random, since speed does not depend on them. The rows are those of AG's News (the test file that
CLOZIFY_AGNEWS names; else sample text cut to its lengths). The straightforward way takes the same time for every row,
so it is timed on every eighth.

    python benchmarks/scoring.py [--rows 48] [--repeats 3] [--shapes roberta-base,xlm-roberta-base]
"""

from __future__ import annotations

import os
import statistics
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
from clozify.models.builtin import builtin_folder
from clozify.models.cloze import ClozeModel
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
    "tiny": {  # to try a script out
        "vocab_size": 31_000,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}
STRIDE = 8  # every eighth row is scored the straightforward way
FILES = {"agnews": "CLOZIFY_AGNEWS", "yelp-full": "CLOZIFY_YELP"}  # environment variables that name the tasks' rows
# Words of a row (AG's News: of its description) in the test file at the 2nd, 7th, 12th, ... 97th percentile
LENGTHS = {
    "agnews": (14, 19, 22, 23, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 38, 40, 42, 50),
    "yelp-full": (14, 25, 36, 45, 53, 62, 69, 78, 89, 98, 110, 122, 136, 152, 169, 188, 215, 251, 304, 455),
}


def sample(count: int, name: str = "agnews") -> Rows:
    """Rows of a task, or sample text cut to their lengths; the task has its first pattern only."""
    task = load_task(name)
    task = Task.model_validate(task.model_dump() | {"patterns": task.patterns[:1]})
    path = os.environ.get(FILES[name])
    if path:
        rows = read_rows(path, task)
        return rows.select(np.linspace(0, len(rows) - 1, count).astype(int))
    print(f"{FILES[name]} is not set: sample text, cut to the lengths of {name}'s rows, replaces them.")
    source = read_rows("builtin:unlabeled", load_task("debian"))
    words = " ".join(source.texts("description", 0, 2000)).split()
    lengths = [LENGTHS[name][index % len(LENGTHS[name])] for index in range(count)]
    starts = np.cumsum([0, *lengths]) % (len(words) - max(lengths))
    texts = [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=False)]
    headline = "A headline of some seven words or so"
    fields = {field: [headline] * count for field in task.fields} | {task.fields[-1]: texts}
    return Rows(Dataset.from_dict(fields), task)


def straightforward(model: ClozeModel, rows: Rows) -> np.ndarray[Any, Any]:
    """Scores of a straightforward implementation: (rows, labels)."""
    questions = compile_task(model, rows.task)
    question = questions.patterns[0]
    encoded = EncodedRows(question.template, questions.tokenize(model, rows, 0, len(rows)), 256)
    results = []
    for start in range(0, len(rows), 8):
        batch = encoded.batch(np.arange(start, min(start + 8, len(rows))))
        pad = 256 - batch.input_ids.shape[1]
        ids = model.to_device(np.pad(batch.input_ids, ((0, 0), (0, pad)), constant_values=model.tokenizer.pad_id))
        mask = model.to_device(np.pad(batch.attention_mask, ((0, 0), (0, pad))))
        with torch.no_grad():
            logits = model.model(input_ids=ids, attention_mask=mask).logits  # (8, 256, vocabulary)
        at_mask = logits[torch.arange(len(ids)), model.to_device(batch.mask_positions)]
        results.append(at_mask[:, model.to_device(question.words[0].ids)].cpu().numpy())
    return np.concatenate(results)


def clozify_scores(model: ClozeModel, rows: Rows) -> np.ndarray[Any, Any]:
    """clozify's scores: (rows, labels)."""
    questions = compile_task(model, rows.task)
    scores: np.ndarray[Any, Any] = np.concatenate([part for _, part in score_rows(model, questions, rows)], axis=1)[0]
    return scores


def timed(work: Callable[[], np.ndarray[Any, Any]]) -> tuple[float, np.ndarray[Any, Any]]:
    """The seconds that a function takes, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def main(
    rows: Annotated[
        int, typer.Option(help="Rows to score the straightforward way; clozify scores 8 times as many.")
    ] = 48,
    repeats: Annotated[int, typer.Option(help="How often each is timed; the median is reported.")] = 3,
    shapes: Annotated[str, typer.Option(help="Model shapes, separated by commas.")] = "roberta-base,xlm-roberta-base",
) -> None:
    """Print the rows per second of both and the ratio, for each shape."""
    data = sample(rows * STRIDE)
    few = data.select(np.arange(0, len(data), STRIDE))
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    print(f"{len(few)} and {len(data)} rows, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    for shape in shapes.split(","):
        torch.manual_seed(0)
        config = transformers.RobertaConfig(
            max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
        )
        model = ClozeModel(transformers.RobertaForMaskedLM(config), tokenizer, shape)
        clozify_scores(model, data)  # warm-up
        slow, fast = [], []
        for _ in range(repeats):
            seconds, expected = timed(lambda model=model: straightforward(model, few))  # type: ignore[misc]
            slow.append(seconds)
            seconds, scores = timed(lambda model=model: clozify_scores(model, data))  # type: ignore[misc]
            fast.append(seconds)
        rate, clozify_rate = len(few) / statistics.median(slow), len(data) / statistics.median(fast)
        difference = float(np.abs(scores[::STRIDE] - expected).max())
        print(
            f"{shape}: straightforward {rate:.2f} rows/s, clozify {clozify_rate:.2f} rows/s: "
            f"{clozify_rate / rate:.1f}x; "
            f"largest difference of a score {difference:.1e}"
        )


if __name__ == "__main__":
    typer.run(main)
