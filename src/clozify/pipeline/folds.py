"""The folds of T: which labelled rows a model is trained without, to score them.

The result is estimated on these scores; with several labels a row, thresholds are chosen on them, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozify.data.label_matrix import indicators
from clozify.methods.multilabel import split_folds
from clozify.runs.plan import Plan

FEWEST_ROWS = 10  # of T, to estimate an accuracy
ESTIMATED_METHODS = ("pet", "ipet", "frozen", "supervised")


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
        return split_folds(indicators(plan.labeled).astype(np.int8), self.count, plan.recipe.seed)


def make_folds(plan: Plan) -> list[Fold]:
    """The folds that thresholds are chosen on, and the result estimated: none with one label a row, or too few rows.

    With a fixed threshold, they are for the estimate alone, and none where that is not asked for.
    """
    settings = plan.recipe.multilabel
    count = min(settings.folds, len(plan.labeled))
    if settings.threshold is not None:
        count = plan.recipe.estimate.folds if len(plan.labeled) >= FEWEST_ROWS else 0
    if not plan.task.multilabel or count < 2 or plan.method == "frozen":
        return []
    return [Fold(index, count) for index in range(count)]


def estimate_folds(plan: Plan) -> list[Fold]:
    """The folds that the accuracy is estimated on, with one label a row; none with too few rows."""
    count = plan.recipe.estimate.folds
    if plan.task.multilabel or count < 2 or len(plan.labeled) < FEWEST_ROWS or plan.method not in ESTIMATED_METHODS:
        return []
    return [Fold(index, count) for index in range(count)]


def estimate_pairs(plan: Plan) -> int:
    """How many pairs are trained without each fold."""
    pairs = plan.member_pairs
    return min(pairs, plan.recipe.estimate.pairs or pairs)
