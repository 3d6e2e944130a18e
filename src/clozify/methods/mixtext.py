"""MixText (Chen et al., 2020), which the paper compares with (section 4.3, appendix B).

In: a fresh classifier, the labelled rows, and unlabelled rows with their augmentations. Out: the classifier trained in
place, and the course of its loss. A step guesses the unlabelled rows' labels, puts all its rows into one batch
(labelled, augmented, original), and mixes each with another one's: the hidden states behind a random one of the given
layers (TMix), and the labels, by the same lambda.

The second rows of the pairs are the first ones in another order, so the layers up to the mixing run once. A row is
read with its own attention mask before the mixing, and behind it with that of the pair's first row, which is the mask
that the original code hands on. There all masks are ones and padding is read as text; here padding is never read, and
the head is the model's own instead of a mean over all positions, so that the result is an ordinary classifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import Mixtext
from clozify.errors import ModelError
from clozify.models.classifier import Classifier
from clozify.prompts.encode import EncodedRows, concat_batches
from clozify.training.loop import NO_MONITOR, Monitor, class_weights, cycle_batches, train
from clozify.training.losses import distillation_loss, entropy_above_margin, kl_divergence, sharpened
from clozify.utils.process_group import require_single_process

LAYERS = 12  # of the models that the recipe's layers are counted for


def layers_to_mix(layers: Sequence[int], of_model: int) -> list[int]:
    """Layer k of 12 is layer k L / 12, rounded up, of a model with L layers: 7, 9 and 12 are 4, 5 and 6 of six."""
    return sorted({-(-layer * of_model // LAYERS) for layer in layers})


def layer_list(model: Any) -> nn.ModuleList:
    """The encoder's layers; ALBERT's are few and run again and again."""
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList):
            return module
    raise ModelError(f"The model's layers ({type(model).__name__}) are kept in a way unknown to clozify's MixText.")


@contextmanager
def mixing(model: Any, layer: int, share: float, order: Tensor) -> Iterator[None]:
    """TMix: while this is open, the states behind a layer become share * h + (1 - share) * h[order]."""
    run = 0

    def mix(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal run
        run += 1
        if run != layer:
            return output
        states = output[0] if isinstance(output, tuple) else output  # (batch, length, hidden)
        mixed = share * states + (1 - share) * states[order]
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    hooks = [module.register_forward_hook(mix) for module in layer_list(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if run < layer:
        raise ModelError(
            f"The model ({type(model).__name__}) ran {run} layers; MixText cannot mix behind layer {layer}."
        )


def guessed(scores: Sequence[Tensor], settings: Mixtext) -> Tensor:
    """The unlabelled rows' labels from the scores of the original and of each augmentation: (rows, labels) each."""
    weights = [1.0] + [settings.augmented_weight] * (len(scores) - 1)
    parts = [weight * torch.softmax(part, dim=-1) for weight, part in zip(weights, scores, strict=True)]
    return sharpened(torch.stack(parts).sum(dim=0) / sum(weights), settings.temperature)


def mixtext(
    classifier: Classifier,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    pile: EncodedRows,
    augmented: Sequence[EncodedRows],
    settings: Mixtext,
    balance: bool,
    rng: np.random.Generator,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train the classifier; each of `augmented` holds the pile's rows in another wording, in the pile's order."""
    require_single_process("MixText")
    model, pad = classifier.model, classifier.tokenizer.pad_id
    steps, number = settings.steps(len(labeled)), len(classifier.task.labels)
    layers = layers_to_mix(settings.mix_layers, model.config.num_hidden_layers)
    draw = cycle_batches(len(labeled), settings.rows_per_step, rng)
    draw_unlabeled = cycle_batches(len(pile), settings.unlabeled_rows_per_step, rng)
    known = torch.eye(number, device=classifier.device)
    weights = class_weights(labels, number).to(classifier.device) if balance else torch.ones_like(known[0])

    def loss_of_step(step: int) -> Tensor:
        chosen, others = next(draw), next(draw_unlabeled)
        versions = [pile.batch(others), *(version.batch(others) for version in augmented)]
        with torch.no_grad():  # in training mode, as in the original code: with dropout
            scores = classifier.scores(concat_batches(versions, pad)).float()
            guess = guessed(torch.split(scores, len(others)), settings)
        targets = torch.cat([known[labels[chosen].astype(np.int64)], *[guess] * len(versions)])  # (rows, labels)
        share = float(rng.beta(settings.alpha, settings.alpha))
        share = max(share, 1 - share)
        order = torch.from_numpy(rng.permutation(len(targets))).to(classifier.device)
        with mixing(model, int(rng.choice(layers)), share, order):
            batch = concat_batches([labeled.batch(chosen), *versions[1:], versions[0]], pad)
            scores = classifier.scores(batch, together=True).float()
        targets = share * targets + (1 - share) * targets[order]
        ours, theirs = scores[: len(chosen)], scores[len(chosen) :]
        rising = step / max(1, steps) if settings.rampup else 1.0
        loss = distillation_loss(ours, targets[: len(chosen)] * weights)
        loss = loss + rising * settings.lambda_u * kl_divergence(targets[len(chosen) :], theirs).mean()
        if settings.lambda_u_hinge:
            alone = classifier.scores(versions[0], together=True).float()  # the originals, as they are
            loss = loss + rising * settings.lambda_u_hinge * entropy_above_margin(alone, settings.margin)
        return loss

    head = [part for name, part in model.named_children() if name != model.base_model_prefix]
    rates = dict.fromkeys(head, settings.head_learning_rate)
    return train(model, loss_of_step, settings, len(labeled), accelerator, watch, rates)
