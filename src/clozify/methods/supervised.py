"""The supervised baseline: an ordinary classifier trained on the labelled rows alone (section 4.2).

In: a fresh classifier and the labelled rows. Out: the classifier trained in place, and the course of its loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Training
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import NO_MONITOR, Monitor, class_weights, cycle_batches, train_classifier
from clozify.training.losses import cross_entropy


def supervised(
    classifier: Classifier,
    labeled: EncodedRows,
    labels: NDArray[np.int16],
    settings: Training,
    balance: bool,
    rng: np.random.Generator,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train the classifier with cross-entropy on the labels; balanced, every label counts the same."""
    draw = cycle_batches(len(labeled), settings.rows_per_step, rng)
    weights = class_weights(labels, len(classifier.task.labels)).to(classifier.device) if balance else None

    def drawn() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(draw)
        return labeled.batch(chosen), {"truth": labels[chosen].astype(np.int64)}

    def loss(scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return cross_entropy(scores, inputs["truth"], weights)

    return train_classifier(classifier, labeled, drawn, loss, settings, accelerator, watch)
