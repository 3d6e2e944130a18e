"""How much faster are clozify's training steps and labelling than a straightforward implementation?

Both run in one process, with the same weights (random, since speed does not depend on them) and rows of AG's News or
Yelp (the test files that CLOZIFY_AGNEWS and CLOZIFY_YELP name; else sample text cut to their lengths):

- straightforward: float32, every sequence padded to 256, logits over the vocabulary at every position; a step is 4
  micro-batches of 1 labelled and 3 unlabelled rows, each in its own forward pass; labelling in batches of 8;
- clozify: the steps of a run. One forward pass per step, the head only at the mask and at masked tokens; labelling in
  batches sorted by length; on a GPU in bf16.

    python benchmarks/training.py [--steps 2] [--shape roberta-base] [--task agnews]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from accelerate import Accelerator
from scoring import SHAPES, sample, straightforward
from torch.nn import functional

from clozify.config.recipe import Recipe, load_recipe
from clozify.methods.distill import distill
from clozify.methods.finetune import finetune
from clozify.methods.masking import mask_tokens
from clozify.methods.score import score_rows
from clozify.models.builtin import builtin_folder
from clozify.models.classifier import Classifier
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, seed_everything
from clozify.training.losses import distillation_loss
from clozify.training.optim import make_optimizer


def seconds_of(work: Callable[[], Any]) -> float:
    """The seconds that a function takes, until the device has finished."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def padded(batch: Batch, pad_id: int, device: torch.device) -> dict[str, torch.Tensor]:
    """A batch padded to 256 tokens."""
    extra = ((0, 0), (0, 256 - batch.input_ids.shape[1]))
    return {
        "input_ids": torch.from_numpy(np.pad(batch.input_ids, extra, constant_values=pad_id)).to(device),
        "attention_mask": torch.from_numpy(np.pad(batch.attention_mask, extra)).to(device),
    }


def train_straightforward(module: Any, recipe: Recipe, steps: int, backward: Callable[[], None]) -> None:
    """Straightforward training steps: backward, gradient clipping, the optimizer."""
    optimizer = make_optimizer(module, recipe.finetune)
    module.train()
    for _ in range(steps):
        backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), recipe.finetune.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    module.eval()


def compare(what: str, slow: float, fast: float) -> None:
    """Print both and their ratio."""
    print(f"{what}: straightforward {1000 * slow:.1f} ms, clozify {1000 * fast:.2f} ms: {slow / fast:.1f}x", flush=True)


