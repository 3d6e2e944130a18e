"""Several labels a row: thresholds that are chosen on T alone, and how good the result is, without a test set.

Every fold of T is scored by a model without it. The models of the folds are those of the run's method: members of the
pair with the highest weight, or classifiers of the supervised baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from clozify.data.decision import Decision
from clozify.methods.label_set_reliability import HeldOutLabelSets, thresholds_without_fold
from clozify.methods.multilabel import choose_thresholds
from clozify.pipeline.folds import FEWEST_ROWS, Fold
from clozify.pipeline.run import Run
from clozify.runs.records import HELD_OUT_SCORES
from clozify.utils.checked_files import open_npy

NOT_CHOSEN = 0.5  # where T has too few rows to choose; a warning says so


def decide_by_folds(run: Run, folds: Sequence[Fold], paths: Sequence[Path]) -> tuple[Decision, HeldOutLabelSets | None]:
    """The decision with thresholds chosen on the scores of all folds, and these scores; `paths` are the folds' jobs.

    The scores are None where T has too few rows for an estimate. A threshold that the recipe sets is not chosen.
    """
    plan = run.plan
    targets, settings = plan.labeled.label_matrix, plan.recipe.multilabel
    scores, assigned = np.zeros(targets.shape), np.zeros(len(targets), dtype=np.int64)
    for fold, path in zip(folds, paths, strict=True):
        rows = fold.held_out(plan)
        scores[rows], assigned[rows] = open_npy(path / HELD_OUT_SCORES), fold.index
    if settings.threshold is None:
        decision = _decide_by_scores(run, scores, len(folds))
        chosen = thresholds_without_fold(scores, targets, assigned, plan.task.metric, settings.shrinkage)
    else:
        decision, chosen = decide_without_folds(run), np.full(targets.shape, logit(settings.threshold))
    if len(targets) < FEWEST_ROWS:
        return decision, None
    return decision, HeldOutLabelSets(scores, targets, chosen, len(folds))


def _decide_by_scores(run: Run, scores: NDArray[np.float64], folds: int) -> Decision:
    """The decision with thresholds chosen on the scores of T, (rows, labels)."""
    task, targets = run.plan.task, run.plan.labeled.label_matrix
    logits = choose_thresholds(scores, targets, task.metric, run.plan.recipe.multilabel.shrinkage)
    thresholds = expit(logits)
    run.context.log(
        f"thresholds, chosen on {len(targets):,} labelled rows in {folds} folds: {thresholds.min():.2f} to "
        f"{thresholds.max():.2f}"
    )
    return Decision(task.labels, tuple(thresholds.tolist()), task.separator)


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
