"""Training steps of a classifier: what `distill`, `supervised`, `uda` and `mixtext` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.recipe import StudentTraining
from clozify.gpu.cuda_graphs import CapturableStep
from clozify.models.classifier import Classifier
from clozify.models.steps import BatchScores, StepInputs, StepLoss
from clozify.prompts.encode import Batch, EncodedRows
from clozify.training.loop import TrainingSetup, train
from clozify.utils.process_group import current_group, zero_loss

ROWS = "rows"  # the name of the only batch of a step


def classifier_step(
    classifier: Classifier, next_inputs: Callable[[int], StepInputs], loss: StepLoss, may_pack: bool = True
) -> Callable[[int], Tensor] | CapturableStep:
    """A training step for `train`: in plain PyTorch or, with custom kernels, for a CUDA graph, in a single process.

    `next_inputs` takes the step's index. Batches are packed where the model can, unless `may_pack` is False.
    """
    if classifier.trains_with_cuda_graphs:
        packed = may_pack and classifier.trains_in_bf16 and classifier.supports_packing
        steps = count()
        return classifier.capturable_step(lambda: next_inputs(next(steps)), loss, packed)

    def loss_of_step(step: int) -> Tensor:
        inputs = next_inputs(step)

        def scores(name: str, one_pass: bool = False) -> Tensor:
            return classifier.scores(inputs.batches[name], one_pass)

        return loss(scores, {name: classifier.to_device(array) for name, array in inputs.arrays.items()})

    return loss_of_step


@contextmanager
def without_gradients() -> Iterator[None]:
    """Like `torch.no_grad`, for a part of a step: weights that autocast casts within the block are cast again after it.

    Before version 2.11 PyTorch uses such a cast again where gradients are needed, and the weight gets none.
    """
    with torch.no_grad():
        yield
    torch.clear_autocast_cache()


def train_classifier(
    classifier: Classifier,
    next_batch: Callable[[], tuple[Batch, dict[str, NDArray[Any]]]],
    loss: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    setup: TrainingSetup,
    rows: EncodedRows,
) -> list[float]:
    """Train a classifier in place on batches of `rows`; returns the losses.

    `next_batch` draws a step's batch, of `rows_per_step` rows, and its targets; `loss`, a mean over rows, takes the
    scores and the targets.
    """
    settings, rates = setup.settings, dict[nn.Module, float]()
    assert isinstance(settings, StudentTraining)
    if settings.head_learning_rate is not None:
        rates = dict.fromkeys(classifier.head_modules, settings.head_learning_rate)

    local = current_group().local_slice(settings.rows_per_step)
    fraction = (local.stop - local.start) / settings.rows_per_step

    def next_inputs(_: int) -> StepInputs:
        batch, targets = next_batch()
        return StepInputs({ROWS: batch.slice_rows(local)}, {name: array[local] for name, array in targets.items()})

    def local_loss(scores: BatchScores, targets: Mapping[str, Tensor]) -> Tensor:
        return fraction * loss(scores(ROWS), targets) if fraction else zero_loss()

    step = classifier_step(classifier, next_inputs, local_loss)
    with classifier.frozen_layers(settings.frozen_layers, rows):
        return train(classifier.model, step, setup, len(rows), rates, bf16=classifier.trains_in_bf16)