def main(
    steps: Annotated[int, typer.Option(help="Timed steps; at most 40 of the straightforward way.")] = 3,
    shape: Annotated[str, typer.Option(help="The model's shape.")] = "roberta-base",
    task: Annotated[str, typer.Option(help="The task whose rows are used: agnews or yelp-full.")] = "agnews",
    rows: Annotated[int, typer.Option(help="Rows to label; the straightforward way labels every sixteenth.")] = 128,
) -> None:
    """Print the ratio for a fine-tuning step, for labelling and for a distillation step."""
    torch.manual_seed(0)
    few_steps = min(steps, 40)  # of the straightforward way
    rng = np.random.default_rng(0)
    on_gpu = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu else "no")
    device = accelerator.device
    tokenizer = transformers.AutoTokenizer.from_pretrained(builtin_folder("builtin:mini"))
    data = sample(rows, task)
    labels = len(data.task.labels)
    config = transformers.RobertaConfig(
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        **SHAPES[shape],
    )
    config.num_labels = labels
    model = ClozeModel(transformers.RobertaForMaskedLM(config).to(device), tokenizer, shape)
    pad, base = model.tokenizer.pad_id, load_recipe("paper")
    questions = compile_task(model, data.task)
    question = questions.patterns[0]
    encoded = EncodedRows(question.template, questions.tokenize(model, data, 0, rows), 256)
    words = model.to_device(question.words[0].ids)
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(
        f"{shape}, {where}, torch {torch.__version__}, {task}: {rows} rows of {encoded.lengths.mean():.0f} tokens, "
        f"clozify in {'bf16' if on_gpu else 'float32'}"
    )

    def slow_step() -> None:
        labeled = encoded.batch(rng.permutation(rows)[:4])
        truth = model.to_device(rng.integers(0, labels, 4))
        unlabeled = encoded.batch(rng.permutation(rows)[:12])
        masked, targets = mask_tokens(unlabeled, model.tokenizer, rng, base.finetune.mlm_probability)
        inputs, helpers = padded(labeled, pad, device), padded(masked, pad, device)
        for micro in range(4):
            one = {name: tensor[micro : micro + 1] for name, tensor in inputs.items()}
            logits = model.model(**one).logits  # (1, 256, vocabulary)
            scores = logits[0, int(labeled.mask_positions[micro])][words]
            ce = functional.cross_entropy(scores[None], truth[micro : micro + 1])
            three = {name: tensor[3 * micro : 3 * micro + 3] for name, tensor in helpers.items()}
            wanted = torch.full((3, 256), -100, device=device)
            inside = targets.rows // 3 == micro
            wanted[targets.rows[inside] % 3, targets.positions[inside]] = model.to_device(targets.tokens[inside])
            logits = model.model(**three).logits  # (3, 256, vocabulary)
            mlm = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            ((1 - base.finetune.alpha) * ce + base.finetune.alpha * mlm).div(4).backward()  # type: ignore[no-untyped-call]

    few = encoded  # the same rows serve as T and D
    truth_of_rows = rng.integers(0, labels, rows).astype(np.int16)

    def fast_steps(count: int) -> None:
        settings = base.with_settings([f"finetune.max_steps={count}"]).finetune
        setup = TrainingSetup(settings, seed_everything(0), accelerator)
        finetune(model, question.words[0], few, truth_of_rows, encoded, setup)

    fast_steps(2)
    fast = seconds_of(lambda: fast_steps(steps)) / steps
    train_straightforward(model.model, base, 1, slow_step)
    slow = seconds_of(lambda: train_straightforward(model.model, base, few_steps, slow_step)) / few_steps
    compare("a fine-tuning step", slow, fast)

    sixteenth = data.select(np.arange(0, rows, 16))
    straightforward(model, sixteenth)
    slow = seconds_of(lambda: straightforward(model, sixteenth)) / len(sixteenth)

    tokens = questions.tokenize(model, data, 0, len(data))  # a run tokenises its rows once for all members

    def label() -> None:
        list(score_rows(model, questions, data, tokens=tokens))

    label()
    fast = seconds_of(label) / rows
    compare("labelling a row", slow, fast)
    print(f"rows per second: straightforward {1 / slow:,.1f}, clozify {1 / fast:,.1f}")

    classifier = Classifier(transformers.RobertaForSequenceClassification(config).to(device), tokenizer, data.task, 256)
    unlabeled_rows = classifier.encode(data)
    soft = torch.softmax(torch.randn(rows, labels), dim=-1)

    def slow_distill() -> None:
        chosen = rng.permutation(rows)[:16]
        for start in range(0, 16, 4):
            part = chosen[start : start + 4]
            logits = classifier.model(**padded(unlabeled_rows.batch(part), pad, device)).logits
            distillation_loss(logits, soft[part].to(device)).div(4).backward()  # type: ignore[no-untyped-call]

    def fast_distill(count: int) -> None:
        settings = base.with_settings([f"distill.max_steps={count}"]).distill
        distill(classifier, unlabeled_rows, soft.numpy(), TrainingSetup(settings, rng, accelerator))

    fast_distill(2)
    fast = seconds_of(lambda: fast_distill(steps)) / steps
    train_straightforward(classifier.model, base, 1, slow_distill)
    slow = seconds_of(lambda: train_straightforward(classifier.model, base, few_steps, slow_distill)) / few_steps
    compare("a distillation step", slow, fast)


if __name__ == "__main__":
    typer.run(main)
