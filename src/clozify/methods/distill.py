"""Training the final classifier on soft labels (section 3.3, step 3).

In: a fresh classifier, the pile spliced for it, and a soft label for every row of it. Out: the classifier trained in
place, and the course of its loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.recipe import Distill
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import NO_MONITOR, Monitor, cycle_batches, train_classifier
from clozify.training.losses import distillation_loss


def distill(
    classifier: Classifier,
    pile: EncodedRows,
    targets: NDArray[np.float32],
    settings: Distill,
    rng: np.random.Generator,
    accelerator: Any,
    watch: Monitor = NO_MONITOR,
) -> list[float]:
    """Train the classifier on the pile; targets are (rows, labels)."""
    draw = cycle_batches(len(pile), settings.rows_per_step, rng)
    scale = settings.temperature**2 if settings.scale_by_squared_temperature else 1.0

    def drawn() -> tuple[Batch, dict[str, NDArray[Any]]]:
        chosen = next(draw)
        return pile.batch(chosen), {"soft": targets[chosen]}

    def loss(scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return scale * distillation_loss(scores, inputs["soft"], settings.student_temperature)

    return train_classifier(classifier, pile, drawn, loss, settings, accelerator, watch)
