"""Training of the final classifier on the ensemble's soft labels (section 3.3, step 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Distill
from clozify.methods._classifier import train_classifier
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, cycle_batches
from clozify.training.losses import distillation_loss


def distill(
    classifier: Classifier, unlabeled: EncodedRows, soft_labels: NDArray[np.float32], setup: TrainingSetup
) -> list[float]:
    """Train the classifier in place on the unlabelled rows' soft labels, (rows, labels); returns the losses."""
    settings = setup.settings
    assert isinstance(settings, Distill)
    batches = cycle_batches(len(unlabeled), settings.rows_per_step, setup.rng)
    scale = settings.temperature**2 if settings.scale_by_squared_temperature else 1.0

    def next_batch() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(batches)
        return unlabeled.batch(chosen), {"soft_labels": soft_labels[chosen]}

    def loss(scores: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        return scale * distillation_loss(scores, targets["soft_labels"], settings.student_temperature)

    return train_classifier(classifier, next_batch, loss, setup, len(unlabeled))
