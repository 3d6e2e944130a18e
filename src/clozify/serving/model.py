"""The model of a finished run, kept in memory by the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.data.in_memory import make_rows
from clozify.data.text_values import clean_texts
from clozify.inference.abstaining import AbstainOptions
from clozify.inference.finished_run import FinishedRun
from clozify.models.classifier_folder import ONNX_FILE
from clozify.models.static_classifier import StaticClassifier
from clozify.prompts.encode import TOKENS_PER_BATCH
from clozify.runs.results import METHOD_NAMES

if TYPE_CHECKING:  # it imports PyTorch, which a static classifier does without
    from clozify.models.classifier import Classifier

# larger batches are no faster per text and delay new requests
MAX_BATCH_ROWS, MAX_STATIC_ROWS = {"cpu": 32, "cuda": 512}, 512


class ServedModel:
    """A run's classifier, an ONNX export or, for a run without unlabelled rows, its ensemble."""

    def __init__(
        self,
        folder: str | Path,
        method: str | None = None,
        precision: str = "auto",
        options: AbstainOptions | None = None,
    ) -> None:
        finished = FinishedRun(folder, method, precision)
        self.abstainer = finished.abstainer(options or AbstainOptions())
        self._finished = finished
        self.notes = finished.notes
        self.method = finished.method
        self.task, self.decision = finished.task, finished.decision
        self._classifier = None if finished.classifier is None else finished.loaded_classifier
        self._members = list(finished.ensemble.members()) if self._classifier is None else []
        self._in_onnx = finished.classifier is not None and (finished.classifier / ONNX_FILE).is_file()
        device = "cpu" if self._in_onnx else finished.device
        self.max_batch_rows = MAX_STATIC_ROWS if finished.is_static else MAX_BATCH_ROWS[device]
        self._tokens_per_batch = TOKENS_PER_BATCH[device]

    @property
    def description(self) -> str:
        """What answers, such as "a classifier trained by PET", "a classifier in ONNX", "an ensemble of 6 members"."""
        if self._classifier is None:
            kind = f"an ensemble of {len(self._members)} members"
        elif isinstance(self._classifier, StaticClassifier):
            kind = "a static classifier"
        else:
            kind = "a classifier in ONNX" if self._in_onnx else "a classifier"
        in_int8 = ", in int8" if self._classifier is not None and self._classifier.precision == "int8" else ""
        return (kind if self.method is None else f"{kind} trained by {METHOD_NAMES[self.method]}") + in_int8

    def scores(self, texts: Mapping[str, list[str]]) -> NDArray[np.floating]:
        """Raw scores, (rows, labels), of texts by field; with out-of-scope scores, (rows, labels + 1), these last."""
        import pyarrow as pa

        if self._classifier is None:
            rows = make_rows(dict(texts), self.task, "the request")
            of_members = [member.scores(rows) for member in self._members]
            combined = self._finished.ensemble.combine(of_members, [member.weight for member in self._members], rows)
            if self.abstainer.scope is None:
                return combined
            folder = self._finished.ensemble.loader.scope_folder
            of_member = next(member for member in self._members if member.folder == folder).states(rows)
            return np.column_stack([combined, self.abstainer.scope.scores(of_member)])
        cleaned = {
            field: clean_texts(pa.array(column, pa.large_string()), self.task) for field, column in texts.items()
        }
        if isinstance(self._classifier, StaticClassifier):
            return self._classifier.score_texts(cleaned)
        return self._transformer_scores(self._classifier, cleaned)

    def _transformer_scores(self, classifier: Classifier, texts: Mapping[str, list[str]]) -> NDArray[np.floating]:
        """As `scores` has them, of cleaned texts."""
        import torch

        encoded = classifier.encode_texts(texts)
        labels, scope = len(self.task.labels), self.abstainer.scope
        scores = np.empty((len(encoded), labels + (scope is not None)), dtype=np.float32)
        with torch.inference_mode():
            for batch in classifier.batches(encoded, self._tokens_per_batch):
                if scope is None:
                    scores[batch.rows] = classifier.scores(batch).float().cpu().numpy()
                    continue
                logits, states = classifier.scores_and_states(batch)
                scores[batch.rows, :labels] = logits.float().cpu().numpy()
                scores[batch.rows, labels] = scope.scores(states[:, 1].cpu().numpy())
        return scores
