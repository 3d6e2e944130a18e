"""A sequence classifier of Transformers as a teacher, its labels mapped to the task's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax

from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import ModelError, quoted
from clozify.models.loading import load_config
from clozify.models.model_key import model_key
from clozify.teachers.base import Cost, ScoringContext, abstentions
from clozify.teachers.label_mapping import LabelMapping, map_labels
from clozify.teachers.sequence_model import SequenceModel, config_labels, joined_texts
from clozify.utils.progress import progress


class ClassifierTeacher:
    """A sequence classifier by folder or hub name; weights are loaded to score and then dropped.

    - `labels`: the classifier's label -> the task's; labels of equal names need no entry.
    - `pair`: whether the last of several fields is the text pair, as a classifier of clozify reads them; else all
      fields are joined to one text.
    """

    kind = "classifier"

    def __init__(
        self, model: str | Path, labels: Mapping[str, str] | None = None, pair: bool = True, name: str | None = None
    ) -> None:
        self.model = str(model)
        self.labels = dict(labels or {})
        self.pair = pair
        self.name = name or self.model

    def key(self) -> dict[str, Any]:
        """The model's content, the mapping and how texts are read."""
        return {"model": model_key(self.model), "labels": self.labels, "pair": self.pair}

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Nothing but time on this machine."""
        return Cost()

    def check(self, task: Task) -> LabelMapping:
        """The mapping of the labels; raises an error with all faults, before any weights are loaded."""
        config = load_config(self.model, from_hub=True)
        labels = config_labels(config)
        if len(labels) < 2:
            raise ModelError(
                f"The model '{self.model}' has one output ({quoted(labels)}), as for a regression; name a classifier."
            )
        return map_labels(labels, task, self.labels, f"The classifier '{self.model}'")

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities, (rows, labels); NaN for rows without any token."""
        task = rows.task
        mapping = self.check(task)
        for sentence in mapping.notes(f"The teacher '{self.name}'"):
            context.log(sentence)
        model = SequenceModel(self.model, context.device)
        several = getattr(model.model.config, "problem_type", None) == "multi_label_classification"
        *first, last = task.fields
        as_pair = self.pair and bool(first)
        scores = abstentions(len(rows), len(task.labels))
        with progress(self.name, len(rows)) as advance:
            for start, stop in rows.chunks():
                texts = joined_texts(rows, first if as_pair else task.fields, start, stop)
                logits = model.logits(texts, rows.texts(last, start, stop) if as_pair else None, advance)
                theirs = log_expit(logits) if several else log_softmax(logits, axis=1)
                scores[start:stop] = mapping.log_probabilities(theirs)
        return scores
