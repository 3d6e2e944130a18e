"""A model of natural language inference as a zero-shot teacher (Yin et al., 2019).

A row's text is the premise and each label has a hypothesis; a label's probability is the softmax, over the labels, of
the hypotheses' logits of entailment, as in Transformers' pipeline "zero-shot-classification".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from clozify.config.task import Task
from clozify.config.teachers import LABEL_SLOT, NliEntry
from clozify.data.rows import Rows, chunk_rows
from clozify.errors import ModelError, TaskError, quoted
from clozify.models.model_key import model_key
from clozify.teachers.base import Cost, ScoringContext, abstentions
from clozify.teachers.sequence_model import SequenceModel, joined_texts, model_labels
from clozify.utils.progress import progress

DEFAULT_HYPOTHESIS: str = NliEntry.model_fields["hypothesis"].default


class NliTeacher:
    """An NLI model by folder or hub name; weights are loaded to score and then dropped.

    `hypothesis` has `{label}` where the first word of each label goes.
    """

    kind = "nli"

    def __init__(self, model: str | Path, hypothesis: str = DEFAULT_HYPOTHESIS, name: str | None = None) -> None:
        if LABEL_SLOT not in hypothesis:
            raise TaskError(f"The hypothesis '{hypothesis}' has no {LABEL_SLOT}; write it where the label's word goes.")
        self.model = str(model)
        self.hypothesis = hypothesis
        self.name = name or self.model

    def key(self) -> dict[str, Any]:
        """The model's content and the hypothesis; the labels' words are the task's."""
        return {"model": model_key(self.model), "hypothesis": self.hypothesis}

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Nothing but time on this machine."""
        return Cost()

    def hypotheses(self, task: Task) -> list[str]:
        """The hypothesis of each label."""
        return [self.hypothesis.replace(LABEL_SLOT, task.verbalizers[0].words[label][0]) for label in task.labels]

    def check(self, task: Task) -> int:  # noqa: ARG002
        """The index of the class of entailment; raises an error before any weights are loaded."""
        labels = model_labels(self.model)
        indices = [index for index, label in enumerate(labels) if label.lower().startswith("entail")]
        if len(indices) != 1 or len(labels) < 2:
            raise ModelError(
                f"The model '{self.model}' has the labels {quoted(labels)}, none of which is 'entailment'; name a "
                'model of natural language inference, or use it as kind = "classifier".'
            )
        return indices[0]

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities, (rows, labels)."""
        task = rows.task
        entailment = self.check(task)
        model = SequenceModel(self.model, context.device)
        hypotheses = self.hypotheses(task)
        count = len(hypotheses)
        scores = abstentions(len(rows), count)
        with progress(self.name, len(rows) * count, "hypotheses") as advance:
            for start, stop in rows.chunks(chunk_rows(1_000 * count)):
                premises = joined_texts(rows, task.fields, start, stop)
                logits = model.logits(np.repeat(premises, count).tolist(), hypotheses * len(premises), advance)
                scores[start:stop] = log_softmax(logits[:, entailment].reshape(-1, count), axis=1)
        return scores
