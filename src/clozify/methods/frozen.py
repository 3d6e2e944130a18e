"""PET with a frozen encoder: only the labels' vectors are fitted, to states that are computed once.

A row x in a pattern has two states: h(x), the state at the mask after the head's transformation, which is multiplied
with the words' vectors, and p(x), the mean of the states of all tokens. h'(x) and p'(x) are these less their means over
the unlabelled rows (over T without any), divided by the root mean square of their norms there. With u_l, the mean of
the vectors of the label's words,

    s(l | x) = u_l (h(x) - mean h) + v_l [h'(x), p'(x), 1]

and v minimises  sum_T -log softmax(s(. | x))_y  +  penalty / 2  sum_l |v_l|^2,  so that a label's vector stays near its
words'. The penalty is chosen by cross-validation on T. The problem is convex, and nothing depends on a seed. Without
labelled rows v = 0, and s is the score of section 3.1 less its mean.

With several labels a row, which `clozify audit` fits, the softmax is a sigmoid of each s(l | x) - b_l, with the zero
points b of `methods/multilabel.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax, softmax

from clozify.methods.multilabel import split_folds, zero_points_of
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import EncodedRows

DTYPE = np.float16  # of states, wherever they come from, so that kept ones give the same scores as new ones
MAX_ITERATIONS = 1000
TOLERANCE = 1e-4  # of the gradient
PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03)  # to choose from; the largest, whose fit is nearest to the start, first
DEFAULT_PENALTY = 0.1  # where too few rows share a label for a choice
FOLDS = 5
MANY_LABELS = 50  # with more, the penalty is chosen on the rows of so many of them
MAX_HELD_OUT = 500  # rows that a penalty is chosen on


@dataclass(frozen=True)
class LabelVectors:
    """An affine function from a row's states [h(x), p(x)] to the labels' scores."""

    vectors: NDArray[np.float64]  # (labels, states)
    biases: NDArray[np.float64]  # (labels,)

    def scores(self, states: NDArray[Any]) -> NDArray[np.float32]:
        """Raw scores: (rows, states) -> (rows, labels)."""
        scores = states.astype(np.float64) @ self.vectors.T + self.biases
        return scores.astype(np.float32)

    def to_array(self) -> NDArray[np.float64]:
        """The vectors, each followed by its bias: (labels, states + 1)."""
        return np.column_stack([self.vectors, self.biases])

    @classmethod
    def from_array(cls, array: NDArray[np.float64]) -> LabelVectors:
        """What `to_array` returned."""
        return cls(array[:, :-1], array[:, -1])


@dataclass(frozen=True)
class Centre:
    """Means and scales of states."""

    mean: NDArray[np.float64]  # (states,)
    scale: NDArray[np.float64]  # (states,): the root mean square of the norm of h, and of p

    @classmethod
    def of(cls, chunks: Iterable[NDArray[Any]], width: int) -> Centre:
        """Of states in chunks, (rows, states) each, of which the first `width` are h."""
        count, total, squares = 0, np.zeros(0), np.zeros(0)
        for chunk in chunks:
            states = chunk.astype(np.float64)
            count += len(states)
            total = states.sum(axis=0) + (total if len(total) else 0.0)
            squares = (states**2).sum(axis=0) + (squares if len(squares) else 0.0)
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0.0)
        norms = [np.sqrt(part.sum()) for part in np.split(variance, [width])]
        scale = np.repeat([norm if norm > 1e-6 else 1.0 for norm in norms], [width, len(mean) - width])
        return cls(mean, scale)


@torch.inference_mode()
def compute_states(
    model: ClozeModel, rows: EncodedRows, advance: Callable[[int], None] = lambda count: None
) -> NDArray[np.float16]:
    """The states [h(x), p(x)] of all rows in one pattern, (rows, states)."""
    token_budget = TOKENS_PER_BATCH.get(model.device.type, TOKENS_PER_BATCH["cpu"])
    states: NDArray[np.float16] | None = None
    with model.scoring():
        for batch in rows.batches(token_budget):
            values = torch.cat(model.transformed_and_mean_states(batch), dim=1).float().cpu().numpy()
            if states is None:
                states = np.empty((len(rows), values.shape[1]), dtype=DTYPE)
            largest = np.finfo(DTYPE).max
            states[batch.rows] = np.clip(values, -largest, largest)
            advance(len(batch.rows))
    assert states is not None  # there are rows
    return states


def pad_words(words: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The words' vectors u, (labels, width), with zeros for p(x): (labels, size)."""
    return np.pad(words, ((0, 0), (0, size - words.shape[1])))


