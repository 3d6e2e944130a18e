"""Thresholds of the labels, with several labels a row, chosen on T alone: every fold is scored by a model without it.

The models of the folds are those of the run's method: members of the pair with the highest weight, or classifiers of
the supervised baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import expit

from clozify.data.decision import Decision
from clozify.methods.multilabel import choose_thresholds
from clozify.pipeline.folds import Fold
from clozify.pipeline.run import Run
from clozify.runs.records import HELD_OUT_SCORES
from clozify.utils.checked_files import open_npy

NOT_CHOSEN = 0.5  # where T has too few rows to choose; a warning says so


def decide_by_folds(run: Run, folds: Sequence[Fold], paths: Sequence[Path]) -> Decision:
    """The decision with thresholds chosen on the scores of all folds; `paths` are the folders of the folds' jobs."""
    plan = run.plan
    targets = plan.labeled.label_matrix
    scores = np.zeros(targets.shape)
    for fold, path in zip(folds, paths, strict=True):
        scores[fold.held_out(plan)] = open_npy(path / HELD_OUT_SCORES)
    settings = plan.recipe.multilabel
    logits = choose_thresholds(scores, targets, plan.task.metric, settings.shrinkage)
    thresholds = expit(logits)
    run.context.log(
        f"thresholds, chosen on {len(targets):,} labelled rows in {len(folds)} folds: {thresholds.min():.2f} to "
        f"{thresholds.max():.2f}"
    )
    return Decision(plan.task.labels, tuple(thresholds.tolist()), plan.task.separator)


def decide_without_folds(run: Run) -> Decision:
    """The decision without chosen thresholds: one label a row, a fixed threshold or, with a warning, too few rows."""
    task, settings = run.plan.task, run.plan.recipe.multilabel
    if not task.multilabel:
        return Decision(task.labels)
    if settings.threshold is None:
        run.context.warn(
            f"With {len(run.plan.labeled)} labelled rows no threshold can be chosen: a label is predicted from a "
            f"probability of {NOT_CHOSEN} on; label more rows, or set multilabel.threshold."
        )
    threshold = settings.threshold or NOT_CHOSEN
    return Decision(task.labels, (threshold,) * len(task.labels), task.separator)
