"""The supervised baseline: an ordinary classifier trained on the labelled rows alone (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from clozify.methods._classifier import train_classifier
from clozify.methods.multilabel import label_frequencies
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, class_weights, cycle_batches
from clozify.training.losses import label_loss, label_targets


def supervised(classifier: Classifier, labeled: EncodedRows, labels: NDArray[Any], setup: TrainingSetup) -> list[float]:
    """Train the classifier in place with cross-entropy on the labels; returns the losses.

    With several labels a row, `labels` is a matrix of 0 and 1, and the loss a binary cross-entropy.
    """
    if labels.ndim == 2:
        classifier.start_from(label_frequencies(labels))
    batches = cycle_batches(len(labeled), setup.settings.rows_per_step, setup.rng)
    weights = class_weights(labels, len(classifier.task.labels)).to(classifier.device) if setup.balance else None

    def next_batch() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(batches)
        return labeled.batch(chosen), {"labels": label_targets(labels[chosen])}

    def loss(scores: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        return label_loss(scores, targets["labels"], weights)

    return train_classifier(classifier, next_batch, loss, setup, labeled)
