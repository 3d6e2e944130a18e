"""How much faster are a training step, labelling and a distillation step than the straightforward way?

In one run on this machine, with the same weights (random: speed does not depend on them) and rows of the lengths of
AG's News (its own rows where CLOZIFY_AGNEWS names its test file):

- straightforward: float32, every sequence padded to 256, logits over the vocabulary at every position; a step is 4
  micro-batches of 1 labelled and 3 unlabelled rows, each kind in a forward pass of its own; labelling in batches of 8;
- clozify: one forward pass a step without padding between rows of like length, the head only at the cloze slot and at
  masked tokens; labelling in length-sorted batches.

    python benchmarks/training.py [--steps 2] [--shape roberta-base]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from scoring import SHAPES, lean, sample, straightforward
from torch.nn import functional

from clozify.classifier import Classifier
from clozify.cloze import BUILTIN, ClozeModel
from clozify.encode import Batch, Encoded
from clozify.losses import distillation
from clozify.questions import ask
from clozify.recipe import Finetune, Training
from clozify.steps.finetune import _joint_loss, mask_tokens
from clozify.training import make_optimizer


def padded(batch: Batch, pad_id: int) -> dict[str, torch.Tensor]:
    """A batch padded to 256 tokens."""
    extra = ((0, 0), (0, 256 - batch.input_ids.shape[1]))
    return {
        "input_ids": torch.from_numpy(np.pad(batch.input_ids, extra, constant_values=pad_id)),
        "attention_mask": torch.from_numpy(np.pad(batch.attention_mask, extra)),
    }


def timed(module: Any, settings: Training, steps: int, backward: Callable[[], None]) -> float:
    """The median seconds of a step: backward, clipped gradients, the optimizer."""
    optimizer = make_optimizer(module, settings)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main(
    steps: Annotated[int, typer.Option(help="Steps timed each way; the median counts.")] = 3,
    shape: Annotated[str, typer.Option(help="Which shape.")] = "roberta-base",
) -> None:
    """Print the ratio for a fine-tuning step, for labelling and for a distillation step."""
    torch.manual_seed(0)
    chance = np.random.default_rng(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN)
    config = transformers.RobertaConfig(
        max_position_embeddings=514, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
    )
    model = ClozeModel(transformers.RobertaForMaskedLM(config), tokenizer, shape)
    pad, settings = model.tokens.pad_id, Finetune()
    rows = sample(128)
    questions = ask(model, rows.task)
    question = questions.asked[0]
    encoded = Encoded(question.template, questions.tokenize(model, rows, 0, len(rows)), 256)
    words = torch.from_numpy(question.words[0].ids)

    def draw() -> tuple[Batch, torch.Tensor, Batch, Any]:
        unlabeled = encoded.batch(chance.permutation(128)[:12])
        masked, targets = mask_tokens(unlabeled, settings, model.tokens.special, model.tokens.mask_id, chance)
        return encoded.batch(chance.permutation(128)[:4]), torch.from_numpy(chance.integers(0, 4, 4)), masked, targets

    def slow_step() -> None:
        labeled, truth, masked, targets = draw()
        inputs, helpers = padded(labeled, pad), padded(masked, pad)
        for micro in range(4):
            one = {name: tensor[micro : micro + 1] for name, tensor in inputs.items()}
            logits = model.model(**one).logits  # (1, 256, vocabulary)
            scores = logits[0, int(labeled.mask_at[micro])][words]
            ce = functional.cross_entropy(scores[None], truth[micro : micro + 1])
            three = {name: tensor[3 * micro : 3 * micro + 3] for name, tensor in helpers.items()}
            wanted = torch.full((3, 256), -100)
            inside = targets.rows // 3 == micro
            wanted[targets.rows[inside] % 3, targets.positions[inside]] = torch.from_numpy(targets.tokens[inside])
            logits = model.model(**three).logits  # (3, 256, vocabulary)
            mlm = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            ((1 - settings.alpha) * ce + settings.alpha * mlm).div(4).backward()  # type: ignore[no-untyped-call]

    def fast_step() -> None:
        labeled, truth, masked, targets = draw()
        loss = _joint_loss(model, question.words[0], labeled, truth, masked, targets, settings, None)
        loss.backward()  # type: ignore[no-untyped-call]

    print(f"{shape}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    model.model.train()
    fast = timed(model.model, settings, steps, fast_step)
    slow = timed(model.model, settings, steps, slow_step)
    print(f"a fine-tuning step: straightforward {slow:.2f} s, clozify {fast:.2f} s: {slow / fast:.1f}x")

    model.model.eval()
    few = rows.select(np.arange(0, 128, 8))
    began = time.perf_counter()
    straightforward(model, few)
    slow = (time.perf_counter() - began) / len(few)
    began = time.perf_counter()
    lean(model, rows)
    fast = (time.perf_counter() - began) / len(rows)
    print(f"labelling a row: straightforward {1000 * slow:.0f} ms, clozify {1000 * fast:.0f} ms: {slow / fast:.1f}x")

    config.num_labels = 4
    classifier = Classifier(transformers.RobertaForSequenceClassification(config), tokenizer, rows.task, 256)
    pile = classifier.encode(rows)
    soft = torch.softmax(torch.randn(128, 4), dim=-1)

    def slow_distill() -> None:
        chosen = chance.permutation(128)[:16]
        for start in range(0, 16, 4):
            part = chosen[start : start + 4]
            logits = classifier.model(**padded(pile.batch(part), pad)).logits
            distillation(logits, soft[part]).div(4).backward()  # type: ignore[no-untyped-call]

    def fast_distill() -> None:
        chosen = chance.permutation(128)[:16]
        distillation(classifier.scores(pile.batch(chosen)), soft[chosen]).backward()  # type: ignore[no-untyped-call]

    classifier.model.train()
    fast = timed(classifier.model, settings, steps, fast_distill)
    slow = timed(classifier.model, settings, steps, slow_distill)
    print(f"a distillation step: straightforward {slow:.2f} s, clozify {fast:.2f} s: {slow / fast:.1f}x")


if __name__ == "__main__":
    typer.run(main)
