"""The reference rows of a result's out-of-scope score, see `methods/scope.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.methods.scope import Scope
from clozify.methods.scope_states import classifier_states, member_states
from clozify.models.classifier import Classifier
from clozify.models.cloze import ClozeModel
from clozify.models.task_prompts import TaskPrompts
from clozify.pipeline.folds import Fold
from clozify.runs.plan import Plan
from clozify.runs.scope import max_reference_rows

SourceName: TypeAlias = Literal["labeled", "unlabeled"]
MEMBER_SCOPE = {"scope": 1}  # in the keys of members that keep weights; raised with changes of `scope.safetensors`


def classifier_scope(classifier: Classifier, plan: Plan) -> Scope:
    """The reference rows with a classifier's states."""
    embed = partial(classifier_states, classifier)
    return fit_scope(
        plan, int(classifier.model.config.hidden_size), lambda name, rows: embed(_select(plan, name, rows))
    )


def held_out_scope(classifier: Classifier, plan: Plan, fold: Fold) -> NDArray[np.float64]:
    """The out-of-scope scores of a fold's labelled rows by the classifier that was trained on the others: (rows,)."""
    limit = max_reference_rows(int(classifier.model.config.hidden_size))
    training = fold.training(plan)
    sample = np.sort(np.random.default_rng(plan.recipe.seed).permutation(training)[:limit])
    reference, held_out = (
        classifier_states(classifier, plan.labeled.select(rows)) for rows in (sample, fold.held_out(plan))
    )
    return Scope.fit(reference, np.ones(len(reference), dtype=bool)).scores(held_out)


def member_scope(model: ClozeModel, prompts: TaskPrompts, plan: Plan) -> Scope:
    """The reference rows with the states of an ensemble's member, whose pattern the prompts have alone."""
    embed = partial(member_states, model, prompts, max_length=plan.recipe.max_seq_length)
    hidden = int(model.model.config.hidden_size)
    return fit_scope(plan, hidden, lambda name, rows: embed(rows=_select(plan, name, rows)))


def fit_scope(plan: Plan, hidden: int, embed: Callable[[SourceName, NDArray[np.int64]], NDArray[Any]]) -> Scope:
    """Reference rows drawn from the labelled and the unlabelled rows; where there are many, half are labelled.

    `embed` returns the states, (rows, hidden), of the rows of a data set with these indices.
    """
    limit = max_reference_rows(hidden)
    unlabeled = 0 if plan.unlabeled is None else len(plan.unlabeled)
    labeled = min(len(plan.labeled), max(limit // 2, limit - unlabeled))
    rng = np.random.default_rng(plan.recipe.seed)
    samples: dict[SourceName, NDArray[np.int64]] = {
        "labeled": np.sort(rng.permutation(len(plan.labeled))[:labeled]),
        "unlabeled": np.sort(rng.permutation(unlabeled)[: limit - labeled]),
    }
    states = [embed(name, rows) for name, rows in samples.items() if len(rows)]
    reference = np.concatenate(states)  # (rows, hidden)
    return Scope.fit(reference, np.arange(len(reference)) < labeled)


def _select(plan: Plan, name: SourceName, indices: NDArray[np.int64]) -> Rows:
    rows = plan.labeled if name == "labeled" else plan.unlabeled
    assert rows is not None  # there are indices
    return rows.select(indices)
