"""MixText (Chen et al., 2020), which the paper compares with (section 4.3, appendix B).

A step guesses the unlabelled rows' labels, joins all its rows into one batch (labelled, paraphrased, original), and
mixes each with another one: the hidden states behind a randomly drawn layer (TMix), and the labels, by the same lambda.

The second rows of the pairs are the first ones in another order, so the layers before the mixing run once. Before it a
row has its own attention mask, behind it that of the pair's first row, as in the original code. There all masks are
ones and padding is read as text; here padding is masked, and the head is the model's own instead of a mean over all
positions, so that the result is an ordinary classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import Mixtext
from clozify.errors import ModelError
from clozify.methods._classifier import classifier_step, without_gradients
from clozify.models.classifier import Classifier
from clozify.models.steps import BatchScores, StepInputs
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
def mixing(model: Any, layer: int, weight: float | Tensor, order: Tensor) -> Iterator[None]:
    """TMix: within the block, the states behind a layer become weight * h + (1 - weight) * h[order], in float32."""
    layers_run = 0

    def mix(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal layers_run
        layers_run += 1
        if layers_run != layer:
            return output
        states = output[0] if isinstance(output, tuple) else output  # (batch, length, hidden)
        mixed = (weight * states.float() + (1 - weight) * states[order].float()).to(states.dtype)
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
    settings = setup.settings
    assert isinstance(settings, Mixtext)
    model, label_count = classifier.model, len(classifier.task.labels)
    layers = layers_to_mix(settings.mix_layers, model.config.num_hidden_layers)
    label_weights = class_weights(labels, label_count).to(classifier.device) if setup.balance else None

    def loss(batch_scores: BatchScores, inputs: Mapping[str, Tensor]) -> Tensor:
        weight, order, labeled_rows = inputs["weight"], inputs["order"], len(inputs["labels"])
        with without_gradients():  # with dropout, as in the original code
            version_scores = torch.split(batch_scores("versions").float(), settings.unlabeled_rows_per_step)
            guess = guess_labels(version_scores, settings)
        targets = torch.cat([inputs["labels"], *[guess] * len(version_scores)])  # (rows, labels)
        targets = weight * targets + (1 - weight) * targets[order]
        with ExitStack() as stack:
            for layer, layer_weight in zip(layers, inputs["layer_weights"], strict=True):
                stack.enter_context(mixing(model, layer, layer_weight, order))
            scores = batch_scores("mixed", one_pass=True).float()
        labeled_targets = targets[:labeled_rows] if label_weights is None else targets[:labeled_rows] * label_weights
        loss = distillation_loss(scores[:labeled_rows], labeled_targets)
        loss = loss + inputs["lambda_u"] * kl_divergence(targets[labeled_rows:], scores[labeled_rows:]).mean()
        if settings.lambda_u_hinge:
            unmixed = batch_scores("original", one_pass=True).float()
            loss = loss + inputs["lambda_u_hinge"] * entropy_above_margin(unmixed, settings.margin)
        return loss

    next_inputs = _input_sampler(classifier, labeled, labels, unlabeled, augmented, setup, layers)
    step = classifier_step(classifier, next_inputs, loss, may_pack=False)  # rows are mixed position by position
    learning_rates = dict.fromkeys(classifier.head_modules, settings.head_learning_rate)
    return train(model, step, setup, len(labeled), learning_rates, classifier.trains_in_bf16)


def _input_sampler(
    classifier: Classifier,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    unlabeled: EncodedRows,
    augmented: Sequence[EncodedRows],
    setup: TrainingSetup,
    layers: Sequence[int],
) -> Callable[[int], StepInputs]:
    """A function that draws a step's rows, its lambda, the order of the second rows, and one of `layers`.

    A step mixes behind all layers, but behind the others by a lambda of 1, which changes nothing. So the layer is a
    number that a CUDA graph reads, and one graph serves them all.
    """
    settings, rng, pad_id = setup.settings, setup.rng, classifier.tokenizer.pad_id
    assert isinstance(settings, Mixtext)
    steps, one_hot = settings.steps(len(labeled)), np.eye(len(classifier.task.labels), dtype=np.float32)
    labeled_batches = cycle_batches(len(labeled), settings.rows_per_step, rng)
    unlabeled_batches = cycle_batches(len(unlabeled), settings.unlabeled_rows_per_step, rng)

    def next_inputs(step: int) -> StepInputs:
        chosen, chosen_unlabeled = next(labeled_batches), next(unlabeled_batches)
        original, *others = (version.batch(chosen_unlabeled) for version in (unlabeled, *augmented))
        batches = {
            "versions": concat_batches([original, *others], pad_id),
            "mixed": concat_batches([labeled.batch(chosen), *others, original], pad_id),
        } | ({"original": original} if settings.lambda_u_hinge else {})
        weight = float(rng.beta(settings.alpha, settings.alpha))  # lambda
        weight = max(weight, 1 - weight)
        order = rng.permutation(len(batches["mixed"].rows))
        ramp = step / max(1, steps) if settings.rampup else 1.0
        arrays: dict[str, NDArray[Any]] = {
            "labels": one_hot[labels[chosen]],  # (labelled, labels)
            "order": order,
            "weight": np.array(weight),
            "layer_weights": np.where(np.array(layers) == rng.choice(layers), weight, 1.0),  # (layers,)
            "lambda_u": np.array(ramp * settings.lambda_u, dtype=np.float32),
            "lambda_u_hinge": np.array(ramp * settings.lambda_u_hinge, dtype=np.float32),
        }
        return StepInputs(batches, arrays)

    return next_inputs
