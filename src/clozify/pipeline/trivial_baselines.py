"""What every run's result is compared with: TF-IDF with logistic regression, and the most frequent label."""

from __future__ import annotations

import numpy as np

from clozify.methods.tfidf import tfidf_predictions
from clozify.metrics import basic_metrics
from clozify.runs.metrics import TrivialBaselines
from clozify.runs.plan import Plan


def trivial_baselines(plan: Plan) -> TrivialBaselines | None:
    """The baselines' metrics on the test rows; None without test rows."""
    if plan.test is None:
        return None
    truth, labels = plan.test.targets, plan.task.labels
    if plan.task.multilabel:
        majority = int(truth.sum(axis=0).argmax())
        predicted = np.zeros_like(truth)
        predicted[:, majority] = 1
    else:
        majority = int(np.bincount(truth, minlength=len(labels)).argmax())
        predicted = np.full_like(truth, majority)
    tfidf = None
    if len(plan.labeled):
        tfidf = basic_metrics(truth, tfidf_predictions(plan.labeled, plan.test), len(labels))
    return TrivialBaselines(
        tfidf=tfidf,
        majority=basic_metrics(truth, predicted, len(labels)),
        majority_label=labels[majority],
    )
