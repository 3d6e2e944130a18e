"""UDA, unsupervised data augmentation (Xie et al., 2019), which the paper compares with (section 4.3, appendix B).

In: a fresh classifier, the labelled rows, and unlabelled rows with one augmentation of each or several. Out: the
classifier trained in place, and the course of its loss. A labelled row teaches while its label is less likely than a
threshold that rises with the steps (training-signal annealing). An unlabelled row's prediction is the target for its
augmentation: sharpened, without gradients, and left out where it is not confident. Where a row has several
augmentations, a step draws one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Uda
from clozify.models.classifier import Classifier
from clozify.prompts.encode import EncodedRows, concat_batches
from clozify.training.loop import NO_MONITOR, Monitor, class_weights, cycle_batches, train
from clozify.training.losses import annealed_cross_entropy, kl_divergence
from clozify.utils.process_group import require_single_process

SCALE = 5  # of the exponential and the logarithmic schedule


def annealing_threshold(schedule: str, progress: float, labels: int) -> float:
    """The probability beyond which a labelled row teaches no more: from 1 / labels at progress 0 to 1 at progress 1."""
    shares = {
        "linear": progress,
        "exponential": math.exp((progress - 1) * SCALE),
        "log": 1 - math.exp(-progress * SCALE),
        "none": 1.0,
    }
    return shares[schedule] * (1 - 1 / labels) + 1 / labels


def consistency(original: Tensor, augmented: Tensor, settings: Uda) -> Tensor:
    """KL(p(x) || p(augmented x)) over the rows whose p(x) is confident; both are scores, (rows, labels)."""
    original = original.detach()
    on_original = settings.sharpened == "original"
    target = torch.softmax(original / settings.uda_softmax_temp if on_original else original, dim=-1)
    each = kl_divergence(target, augmented if on_original else augmented / settings.uda_softmax_temp)  # (rows,)
    confident = torch.softmax(original, dim=-1).amax(dim=-1) > settings.uda_confidence_thresh
    count = confident.sum().clamp(min=1) if settings.mean_over == "confident" else len(each)
    return (each * confident).sum() / count


def uda(
    classifier: Classifier,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    pile: EncodedRows,
    augmented: Sequence[EncodedRows],
    settings: Uda,
    balance: bool,
    rng: np.random.Generator,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train the classifier; each of `augmented` holds the pile's rows in another wording, in the pile's order."""
    require_single_process("UDA")
    settings = settings.with_warmup_steps(len(labeled))
    steps, number = settings.steps(len(labeled)), len(classifier.task.labels)
    draw = cycle_batches(len(labeled), settings.rows_per_step, rng)
    draw_unlabeled = cycle_batches(len(pile), settings.unlabeled_rows_per_step, rng)
    weights = class_weights(labels, number).to(classifier.device) if balance else None

    def loss_of_step(step: int) -> Tensor:
        chosen, others = next(draw), next(draw_unlabeled)
        version = rng.integers(len(augmented), size=len(others))
        said_otherwise = [augmented[which].batch(others[version == which]) for which in np.unique(version)]
        order = np.argsort(version, kind="stable")  # the rows as `said_otherwise` has them
        with torch.no_grad():  # in training mode, as in both implementations: with dropout
            original = classifier.scores(pile.batch(others[order])).float()
        scores = classifier.scores(
            concat_batches([labeled.batch(chosen), *said_otherwise], classifier.tokenizer.pad_id)
        ).float()
        truth = torch.from_numpy(labels[chosen].astype(np.int64)).to(classifier.device)
        most = annealing_threshold(settings.tsa, step / max(1, steps), number)
        ce = annealed_cross_entropy(scores[: len(chosen)], truth, most, weights)
        return ce + settings.uda_coeff * consistency(original, scores[len(chosen) :], settings)

    return train(classifier.model, loss_of_step, settings, len(labeled), accelerator, watch)
