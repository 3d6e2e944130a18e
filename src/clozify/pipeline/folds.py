"""The folds of T that thresholds are chosen on, with several labels a row: which rows a fold's model does not see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.methods.multilabel import split_folds
from clozify.runs.plan import Plan


@dataclass(frozen=True)
class Fold:
    """One of the parts that T is split into."""

    index: int
    count: int

    def held_out(self, plan: Plan) -> NDArray[np.int64]:
        """The indices of the labelled rows that the fold's model scores."""
        return np.flatnonzero(self._assigned(plan) == self.index)

    def training(self, plan: Plan) -> NDArray[np.int64]:
        """The indices of the labelled rows that it is trained on."""
        return np.flatnonzero(self._assigned(plan) != self.index)

    def _assigned(self, plan: Plan) -> NDArray[np.int64]:
        return split_folds(plan.labeled.label_matrix, self.count, plan.recipe.seed)


def make_folds(plan: Plan) -> list[Fold]:
    """The folds of a run: none with one label a row, a fixed threshold, or too few labelled rows."""
    settings = plan.recipe.multilabel
    count = min(settings.folds, len(plan.labeled))
    if not plan.task.multilabel or settings.threshold is not None or count < 2 or plan.method == "frozen":
        return []
    return [Fold(index, count) for index in range(count)]
