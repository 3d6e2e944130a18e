"""MixText (Chen et al., 2020), which the paper compares with (section 4.3, appendix B).

A step guesses the unlabelled rows' labels, joins all its rows into one batch (labelled, paraphrased, original), and
mixes each with another one: the hidden states behind a randomly drawn layer (TMix), and the labels, by the same lambda.

The second rows of the pairs are the first ones in another order, so the layers before the mixing run once. Before it a
row has its own attention mask, behind it that of the pair's first row, as in the original code. There all masks are
ones and padding is read as text; here padding is masked, and the head is the model's own instead of a mean over all
positions, so that the result is an ordinary classifier.
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
from clozify.training.loop import TrainingSetup, class_weights, cycle_batches, train
from clozify.training.losses import distillation_loss, entropy_above_margin, kl_divergence, sharpen
from clozify.utils.process_group import require_single_process

LAYERS = 12  # of the model whose layers the recipe counts


def layers_to_mix(layers: Sequence[int], model_layers: int) -> list[int]:
    """Layer k of 12 as layer k L / 12, rounded up, of a model with L layers: 7, 9 and 12 are 4, 5 and 6 of six."""
    return sorted({-(-layer * model_layers // LAYERS) for layer in layers})


def layer_list(model: Any) -> nn.ModuleList:
    """The encoder's list of layers; ALBERT's has few, which run several times."""
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList):
            return module
    raise ModelError(f"The model's layers ({type(model).__name__}) are kept in a way unknown to clozify's MixText.")


@contextmanager
def mixing(model: Any, layer: int, weight: float, order: Tensor) -> Iterator[None]:
    """TMix: within the block, the states behind a layer become weight * h + (1 - weight) * h[order]."""
    layers_run = 0

    def mix(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal layers_run
        layers_run += 1
        if layers_run != layer:
            return output
        states = output[0] if isinstance(output, tuple) else output  # (batch, length, hidden)
        mixed = weight * states + (1 - weight) * states[order]
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    hooks = [module.register_forward_hook(mix) for module in layer_list(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if layers_run < layer:
        raise ModelError(
            f"The model ({type(model).__name__}) ran {layers_run} layers; MixText cannot mix behind layer {layer}."
        )


def guess_labels(scores: Sequence[Tensor], settings: Mixtext) -> Tensor:
    """Soft labels of unlabelled rows from the scores of the original and of each paraphrase: (rows, labels) each."""
    weights = [1.0] + [settings.augmented_weight] * (len(scores) - 1)
    weighted = [weight * torch.softmax(s, dim=-1) for weight, s in zip(weights, scores, strict=True)]
    return sharpen(torch.stack(weighted).sum(dim=0) / sum(weights), settings.temperature)


def mixtext(
    classifier: Classifier,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    unlabeled: EncodedRows,
    augmented: Sequence[EncodedRows],
    setup: TrainingSetup,
) -> list[float]:
    """Train the classifier in place and return the losses.

    Each of `augmented` holds a paraphrase of every unlabelled row, in the same order.
    """
    require_single_process("MixText")
    settings, rng = setup.settings, setup.rng
    assert isinstance(settings, Mixtext)
    model, pad_id = classifier.model, classifier.tokenizer.pad_id
    steps, label_count = settings.steps(len(labeled)), len(classifier.task.labels)
    layers = layers_to_mix(settings.mix_layers, model.config.num_hidden_layers)
    labeled_batches = cycle_batches(len(labeled), settings.rows_per_step, rng)
    unlabeled_batches = cycle_batches(len(unlabeled), settings.unlabeled_rows_per_step, rng)
    one_hot = torch.eye(label_count, device=classifier.device)
    weights = class_weights(labels, label_count).to(classifier.device) if setup.balance else torch.ones_like(one_hot[0])

    def loss_of_step(step: int) -> Tensor:
        chosen, chosen_unlabeled = next(labeled_batches), next(unlabeled_batches)
        versions = [unlabeled.batch(chosen_unlabeled), *(version.batch(chosen_unlabeled) for version in augmented)]
        with torch.no_grad():  # with dropout, as in the original code
            scores = classifier.scores(concat_batches(versions, pad_id)).float()
            guess = guess_labels(torch.split(scores, len(chosen_unlabeled)), settings)
        targets = torch.cat([one_hot[labels[chosen].astype(np.int64)], *[guess] * len(versions)])  # (rows, labels)
        weight = float(rng.beta(settings.alpha, settings.alpha))  # lambda
        weight = max(weight, 1 - weight)
        order = torch.from_numpy(rng.permutation(len(targets))).to(classifier.device)
        with mixing(model, int(rng.choice(layers)), weight, order):
            batch = concat_batches([labeled.batch(chosen), *versions[1:], versions[0]], pad_id)
            scores = classifier.scores(batch, one_pass=True).float()
        targets = weight * targets + (1 - weight) * targets[order]
        labeled_scores, unlabeled_scores = scores[: len(chosen)], scores[len(chosen) :]
        ramp = step / max(1, steps) if settings.rampup else 1.0
        loss = distillation_loss(labeled_scores, targets[: len(chosen)] * weights)
        loss = loss + ramp * settings.lambda_u * kl_divergence(targets[len(chosen) :], unlabeled_scores).mean()
        if settings.lambda_u_hinge:
            unmixed = classifier.scores(versions[0], one_pass=True).float()
            loss = loss + ramp * settings.lambda_u_hinge * entropy_above_margin(unmixed, settings.margin)
        return loss

    head = [child for name, child in model.named_children() if name != model.base_model_prefix]
    learning_rates = dict.fromkeys(head, settings.head_learning_rate)
    return train(model, loss_of_step, setup, len(labeled), learning_rates, classifier.trains_in_bf16)
