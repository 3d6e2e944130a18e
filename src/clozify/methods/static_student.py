"""Distillation of soft labels into a static classifier, whose scores are linear in the counts of words and word pairs.

With n_f(x) how often a row has a feature and n the number of rows,

    idf_f = log((1 + n) / (1 + n(f))) + 1,    z_f(x) = n_f(x) idf_f / sqrt(sum_g n_g(x) idf_g^2),

where n(f) counts the rows that have f. The weights W and b minimize

    sum_x H(q(x), softmax(W z(x) + b)) + |W|^2 / (2 C),

which is convex, so that there is no seed; with several labels a row the sigmoid takes the place of the softmax. C and a
temperature T, by which W and b are divided, are those with the lowest cross-entropy on held-out rows: the penalty makes
scores small, and without T the choice would be of the C that does so least. Features that occur once are left out,
since they say nothing about other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_array
from scipy.special import expit, log_softmax

from clozify.models.hashed_words import NO_FEATURE, hash_texts
from clozify.models.static_classifier import SHIFT, FeatureTable, StaticWeights

MIN_COUNT = 2  # of a feature in all rows
MAX_FEATURES, MAX_WEIGHTS = 1 << 17, 1 << 21  # the file has 2 bytes a weight and 10 a feature
INVERSE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)  # C
DEFAULT_INVERSE_PENALTY = 10.0  # without held-out rows
LOG_TEMPERATURES = (-3.0, 3.0)
MAX_ITERATIONS, TOLERANCE = 100, 1e-6  # of L-BFGS


@dataclass(frozen=True)
class StaticFit:
    """The trained weights, and the scores of the rows that were held out when C was chosen."""

    weights: StaticWeights
    inverse_penalty: float  # C
    held_out_scores: NDArray[np.float32]  # (held-out rows, labels), by weights that were trained without them


def fit_static(
    texts: Mapping[str, Sequence[str]],
    targets: NDArray[np.floating],
    held_out: NDArray[np.int64],
    multilabel: bool = False,
) -> StaticFit:
    """Train a static classifier on texts by field with soft labels, (rows, labels).

    C and T are chosen on the rows with the indices `held_out`, if there are any; the result is trained on all rows.
    """
    targets = np.asarray(targets, dtype=np.float32)
    keys = select_features(texts, targets.shape[1])
    counts = count_features(texts, keys)
    idf = (np.log((1 + counts.shape[0]) / (1 + np.bincount(counts.indices, minlength=len(keys)))) + 1).astype(
        np.float32
    )
    inputs = _normalize(counts, idf)
    is_held_out = np.zeros(len(targets), dtype=bool)
    is_held_out[held_out] = True
    solution = np.zeros((len(keys) + 1, targets.shape[1]), dtype=np.float32)  # W, and b last
    chosen, temperature = DEFAULT_INVERSE_PENALTY, 1.0
    held_out_scores = np.zeros((0, targets.shape[1]), dtype=np.float32)
    if len(held_out):
        training, best = np.flatnonzero(~is_held_out), np.inf
        for inverse_penalty in INVERSE_PENALTIES:
            tried = _minimize(inputs[training], targets[training], inverse_penalty, solution, multilabel)
            scores = _scores(inputs[held_out], tried)
            tried_temperature, loss = _best_temperature(scores, targets[held_out], multilabel)
            if loss >= best:
                break
            best, chosen, solution, temperature = loss, inverse_penalty, tried, tried_temperature
            held_out_scores = (scores / temperature).astype(np.float32)
    solution = _minimize(inputs, targets, chosen, solution, multilabel)
    weights = StaticWeights(keys, solution[:-1] * idf[:, None], idf, solution[-1]).divided_by(temperature)
    return StaticFit(weights, chosen, held_out_scores)


def agreement(scores: NDArray[np.floating], targets: NDArray[np.floating], multilabel: bool = False) -> float:
    """The share of rows with the targets' likeliest label; with several labels a row, of equal decisions at 0.5."""
    if multilabel:
        return float(((scores >= 0) == (targets >= 0.5)).mean())
    return float((scores.argmax(axis=-1) == targets.argmax(axis=-1)).mean())


