"""The states that out-of-scope scores compare, of a classifier and of a member of an ensemble."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import Classifier
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import TaskPrompts
from clozify.prompts.encode import EncodedRows


def classifier_states(classifier: Classifier, rows: Rows) -> NDArray[np.float32]:
    """The mean of each row's last states, (rows, hidden)."""
    budget = TOKENS_PER_BATCH[classifier.device.type]
    return np.concatenate([states[:, 1] for _, _, states in classifier.embed_rows(rows, budget)])


@torch.inference_mode()
def member_states(
    model: ClozeModel,
    prompts: TaskPrompts,
    rows: Rows,
    max_length: int,
    advance: Callable[[int], None] = lambda count: None,
) -> NDArray[np.float32]:
    """The mean of each row's last states in the prompts' first pattern, (rows, hidden)."""
    template, length = prompts.patterns[0].template, min(max_length, model.max_length)
    budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
    states = np.zeros((len(rows), int(model.model.config.hidden_size)), dtype=np.float32)
    with model.scoring():
        for start, stop in rows.chunks():
            encoded = EncodedRows(template, prompts.tokenize(model, rows, start, stop), length)
            for batch in encoded.batches(budget):
                states[start + batch.rows] = model.mean_states(batch).float().cpu().numpy()
                advance(len(batch.rows))
    return states
