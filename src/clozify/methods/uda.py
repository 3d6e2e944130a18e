"""UDA, unsupervised data augmentation (Xie et al., 2019), which the paper compares with (section 4.3, appendix B).

A labelled row contributes to the loss while its label is less likely than a threshold that rises with the steps
(training-signal annealing). An unlabelled row's prediction is the target for its paraphrase: sharpened, without
gradients, and left out where it is not confident. Where a row has several paraphrases, a step draws one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Uda
from clozify.methods._classifier import classifier_step, without_gradients
from clozify.models.classifier import Classifier
from clozify.models.steps import BatchScores, StepInputs
from clozify.prompts.encode import EncodedRows, concat_batches
from clozify.training.loop import TrainingSetup, class_weights, cycle_batches, train
from clozify.training.losses import annealed_cross_entropy, kl_divergence
from clozify.utils.process_group import require_single_process

SCALE = 5  # of the exponential and the logarithmic schedule


def annealing_threshold(schedule: str, progress: float, labels: int) -> float:
    """The probability above which a labelled row is left out: from 1 / labels at progress 0 to 1 at progress 1."""
    fraction = {
        "linear": progress,
        "exponential": math.exp((progress - 1) * SCALE),
        "log": 1 - math.exp(-progress * SCALE),
        "none": 1.0,
    }
    return fraction[schedule] * (1 - 1 / labels) + 1 / labels


def consistency(original: Tensor, augmented: Tensor, settings: Uda) -> Tensor:
    """KL(p(x) || p(augmented x)) over the rows whose p(x) is confident; both are scores, (rows, labels)."""
    original = original.detach()
    on_original = settings.sharpened == "original"
    target = torch.softmax(original / settings.uda_softmax_temp if on_original else original, dim=-1)
    divergence = kl_divergence(target, augmented if on_original else augmented / settings.uda_softmax_temp)  # (rows,)
    confident = torch.softmax(original, dim=-1).amax(dim=-1) > settings.uda_confidence_thresh
    count = confident.sum().clamp(min=1) if settings.mean_over == "confident" else len(divergence)
    return (divergence * confident).sum() / count


def uda(
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
    require_single_process("UDA")
    assert isinstance(setup.settings, Uda)
    settings = setup.settings.with_warmup_steps(len(labeled))
    setup, rng = setup.with_settings(settings), setup.rng
    steps, label_count = settings.steps(len(labeled)), len(classifier.task.labels)
    labeled_batches = cycle_batches(len(labeled), settings.rows_per_step, rng)
    unlabeled_batches = cycle_batches(len(unlabeled), settings.unlabeled_rows_per_step, rng)
    weights = class_weights(labels, label_count).to(classifier.device) if setup.balance else None

    def next_inputs(step: int) -> StepInputs:
        chosen, chosen_unlabeled = next(labeled_batches), next(unlabeled_batches)
        version = rng.integers(len(augmented), size=len(chosen_unlabeled))
        paraphrases = [augmented[v].batch(chosen_unlabeled[version == v]) for v in np.unique(version)]
        order = np.argsort(version, kind="stable")  # the order of the rows in `paraphrases`
        threshold = annealing_threshold(settings.tsa, step / max(1, steps), label_count)
        return StepInputs(
            {
                "original": unlabeled.batch(chosen_unlabeled[order]),
                "trained": concat_batches([labeled.batch(chosen), *paraphrases], classifier.tokenizer.pad_id),
            },
            {"labels": labels[chosen].astype(np.int64), "threshold": np.array(threshold, dtype=np.float32)},
        )

    def loss(batch_scores: BatchScores, inputs: Mapping[str, Tensor]) -> Tensor:
        with without_gradients():  # with dropout, as in both published implementations
            original = batch_scores("original").float()
        scores, labeled_rows = batch_scores("trained").float(), len(inputs["labels"])
        ce = annealed_cross_entropy(scores[:labeled_rows], inputs["labels"], inputs["threshold"], weights)
        return ce + settings.uda_coeff * consistency(original, scores[labeled_rows:], settings)

    step = classifier_step(classifier, next_inputs, loss)
    return train(classifier.model, step, setup, len(labeled), bf16=classifier.trains_in_bf16)
