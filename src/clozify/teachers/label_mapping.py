"""Maps the labels of another classifier to those of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from clozify.config.task import Task
from clozify.errors import TaskError, quoted, unknown_names

UNMAPPED = -1


@dataclass(frozen=True)
class LabelMapping:
    """Which label of the task each label of a classifier stands for."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    indices: NDArray[np.int64]  # (theirs,): the index of ours, or `UNMAPPED`

    def log_probabilities(self, theirs: NDArray[np.floating]) -> NDArray[np.float32]:
        """Log-probabilities of our labels, (rows, ours), from those of theirs, (rows, theirs).

            log p(l) = log sum_{k -> l} p(k) - log sum_{k mapped} p(k)

        Labels of theirs that stand for none of ours are left out; one of ours that none stands for gets -inf. A row
        whose mapped labels all have the probability 0 is NaN, which is to abstain.
        """
        result = np.full((len(theirs), len(self.ours)), -np.inf)
        log_probabilities = np.asarray(theirs, dtype=np.float64)
        for label in np.unique(self.indices[self.indices != UNMAPPED]):
            result[:, label] = logsumexp(log_probabilities[:, self.indices == label], axis=1)
        total = logsumexp(result, axis=1, keepdims=True)
        total[np.isneginf(total)] = np.nan
        return np.asarray(result - total, dtype=np.float32)

    def notes(self, subject: str) -> list[str]:
        """Sentences about labels that are left out, on either side."""
        unmapped = [name for name, index in zip(self.theirs, self.indices, strict=True) if index == UNMAPPED]
        missing = [name for index, name in enumerate(self.ours) if index not in self.indices]
        sentences = []
        if unmapped:
            sentences.append(f"{subject}: its labels {quoted(unmapped)} stand for none of the task's and are left out.")
        if missing:
            sentences.append(f"{subject}: it never votes for {quoted(missing)}, which none of its labels stands for.")
        return sentences


def map_labels(
    theirs: Sequence[str],
    task: Task,
    explicit: Mapping[str, str],
    subject: str,
    advice: str = "",
    least: int = 2,
) -> LabelMapping:
    """The mapping by `explicit`, from their labels to the task's, and for all others by equal names.

    Names are equal whatever their case, and the task's aliases count as names: the list of names that has most of
    theirs is taken. `least` of the task's labels have to be mapped; `subject` and `advice` are parts of the messages.
    All faults are raised at once, as a `TaskError`.
    """
    name_lists = [[name.casefold() for name in names] for names in (task.labels, *task.aliases)]
    problems = []
    if unknown := [name for name in explicit if name not in theirs]:
        problems.append(f"{subject} has no label {unknown_names(unknown, theirs)}; its labels are {quoted(theirs)}.")
    explicit_indices = {name: _find(label, name_lists) for name, label in explicit.items()}
    if unknown := [explicit[name] for name, index in explicit_indices.items() if index == UNMAPPED]:
        names = unknown_names(unknown, task.labels)
        problems.append(
            f"{subject}: its labels are mapped to {names}, which the task does not have; its labels are "
            f"{quoted(task.labels)}."
        )
    remaining = [name.casefold() for name in theirs if name not in explicit]
    best = max(name_lists, key=lambda names: sum(name in names for name in remaining))
    indices = [explicit_indices[n] if n in explicit_indices else _find(n, [best]) for n in theirs]
    mapped = sorted({index for index in indices if index != UNMAPPED})
    if len(mapped) < least and not problems:
        stand_for = f"only '{task.labels[mapped[0]]}'" if mapped else "none"
        advice = advice or f'say which stands for which: labels = {{ "{theirs[0]}" = "{task.labels[0]}", ... }}'
        problems.append(
            f"{subject} has the labels {quoted(theirs)}, which stand for {stand_for} of the task's labels "
            f"{quoted(task.labels)}; {advice}."
        )
    if problems:
        raise TaskError(problems)
    return LabelMapping(tuple(theirs), tuple(task.labels), np.array(indices, dtype=np.int64))


def _find(name: str, name_lists: Sequence[Sequence[str]]) -> int:
    """The index of a name in the first list that has it, or `UNMAPPED`."""
    name = name.casefold()
    return next((names.index(name) for names in name_lists if name in names), UNMAPPED)
