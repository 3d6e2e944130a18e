"""From scores to probabilities and predicted labels: one label a row, or all labels above their thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, softmax

from clozify.config.task import Task
from clozify.data.label_matrix import join_labels
from clozify.errors import ModelError, quoted


@dataclass(frozen=True)
class Decision:
    """How a model's scores are read; `thresholds`, probabilities, are there where rows may have several labels."""

    labels: Sequence[str]
    thresholds: tuple[float, ...] | None = None
    separator: str = "|"
    temperature: float = 1.0  # that scores are divided by

    @property
    def multilabel(self) -> bool:
        """Whether a row may have several labels, or none."""
        return self.thresholds is not None

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """The softmax of the scores or, with several labels a row, the sigmoid of each: (rows, labels)."""
        scores = np.asarray(scores, dtype=np.float64) / self.temperature
        probabilities: NDArray[np.float64] = expit(scores) if self.multilabel else softmax(scores, axis=-1)
        return probabilities

    def predict(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """The best label's index, (rows,), or 1 for every label at or above its threshold, (rows, labels)."""
        if self.thresholds is None:
            indices: NDArray[Any] = probabilities.argmax(axis=-1)
            return indices
        return (probabilities >= np.asarray(self.thresholds)).astype(np.int8)

    def confidence(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability that each row's prediction is right, (rows,): of several labels, `label_set_confidence`."""
        if not self.multilabel:
            best: NDArray[np.float64] = probabilities.max(axis=-1)
            return best
        return label_set_confidence(probabilities, self.predict(probabilities))

    def certainty(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """The mean probability of each row's predicted labels; where none is predicted, that of the best not being."""
        probabilities = self.probabilities(scores)
        if not self.multilabel:
            best: NDArray[np.float64] = probabilities.max(axis=-1)
            return best
        predicted = self.predict(probabilities)
        counts = predicted.sum(axis=-1)
        mean = (probabilities * predicted).sum(axis=-1) / np.maximum(counts, 1)
        return np.asarray(np.where(counts > 0, mean, 1 - probabilities.max(axis=-1)))

    def same(self, scores: NDArray[Any], others: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each row gets the same labels by both scores: (rows,)."""
        one, other = (self.predict(self.probabilities(each)) for each in (scores, others))
        return np.asarray((one == other).all(axis=-1) if self.multilabel else one == other)

    def names(self, predicted: NDArray[Any]) -> list[str]:
        """The names of predicted labels, several in one text."""
        if not self.multilabel:
            return [self.labels[index] for index in predicted]
        return [join_labels(names, self.separator) for names in self.name_lists(predicted)]

    def name_of(self, scores: NDArray[Any]) -> str:
        """The names of the labels that one row's scores, (1, labels), mean."""
        (name,) = self.names(self.predict(self.probabilities(scores)))
        return name

    def name_lists(self, predicted: NDArray[Any]) -> list[list[str]]:
        """The names of each row's labels, from a matrix of 0 and 1."""
        return [[self.labels[index] for index in np.flatnonzero(row).tolist()] for row in predicted]

    def at_temperature(self, temperature: float) -> Decision:
        """The same decision for a model whose scores are these divided by a temperature."""
        if self.thresholds is None:
            return self
        return replace(self, thresholds=tuple(expit(logit(np.array(self.thresholds)) / temperature).tolist()))

    def by_label(self) -> dict[str, float] | None:
        """The labels' thresholds by name."""
        return None if self.thresholds is None else dict(zip(self.labels, self.thresholds, strict=True))


def label_set_confidence(probabilities: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.float64]:
    """The probability that a row has exactly the predicted labels, as if labels were independent: (rows,).

    It is the product of p(l | x) over the predicted labels, and of 1 - p(l | x) over the others; (rows, labels) twice.
    """
    of_decisions: NDArray[np.float64] = np.where(predicted == 1, probabilities, 1 - probabilities)
    return np.asarray(of_decisions.prod(axis=-1))


def decision_of(task: Task, thresholds: Mapping[str, float] | None, source: str) -> Decision:
    """The decision of a trained model with these thresholds; `source` names where they were looked for."""
    if not task.multilabel:
        return Decision(task.labels)
    if not isinstance(thresholds, Mapping) or (missing := [label for label in task.labels if label not in thresholds]):
        which = "" if not isinstance(thresholds, Mapping) else f" of {quoted(missing, 3)}"
        raise ModelError(f"The file '{source}' lacks the thresholds{which}; copy the folder again, or train again.")
    try:
        values = tuple(float(thresholds[label]) for label in task.labels)
    except (TypeError, ValueError):
        values = (np.nan,)
    if not all(0 <= value <= 1 for value in values):
        raise ModelError(f"The file '{source}' has thresholds that are no numbers from 0 to 1; train again.")
    return Decision(task.labels, values, task.separator)
