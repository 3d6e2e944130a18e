"""Out-of-scope scores of a finished run: how far rows are from the rows that its classifier was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.methods.scope import Scope
from clozify.models.classifier_folder import ONNX_FILE
from clozify.models.static_classifier import is_static
from clozify.runs.scope import SCOPE_FILE, load_scope

if TYPE_CHECKING:
    from clozify.inference.finished_run import FinishedRun


def scope_scores(run: FinishedRun, rows: Rows) -> NDArray[np.float64]:
    """Each row's out-of-scope score, (rows,): about 0 for a row like those of the training, 1 for an unrelated one."""
    _, scores = probabilities_and_scope(run, rows, classifier_scope(run.classifier, run.folder))
    assert scores is not None  # there is a scope
    return scores


def probabilities_and_scope(
    run: FinishedRun, rows: Rows, scope: Scope | None
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """q(l | x) of each row, (rows, labels), and with a scope the out-of-scope scores, (rows,)."""
    if scope is None or not len(rows):
        return run.probabilities(rows), None if scope is None else np.zeros(0)
    chunks = list(run.score_chunks(rows, scope))
    scores = [scores for *_, scores in chunks if scores is not None]
    return np.concatenate([probabilities for _, probabilities, _ in chunks]), np.concatenate(scores)


def classifier_scope(classifier: Path | None, folder: Path) -> Scope:
    """The reference rows of a classifier; `folder` is what a user named. Raises a `RunError` where it has none."""
    if classifier is None:
        raise RunError(
            f"Out-of-scope scores need a classifier, but '{folder}' is an ensemble; train with unlabelled rows "
            "(--unlabeled)."
        )
    if (classifier / ONNX_FILE).is_file():
        raise RunError(
            f"Out-of-scope scores need the classifier's states, which the ONNX export in '{folder}' does not return; "
            "name the run or the classifier's folder instead."
        )
    if is_static(classifier):
        raise RunError(
            f"Out-of-scope scores need a transformer's states, and the classifier in '{folder}' is static; abstain by "
            "its confidence (--min-confidence, --max-risk), or train without --student static."
        )
    scope = load_scope(classifier)
    if scope is None:
        raise RunError(
            f"The classifier in '{folder}' has no {SCOPE_FILE}, which out-of-scope scores need; train again."
        )
    return scope
