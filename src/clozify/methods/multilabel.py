"""Several labels a row: where each label's score starts from, and the thresholds above which labels are predicted.

The paper has one label a row. Here every label is a yes-or-no question of its own: a member is trained with a binary
cross-entropy on s(l | x) - b_l, since raw scores of a masked language model have an arbitrary height for each pattern
and word. b_l is chosen so that a label's mean logit on T is that of its frequency in T before training, and it stays.

F1 is highest at other thresholds than a probability of 0.5, and labels have few rows: T is split into folds, members
are trained without one fold each and score it, and thresholds are chosen on these scores. A label's own threshold is
drawn towards the common one, the more the fewer rows it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from clozify.metrics import basic_metrics

MAX_CANDIDATES = 200  # thresholds that are compared where a metric has no curve


def label_frequencies(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Each label's smoothed frequency, (n_l + 0.5) / (N + 1), from a matrix of 0 and 1, (rows, labels): (labels,)."""
    frequencies: NDArray[np.float64] = (targets.sum(axis=0) + 0.5) / (len(targets) + 1)
    return frequencies


def zero_points_of(scores: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.float64]:
    """b: the labels' mean scores minus the logits of their frequencies; (..., rows, labels) -> (..., labels)."""
    zero_points: NDArray[np.float64] = scores.astype(np.float64).mean(axis=-2) - logit(label_frequencies(targets))
    return zero_points


def split_folds(targets: NDArray[Any], folds: int, seed: int) -> NDArray[np.int64]:
    """Each row's fold, 0 to `folds` - 1: (rows,). Every label's rows are spread as evenly as possible, rare ones first.

    Rows are taken in random order; each goes to the fold that has the fewest rows with its rarest label and, of these,
    the fewest rows.
    """
    rng = np.random.default_rng(seed)
    counts = np.where(targets == 1, targets.sum(axis=0), len(targets) + 1)  # (rows, labels)
    rarest, rarity = counts.argmin(axis=1), counts.min(axis=1)
    rarest[rarity > len(targets)] = targets.shape[1]  # rows without a label are spread too
    order = rng.permutation(len(targets))
    order = order[np.argsort(rarity[order], kind="stable")]
    sizes = np.zeros((folds, targets.shape[1] + 2), dtype=np.int64)  # rows with each label, without any, and all
    assigned = np.empty(len(targets), dtype=np.int64)
    for row in order:
        fold = min(range(folds), key=lambda index: (sizes[index, rarest[row]], sizes[index, -1]))
        assigned[row] = fold
        sizes[fold] += [*targets[row], not targets[row].any(), 1]
    return assigned


def best_f1_threshold(scores: NDArray[Any], truth: NDArray[Any]) -> float:
    """The threshold of scores, (n,), with the highest F1 for the truth, 0 and 1: midway to the next lower score."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, thresholds = precision_recall_curve(truth, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(f1[:-1].argmax())
    return float((thresholds[best] + thresholds[max(0, best - 1)]) / 2)


def common_threshold(scores: NDArray[Any], targets: NDArray[Any], metric: str) -> float:
    """The threshold, the same for all labels, with the highest metric of the task; scores are (rows, labels)."""
    if metric == "micro-f1":
        return best_f1_threshold(scores.ravel(), targets.ravel())
    return _best_by(lambda predicted: _metric(targets, predicted, metric), scores, targets)


def best_metric(scores: NDArray[Any], targets: NDArray[Any], metric: str) -> float:
    """The metric of scores, (rows, labels), at the common threshold that is best for them."""
    predicted = scores >= common_threshold(scores, targets, metric)
    return _metric(targets, predicted.astype(np.int8), metric)


def _metric(targets: NDArray[Any], predicted: NDArray[Any], metric: str) -> float:
    return float(getattr(basic_metrics(targets, predicted, targets.shape[1]), metric.replace("-", "_")))


def _best_by(evaluate: Callable[[NDArray[Any]], float], scores: NDArray[Any], targets: NDArray[Any]) -> float:
    """The best of some thresholds from the range in which as many labels are predicted as could be right."""
    highest = np.sort(scores.ravel())[::-1][: 4 * int(targets.sum()) + 2]
    candidates = (highest[1:] + highest[:-1]) / 2
    candidates = candidates[np.linspace(0, len(candidates) - 1, min(len(candidates), MAX_CANDIDATES)).astype(int)]
    return float(max(candidates, key=lambda threshold: evaluate((scores >= threshold).astype(np.int8))))


def choose_thresholds(
    scores: NDArray[Any], targets: NDArray[Any], metric: str, shrinkage: float
) -> NDArray[np.float64]:
    """Each label's threshold of logits, from scores of rows that the models were not trained on: (labels,).

    theta_l = (n_l theta'_l + k theta) / (n_l + k): theta is the common threshold with the highest metric, theta'_l that
    with the label's highest F1, n_l the number of its rows, k the `shrinkage`.
    """
    common = common_threshold(scores, targets, metric)
    thresholds = np.full(targets.shape[1], common)
    for label, count in enumerate(targets.sum(axis=0).tolist()):
        if count:
            own = best_f1_threshold(scores[:, label], targets[:, label])
            thresholds[label] = (count * own + shrinkage * common) / (count + shrinkage)
    return thresholds


def predict_highest(scores: NDArray[Any], labels_a_row: float) -> NDArray[np.int8]:
    """1 for the highest scores of all rows and labels, so many that rows have `labels_a_row` on average.

    For scores without a threshold: those of models that saw no labelled row; (..., rows, labels).
    """
    *leading, rows, labels = scores.shape
    count = min(rows * labels, max(1, round(labels_a_row * rows)))
    flat = scores.reshape(*leading, rows * labels)
    threshold = np.partition(flat, rows * labels - count, axis=-1)[..., rows * labels - count]
    return (scores >= threshold[..., None, None]).astype(np.int8)
