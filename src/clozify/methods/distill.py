"""Soft labels and the training of the final classifier on them (section 3.3, steps 2 and 3).

q = softmax(s_M / T), with T = 2; with several labels a row q = sigmoid(s_M / T) of each label. Where rules or other
teachers vote, too, s is made of log-probabilities and T = 1, and the rows of each label that they are least sure of are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor

from clozify.config.recipe import Distill
from clozify.methods._classifier import train_classifier
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, cycle_batches
from clozify.training.losses import binary_cross_entropy, distillation_loss


def soft_labels(scores: NDArray[np.float64], temperature: float, multilabel: bool = False) -> NDArray[np.float32]:
    """q: the softmax, or the sigmoid, of the ensemble's scores at a temperature, (rows, labels)."""
    scaled = scores / temperature
    probabilities: NDArray[np.float64] = expit(scaled) if multilabel else softmax(scaled, axis=-1)
    return probabilities.astype(np.float32)


def confident_rows(targets: NDArray[np.floating[Any]], fraction: float) -> NDArray[np.int64]:
    """Indices of this fraction of each predicted label's rows, those with the highest probability; (rows, labels)."""
    predicted, confidence = targets.argmax(axis=1), targets.max(axis=1)
    kept = []
    for label in np.unique(predicted):
        rows = np.flatnonzero(predicted == label)
        order = np.argsort(-confidence[rows], kind="stable")
        kept.append(rows[order[: math.ceil(fraction * len(rows))]])
    return np.sort(np.concatenate(kept))


def distill(
    classifier: Classifier,
    unlabeled: EncodedRows,
    targets: NDArray[np.float32],
    setup: TrainingSetup,
    rows: NDArray[np.int64] | None = None,
) -> list[float]:
    """Train the classifier in place on soft labels, `targets`, (rows, labels); returns the losses.

    `rows` are the indices of the rows to train on, by default all.
    """
    settings = setup.settings
    assert isinstance(settings, Distill)
    if classifier.task.multilabel:
        classifier.start_from(targets.mean(axis=0))
    batches = cycle_batches(len(unlabeled) if rows is None else len(rows), settings.rows_per_step, setup.rng)
    scale = settings.temperature**2 if settings.scale_by_squared_temperature else 1.0

    def next_batch() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(batches) if rows is None else rows[next(batches)]
        return unlabeled.batch(chosen), {"targets": targets[chosen]}

    def loss(scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        if classifier.task.multilabel:
            return scale * binary_cross_entropy(scores / settings.student_temperature, inputs["targets"])
        return scale * distillation_loss(scores, inputs["targets"], settings.student_temperature)

    return train_classifier(classifier, next_batch, loss, setup, unlabeled)
