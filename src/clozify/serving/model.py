"""A finished run's model, held in memory to answer again and again.

In: a run's folder, a classifier's or an export's. Out: scores for texts by field, (rows, labels).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.data.in_memory import rows_of
from clozify.data.rows import clean_texts
from clozify.inference.finished_run import FinishedRun
from clozify.methods.ensemble import combine_scores
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.onnx import OnnxModel

ROWS_AT_ONCE = {"cpu": 32, "cuda": 512}  # more would keep newcomers waiting and gain nothing


class Held:
    """A classifier, or an ensemble where a run had no pile to distill from."""

    def __init__(self, folder: str | Path) -> None:
        finished = FinishedRun(folder)
        self.task = finished.task
        self._classifier = None if finished.classifier is None else finished.loaded
        self._members = list(finished.members()) if self._classifier is None else []
        device = finished.device if self._classifier is None else self._classifier.device.type
        self.rows_at_once = ROWS_AT_ONCE.get(device, ROWS_AT_ONCE["cpu"])
        self._budget = TOKENS_PER_BATCH.get(device, TOKENS_PER_BATCH["cpu"])

    @property
    def kind(self) -> str:
        """What answers, in words."""
        if self._classifier is None:
            return f"an ensemble of {len(self._members)} members"
        return "a classifier in ONNX" if isinstance(self._classifier.model, OnnxModel) else "a classifier"

    @torch.inference_mode()
    def scores(self, texts: Mapping[str, list[str]]) -> NDArray[np.floating]:
        """Raw scores of texts by field: (rows, labels)."""
        import pyarrow as pa

        if self._classifier is None:
            rows = rows_of(dict(texts), self.task, "the request")
            return combine_scores([member.scores(rows) for member in self._members], [m.weight for m in self._members])
        clean = {field: clean_texts(pa.array(given, pa.large_string()), self.task) for field, given in texts.items()}
        encoded = self._classifier.encode_texts(clean)
        scores = np.empty((len(encoded), len(self.task.labels)), dtype=np.float32)
        for batch in encoded.batches(self._budget):
            scores[batch.rows] = self._classifier.scores(batch).float().cpu().numpy()
        return scores
