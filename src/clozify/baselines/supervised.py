"""The supervised baseline: an ordinary classifier trained on the labelled rows alone (section 4.2).

In: a fresh classifier and the labelled rows. Out: the classifier trained in place, and the course of its loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozify.classifier import Classifier
from clozify.encode import Batch, Encoded
from clozify.losses import cross_entropy
from clozify.recipe import Training
from clozify.training import UNWATCHED, Watch, balancing, endless, train_classifier


def supervised(
    classifier: Classifier,
    labeled: Encoded,
    labels: NDArray[np.int16],
    settings: Training,
    balance: bool,
    chance: np.random.Generator,
    accelerator: Any,
    watch: Watch = UNWATCHED,
) -> list[float]:
    """Train the classifier with cross-entropy on the labels; balanced, every label counts the same."""
    draw = endless(len(labeled), settings.rows_a_step, chance)
    weights = balancing(labels, len(classifier.task.labels)).to(classifier.device) if balance else None

    def drawn() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(draw)
        return labeled.batch(chosen), {"truth": labels[chosen].astype(np.int64)}

    def loss(scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return cross_entropy(scores, inputs["truth"], weights)

    return train_classifier(classifier, labeled, drawn, loss, settings, accelerator, watch)
