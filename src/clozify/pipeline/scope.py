"""The reference rows of a trained classifier's out-of-scope score, see `methods/scope.py`."""

from __future__ import annotations

import numpy as np

from clozify.data.rows import Rows
from clozify.methods.scope import Scope
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.classifier import Classifier
from clozify.runs.plan import Plan
from clozify.runs.scope import max_reference_rows


def fit_scope(classifier: Classifier, plan: Plan, device: str) -> Scope:
    """Reference rows drawn from the labelled and the unlabelled rows; where there are many, half are labelled."""
    limit = max_reference_rows(int(classifier.model.config.hidden_size))
    unlabeled = 0 if plan.unlabeled is None else len(plan.unlabeled)
    labeled = min(len(plan.labeled), max(limit // 2, limit - unlabeled))
    rng = np.random.default_rng(plan.recipe.seed)
    samples = [_sample(plan.labeled, labeled, rng)]
    if plan.unlabeled is not None:
        samples.append(_sample(plan.unlabeled, limit - labeled, rng))
    budget = TOKENS_PER_BATCH[device]
    states = [states[:, 1] for rows in samples for _, _, states in classifier.embed_rows(rows, budget)]
    reference = np.concatenate(states)  # (rows, hidden)
    return Scope.fit(reference, np.arange(len(reference)) < labeled)


def _sample(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """At most `count` rows at random."""
    return rows.select(np.sort(rng.permutation(len(rows))[:count]))
