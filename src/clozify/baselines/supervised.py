"""The supervised baseline: an ordinary classifier trained on the labelled rows alone (section 4.2).

In: a fresh classifier and the labelled rows. Out: the classifier trained in place, and the course of its loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.classifier import Classifier
from clozify.encode import Encoded
from clozify.losses import cross_entropy
from clozify.recipe import Training
from clozify.training import UNWATCHED, Watch, balancing, endless, train


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

    def loss_of_step(_: int) -> Tensor:
        chosen = next(draw)
        truth = torch.from_numpy(labels[chosen].astype(np.int64)).to(classifier.device)
        return cross_entropy(classifier.scores(labeled.batch(chosen)), truth, weights)

    return train(classifier.model, loss_of_step, settings, len(labeled), accelerator, watch)
