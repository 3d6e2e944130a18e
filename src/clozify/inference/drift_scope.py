"""Out-of-scope scores for `clozify drift`: distances from reference rows, which are kept with what is compared.

Half of the reference rows are kept, as states of 8 bits; the other half's distances from them are compared with those
of new rows. The rows of the run's own out-of-scope score are not used: reference rows may be among them.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from clozify.data.rows import Rows
from clozify.inference.finished_run import FinishedRun
from clozify.inference.scope import has_states, run_states
from clozify.methods.scope import Scope
from clozify.models.static_classifier import StaticClassifier
from clozify.prompts.encode import TOKENS_PER_BATCH
from clozify.runs.metrics import Record
from clozify.runs.scope import max_reference_rows
from clozify.utils.progress import progress

FEWEST_ROWS = 4  # of the reference, half of which are kept


class ReferenceStates(Record):
    """The directions of reference rows' states."""

    mean: list[float]  # (hidden,)
    vectors: str  # (rows, hidden) integers of 8 bits, in base64

    @model_validator(mode="after")
    def _whole_rows(self) -> ReferenceStates:
        try:
            size = len(base64.b64decode(self.vectors, validate=True))
        except binascii.Error:
            size = 0
        if not self.mean or not size or size % len(self.mean):
            raise ValueError("vectors need whole rows of the mean's width")
        return self

    @classmethod
    def of(cls, scope: Scope) -> ReferenceStates:
        """Of a scope's reference rows."""
        return cls(mean=scope.mean.tolist(), vectors=base64.b64encode(scope.vectors.tobytes()).decode("ascii"))

    def scores(self, states: NDArray[np.float32]) -> NDArray[np.float64]:
        """The out-of-scope scores of rows with these states, (rows, hidden): (rows,)."""
        mean = np.array(self.mean, dtype=np.float32)
        vectors = np.frombuffer(base64.b64decode(self.vectors), dtype=np.int8).reshape(-1, len(mean))
        return Scope(mean, vectors, np.zeros(0, dtype=np.float32)).scores(states)


def fit_reference(states: NDArray[np.float32] | None) -> Scope | None:
    """A scope of half of the rows, with the scores of the others; None without states, or with too few rows."""
    if states is None or len(states) < FEWEST_ROWS:
        return None
    return Scope.fit_to_half(states, max_reference_rows(states.shape[1]))


def probabilities_and_states(run: FinishedRun, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float32] | None]:
    """q(l | x) of each row, (rows, labels), and the states of out-of-scope scores, (rows, hidden), where there are."""
    if not has_states(run) or not len(rows):
        return run.probabilities(rows), None
    if run.classifier is None:
        return run.probabilities(rows), run_states(run, rows)
    classifier = run.loaded_classifier
    assert not isinstance(classifier, StaticClassifier)  # which has no states
    with progress("predicting", len(rows)) as advance:
        chunks = list(classifier.embed_rows(rows, TOKENS_PER_BATCH[run.device], advance))
    scores = np.concatenate([scores for _, scores, _ in chunks])
    return run.decision.probabilities(scores), np.concatenate([states[:, 1] for *_, states in chunks])