def lost_accuracy(scores: NDArray[np.floating], targets: NDArray[np.floating]) -> float:
    """How much less accurate the scores' labels are than the targets' likeliest ones, if the targets are probabilities.

    mean_x (max_l q(l | x) - q(l'(x) | x)), with l' the label of the scores.
    """
    chosen = np.take_along_axis(targets, scores.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    return float((targets.max(axis=-1) - chosen).mean())


def select_features(texts: Mapping[str, Sequence[str]], labels: int) -> NDArray[np.uint64]:
    """The keys of the most frequent words and pairs; of those that share a slot, the most frequent one."""
    batches = [features.keys for field in texts.values() for features in hash_texts(field)]
    keys, counts = np.unique(np.concatenate(batches) if batches else np.zeros(0, np.uint64), return_counts=True)
    kept = (counts >= MIN_COUNT) & (keys != NO_FEATURE)
    keys, counts = keys[kept], counts[kept]
    order = np.argsort(-counts, kind="stable")[: min(MAX_FEATURES, MAX_WEIGHTS // labels)]
    _, first = np.unique(keys[order] >> SHIFT, return_index=True)  # of each slot
    return np.sort(keys[order[first]])


def count_features(texts: Mapping[str, Sequence[str]], keys: NDArray[np.uint64]) -> csr_array:
    """How often each row has each feature in all its fields: (rows, features)."""
    from scipy.sparse import vstack

    table = FeatureTable(keys)
    rows = max(map(len, texts.values()))
    counts = csr_array((rows, len(keys)), dtype=np.float32)
    for field in texts.values():
        batches = [batch[:, :-1] for batch in table.count(field)]
        if batches:
            counts = counts + vstack(batches, format="csr")
    return csr_array(counts)


def _normalize(counts: csr_array, idf: NDArray[np.float32]) -> csr_array:
    """z: (rows, features)."""
    norms = np.sqrt(np.maximum(counts @ idf**2, 1e-12))
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    values = counts.data * idf[counts.indices] / norms[rows]
    return csr_array((values.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)


def _scores(inputs: csr_array, solution: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(inputs @ solution[:-1] + solution[-1])


def _loss_and_gradient(
    scores: NDArray[np.float32], targets: NDArray[np.float32], multilabel: bool
) -> tuple[float, NDArray[np.float32]]:
    """The sum of all rows' cross-entropy, and its gradient by the scores, (rows, labels)."""
    if multilabel:
        losses = np.logaddexp(0, scores) - targets * scores
        return float(losses.sum(dtype=np.float64)), (expit(scores) - targets).astype(np.float32)
    log_probabilities = log_softmax(scores, axis=-1)
    gradient = np.exp(log_probabilities) * targets.sum(axis=-1, keepdims=True) - targets
    return -float((targets * log_probabilities).sum(dtype=np.float64)), gradient.astype(np.float32)


def _best_temperature(
    scores: NDArray[np.float32], targets: NDArray[np.float32], multilabel: bool
) -> tuple[float, float]:
    """T with the lowest cross-entropy of the scores divided by it, and this cross-entropy."""

    def loss(log_temperature: float) -> float:
        return _loss_and_gradient(scores / np.float32(np.exp(log_temperature)), targets, multilabel)[0]

    result = minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded")
    return float(np.exp(result.x)), float(result.fun)


def _minimize(
    inputs: csr_array,
    targets: NDArray[np.float32],
    inverse_penalty: float,
    start: NDArray[np.float32],
    multilabel: bool,
) -> NDArray[np.float32]:
    """W and, in the last line, b at the minimum, found from `start` by L-BFGS."""
    transposed, rows = csr_array(inputs.T), max(1, len(targets))

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        solution = flat.reshape(start.shape).astype(np.float32)
        loss, gradient = _loss_and_gradient(_scores(inputs, solution), targets, multilabel)
        penalty = float((solution[:-1].astype(np.float64) ** 2).sum()) / (2 * inverse_penalty)
        of_weights = transposed @ gradient + solution[:-1] / inverse_penalty
        of_all = np.concatenate([of_weights, gradient.sum(axis=0, keepdims=True)])
        return (loss + penalty) / rows, of_all.ravel().astype(np.float64) / rows

    options = {"maxiter": MAX_ITERATIONS, "maxcor": 5, "ftol": TOLERANCE, "gtol": TOLERANCE}
    result = minimize(objective, start.ravel().astype(np.float64), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(result.x.reshape(start.shape), dtype=np.float32)
