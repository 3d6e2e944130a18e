"""Training of the classifier with any loss on its scores: what `distill` and `supervised` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import StudentTraining
from clozify.gpu.cuda_graphs import CapturableStep
from clozify.models.classifier import Classifier
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, train
from clozify.utils.process_group import current_group, zero_loss


def train_classifier(
    classifier: Classifier,
    next_batch: Callable[[], tuple[Batch, dict[str, NDArray[Any]]]],
    loss: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    setup: TrainingSetup,
    rows: EncodedRows,
) -> list[float]:
    """Train a classifier in place on batches of `rows`; returns the losses.

    `next_batch` draws a step's batch and its targets; `loss`, a mean over rows, takes the scores and the targets.
    """
    settings, rates = setup.settings, dict[nn.Module, float]()
    assert isinstance(settings, StudentTraining)
    if settings.head_learning_rate is not None:
        rates = dict.fromkeys(classifier.head_modules, settings.head_learning_rate)

    def loss_of_step(_: int) -> Tensor:
        batch, targets = next_batch()
        local, batch_size = current_group().local_slice(len(batch.rows)), len(batch.rows)
        batch = batch.slice_rows(local)
        if not len(batch.rows):
            return zero_loss()
        local_targets = {name: classifier.to_device(array[local]) for name, array in targets.items()}
        return loss(classifier.scores(batch), local_targets) * (len(batch.rows) / batch_size)

    step: Callable[[int], Tensor] | CapturableStep = loss_of_step
    if classifier.trains_with_cuda_graphs:
        packed = classifier.trains_in_bf16 and classifier.supports_packing
        step = classifier.capturable_step(next_batch, loss, packed)
    with classifier.frozen_layers(settings.frozen_layers, rows):
        return train(classifier.model, step, setup, len(rows), rates, bf16=classifier.trains_in_bf16)
