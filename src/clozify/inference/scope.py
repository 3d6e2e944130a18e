"""Out-of-scope scores of a finished run: how far rows are from the rows that it was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.methods.scope import Scope
from clozify.models.classifier_folder import ONNX_FILE
from clozify.models.static_classifier import StaticClassifier
from clozify.runs.scope import SCOPE_FILE, load_scope
from clozify.utils.progress import progress

if TYPE_CHECKING:
    from clozify.inference.finished_run import FinishedRun


def scope_scores(run: FinishedRun, rows: Rows) -> NDArray[np.float64]:
    """Each row's out-of-scope score, (rows,): about 0 for a row like those of the training, 1 for an unrelated one."""
    _, scores = probabilities_and_scope(run, rows, load_run_scope(run))
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


def run_states(run: FinishedRun, rows: Rows) -> NDArray[np.float32]:
    """The states that out-of-scope scores compare, (rows, hidden): the classifier's, or those of one member."""
    if run.classifier is not None:
        from clozify.methods.scope_states import classifier_states

        classifier = run.loaded_classifier
        assert not isinstance(classifier, StaticClassifier)  # which has no states
        return classifier_states(classifier, rows)
    with progress("computing states", len(rows)) as advance:
        return run.ensemble.loader.load_scope_member().states(rows, advance)


def has_states(run: FinishedRun) -> bool:
    """Whether there are such states.

    Not of a static classifier, an ONNX export or an ensemble of causal or encoder-decoder models.
    """
    if run.classifier is None:
        return run.ensemble.loader.has_states
    return not run.is_static and not (run.classifier / ONNX_FILE).is_file()


def load_run_scope(run: FinishedRun) -> Scope:
    """The reference rows of a run's classifier, or of a member of its ensemble; a `RunError` where it has none."""
    if not has_states(run):
        if run.is_static:
            raise RunError(
                f"Out-of-scope scores need a transformer's states, and the classifier in '{run.folder}' is static; "
                "abstain by its confidence (--min-confidence, --max-risk), or train without --student static."
            )
        if run.classifier is not None:
            raise RunError(
                f"Out-of-scope scores need the classifier's states, which the ONNX export in '{run.folder}' does not "
                "return; name the run or the classifier's folder instead."
            )
        raise RunError(
            "Out-of-scope scores need the states of a classifier or of a masked language model, and the ensemble in "
            f"'{run.folder}' has neither; train with unlabelled rows (--unlabeled) for a classifier."
        )
    scope = load_scope(run.ensemble.loader.scope_folder if run.classifier is None else run.classifier)
    if scope is None:
        what = "ensemble" if run.classifier is None else "classifier"
        raise RunError(
            f"The {what} in '{run.folder}' has no {SCOPE_FILE}, which out-of-scope scores need; train again."
        )
    return scope