def fit_label_vectors(
    states: NDArray[Any],
    labels: NDArray[np.integer[Any]],
    words: NDArray[np.float64],
    centre: Centre,
    penalty: float | None = None,
) -> tuple[LabelVectors, float | None]:
    """The label vectors that fit the states of T, (rows, states), and its labels; `words` is u, (labels, width).

    With several labels a row, labels are 0 and 1, (rows, labels). Also returns the penalty: without one,
    `choose_penalty` decides; None without rows.
    """
    start = pad_words(words, len(centre.mean))
    if not len(labels):
        return LabelVectors(start, -start @ centre.mean), None
    centred = states.astype(np.float64) - centre.mean
    offsets = centred @ start.T  # (rows, labels)
    zero_points = zero_points_of(offsets, labels) if labels.ndim == 2 else np.zeros(len(start))
    offsets -= zero_points
    features = np.column_stack([centred / centre.scale, np.ones(len(labels))])
    basis = None
    if len(features) < features.shape[1]:  # v is in the space of the rows: searched for there, it takes less time
        basis, triangle = np.linalg.qr(features.T)  # (states + 1, rows), (rows, rows)
        features = triangle.T
    with one_thread() if offsets.shape[1] > MANY_LABELS else nullcontext():
        penalty = penalty or choose_penalty(features, labels, offsets)
        v = fit_logistic(features, labels, offsets, penalty)
    v = v if basis is None else v @ basis.T  # (labels, states + 1)
    vectors = start + v[:, :-1] / centre.scale
    return LabelVectors(vectors, v[:, -1] - vectors @ centre.mean - zero_points), penalty


def one_thread() -> AbstractContextManager[object]:
    """BLAS with one thread: its products are small.

    Two threads that wait for each other took 20 times as long on a machine that other programs used, too.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, "blas")
    return limits


def choose_penalty(
    features: NDArray[np.float64], labels: NDArray[np.integer[Any]], offsets: NDArray[np.float64]
) -> float:
    """The penalty with the highest likelihood of held-out rows in a stratified cross-validation.

    With one label a row, a row is held out only if its label has other rows; where that is less than half of all, there
    is a default. Of many labels some are taken with their rows, since the time of a fit grows with their square.
    """
    if labels.ndim == 2:
        spaced = np.linspace(0, len(labels) - 1, min(len(labels), MAX_HELD_OUT)).astype(np.int64)
        features, labels, offsets = features[spaced], labels[spaced], offsets[spaced]
        return _best_penalty(features, labels, offsets, split_folds(labels, FOLDS, seed=0))
    if offsets.shape[1] > MANY_LABELS:
        chosen = np.unique(labels)
        chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MANY_LABELS)).astype(np.int64)]
        rows = np.isin(labels, chosen)
        features, labels, offsets = features[rows], np.searchsorted(chosen, labels[rows]), offsets[rows][:, chosen]
    order = np.argsort(labels, kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(len(order), MAX_HELD_OUT)).astype(np.int64)]
    features, labels, offsets = features[order], labels[order], offsets[order]
    repeated = np.bincount(labels)[labels] > 1
    if 2 * repeated.sum() < len(labels):
        return DEFAULT_PENALTY
    folds = np.where(repeated, np.arange(len(labels)) % FOLDS, -1)  # rows of one label are consecutive
    return _best_penalty(features, labels, offsets, folds)


def _best_penalty(
    features: NDArray[np.float64],
    labels: NDArray[np.integer[Any]],
    offsets: NDArray[np.float64],
    folds: NDArray[np.int64],
) -> float:
    """The penalty with the highest likelihood of the rows of each fold, (rows,), by fits to the others."""
    likelihood = dict.fromkeys(PENALTIES, 0.0)
    for fold in range(FOLDS):
        held_out, start = folds == fold, None
        for penalty in PENALTIES:
            start = fit_logistic(features[~held_out], labels[~held_out], offsets[~held_out], penalty, start)
            likelihood[penalty] += log_likelihood(offsets[held_out] + features[held_out] @ start.T, labels[held_out])
    return max(PENALTIES, key=lambda penalty: likelihood[penalty])


def log_likelihood(scores: NDArray[np.float64], labels: NDArray[np.integer[Any]]) -> float:
    """Of labels, (rows,), by the softmax of the scores, (rows, labels), or of 0 and 1, (rows, labels), by sigmoids."""
    if labels.ndim == 2:
        return float(log_expit(np.where(labels == 1, scores, -scores)).sum())
    return float(log_softmax(scores, axis=1)[np.arange(len(labels)), labels].sum())


def probabilities_of(scores: NDArray[Any], multilabel: bool) -> NDArray[np.float64]:
    """The softmax of the scores or, with several labels a row, the sigmoid of each: (rows, labels)."""
    return np.asarray(expit(scores) if multilabel else softmax(scores, axis=1))


def fit_logistic(
    features: NDArray[np.float64],
    labels: NDArray[np.integer[Any]],
    offsets: NDArray[np.float64],
    penalty: float,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Multinomial logistic regression on top of fixed scores, `offsets`, (rows, labels); returns v, (labels, features).

    Minimises sum -log softmax(offsets + features v^T)_y + penalty / 2 |v|^2, from `start`. With several labels a row,
    labels are 0 and 1, (rows, labels), and the softmax is a sigmoid of each score.
    """
    multilabel = labels.ndim == 2
    truth = labels.astype(np.float64) if multilabel else np.eye(offsets.shape[1])[labels]  # (rows, labels)

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        v = flat.reshape(truth.shape[1], -1)
        scores = offsets + features @ v.T
        gradient = (probabilities_of(scores, multilabel) - truth).T @ features + penalty * v
        return float(penalty / 2 * (flat @ flat) - log_likelihood(scores, labels)), gradient.ravel()

    first = np.zeros((truth.shape[1], features.shape[1])) if start is None else start
    options = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS, "gtol": TOLERANCE, "ftol": 1e-12}
    result = minimize(loss, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    v: NDArray[np.float64] = result.x.reshape(first.shape)
    return v
