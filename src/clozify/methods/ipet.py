"""iPET (section 3.4): the number of generations, the sizes of training sets, the teachers, and the draw of rows.

For each model of a generation some models of the one before, its teachers, label rows; it is trained on T and on a
random draw of these rows, in which confident labels are more likely. A label with too few rows gets those with the next
highest probability for it; if there are too few unlabelled rows, all counts shrink and keep the label ratio of T. The
draw is one pass over the scores in constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.recipe import IPet
from clozify.data.rows import chunk_rows
from clozify.methods.ensemble import Ensemble, LazyScores

CHUNK_SIZE = 131_072  # rows per chunk; with more unlabelled rows than this, another value changes the random draw


@dataclass
class Selection:
    """Unlabelled rows that one model is trained on, with the labels that its teachers give them."""

    rows: NDArray[np.int64]
    labels: NDArray[Any]  # (rows,), or with several labels a row 0 and 1, (rows, labels)
    certainty: float  # the mean probability that the teachers give to these labels
    topped_up: NDArray[np.int64] = field(repr=False)  # (labels,): rows that were not the teachers' first choice


def count_generations(rows: int, settings: IPet) -> int:
    """k = ceil(log_d(enough / |T|)), in integers: 0 for |T| >= enough, 4 for an empty T, unless the recipe sets it."""
    if settings.generations is not None:
        return settings.generations
    if rows == 0:
        return 4
    generations = 0
    while rows * settings.d**generations < settings.enough:
        generations += 1
    return generations


def is_better(certainty: float, consensus: float, previous_certainty: float, previous_consensus: float) -> bool:
    """Whether a generation is kept where the recipe keeps better ones only, judged by the unlabelled rows.

    `certainty` is the ensemble's mean probability of the label that it predicts, `consensus` the mean fraction of rows
    to which a member gives the ensemble's label. Errors that teachers pass on make the next members contradict
    each other or less certain, so the sum of both must not fall.
    """
    return certainty + consensus >= previous_certainty + previous_consensus


def first_counts(labels: int, settings: IPet) -> NDArray[np.int64]:
    """c_1(l) without labelled rows: 10 / |L|, and one more for the first labels where that is no integer.

    With more than 10 labels each gets one row: a label without rows would never be learned.
    """
    quotient, remainder = divmod(max(settings.zero_shot_examples, labels), labels)
    return np.array([quotient + (label < remainder) for label in range(labels)], dtype=np.int64)


def counts_to_draw(
    label_counts: NDArray[np.int64], generation: int, unlabeled_rows: int, settings: IPet
) -> tuple[NDArray[np.int64], bool]:
    """c_j(l) - c_0(l) for each label, with c_j(l) = d^j c_0(l); and whether there are too few unlabelled rows for it.

    `label_counts` is c_0, the rows of T with each label; a label that T lacks counts as if it had one row, since it
    would never be learned otherwise. Without any labelled rows c_j(l) = d^(j - 1) c_1(l). Too few unlabelled rows cap
    the sum; the ratio of the labels is kept as well as integers allow.
    """
    if label_counts.sum() == 0:
        counts = first_counts(len(label_counts), settings) * settings.d ** (generation - 1)
    else:
        counts = np.maximum(label_counts, 1) * (settings.d**generation - 1)
    total = int(counts.sum())
    if total <= unlabeled_rows:
        return counts, False
    numerators = [int(count) * unlabeled_rows for count in counts]  # over total; Python's integers do not overflow
    capped = np.array([numerator // total for numerator in numerators], dtype=np.int64)
    by_remainder = sorted(range(len(counts)), key=lambda label: (-(numerators[label] % total), label))
    for label in by_remainder[: unlabeled_rows - int(capped.sum())]:
        capped[label] += 1
    return capped, True


def choose_teachers(models: int, model: int, fraction: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """N: lambda (n - 1) of the other models, at least one; a single model is its own teacher."""
    candidates = np.array([other for other in range(models) if other != model], dtype=np.int64)
    if len(candidates) == 0:
        return np.array([model], dtype=np.int64)
    count = max(1, int(np.floor(fraction * len(candidates) + 0.5)))
    return np.sort(rng.choice(candidates, size=count, replace=False))


def draw_keys(
    scores: NDArray[np.float64],
    label: int,
    weighting: str,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None = None,
) -> NDArray[np.float64]:
    """Gumbel top-k trick: a random key for each row; the k highest are a weighted sample without replacement.

    log w + G with G from Gumbel's distribution: row i has the highest key with probability w_i / sum w, and so on for
    the second among the others. The weight w is the softmax at T = 1 of the row's score for the label or, `weighting`
    "score", the raw score minus the lowest one. A key does not depend on other rows, so that rows may be drawn in
    chunks; `bounds` are then the lowest and the highest raw score of all chunks.
    """
    if weighting == "score":  # raw scores may be negative
        label_scores = scores[:, label]
        if bounds is None:
            bounds = (label_scores.min(), label_scores.max()) if len(label_scores) else (0.0, 0.0)
        lowest, highest = bounds
        with np.errstate(divide="ignore"):
            log_weights = np.log(label_scores - lowest if highest > lowest else np.ones_like(label_scores))
    else:
        log_weights = scores[:, label] - np.logaddexp.reduce(scores, axis=1)
    keys: NDArray[np.float64] = log_weights + rng.gumbel(size=len(scores))
    return keys


class TopRows:
    """The `count` rows with the highest values of a stream; of equal values the first rows."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._values, self._rows = np.empty(0), np.empty(0, dtype=np.int64)
        self._threshold: float | None = None  # later rows need a higher value, once there are `count` rows

    def update(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Add rows, which come after all earlier ones."""
        if self._threshold is not None:
            above = values > self._threshold
            values, rows = values[above], rows[above]
        self._values, self._rows = np.concatenate([self._values, values]), np.concatenate([self._rows, rows])
        if len(self._rows) >= 2 * self.count:
            self._truncate()

    def _truncate(self) -> None:
        order = np.argsort(-self._values, kind="stable")[: self.count]
        self._values, self._rows = self._values[order], self._rows[order]
        if len(order) == self.count:
            self._threshold = float(self._values[-1]) if self.count else np.inf

    def rows(self) -> NDArray[np.int64]:
        """The rows, the highest value first."""
        self._truncate()
        return self._rows


def _score_bounds(scores: NDArray[np.float64] | LazyScores, labels: int) -> list[tuple[float, float]]:
    """For each label the lowest and the highest score of the rows whose best label it is."""
    lowest, highest = np.full(labels, np.inf), np.full(labels, -np.inf)
    size = chunk_rows(labels, CHUNK_SIZE)
    for start in range(0, len(scores), size):
        chunk = scores[start : start + size]
        np.minimum.at(lowest, chunk.argmax(axis=1), chunk.max(axis=1))
        np.maximum.at(highest, chunk.argmax(axis=1), chunk.max(axis=1))
    return list(zip(lowest.tolist(), highest.tolist(), strict=True))


def select_rows(
    scores: NDArray[np.float64] | LazyScores,
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    weighting: str = "probability",
    pool: int | None = None,
    top_up: bool = True,
) -> Selection:
    """Draw `counts[l]` rows for each label l from T_N, confident ones preferred; no row gets two labels.

    Scores are the teachers', (rows, labels). T_N(l) holds the rows whose best label is l or, with a `pool` (the first
    generation without labelled rows), the `pool` rows with the highest score for l. If T_N(l) is too small, the rows
    that are next best for l are added, unless `top_up` is false. One pass over the scores; "score" weighting makes
    another for their bounds.
    """
    candidates, next_best = _collect_candidates(scores, counts, rng, weighting, pool)
    label_of: dict[int, int] = {}
    for label, count in enumerate(counts):
        chosen = candidates[label].rows()
        if pool is not None:
            free = _without_label(chosen, label_of, max(pool, int(count)))
            keys = draw_keys(scores[free], label, weighting, rng)
            chosen = free[np.argsort(-keys, kind="stable")[:count]]
        label_of |= dict.fromkeys(chosen.tolist(), label)
    topped_up = np.zeros(len(counts), dtype=np.int64)
    for label, drawn in enumerate(np.bincount(list(label_of.values()), minlength=len(counts)).tolist()):
        missing = int(counts[label]) - drawn
        if missing > 0 and top_up:
            added = _without_label(next_best[label].rows(), label_of, missing)
            label_of |= dict.fromkeys(added.tolist(), label)
            topped_up[label] = missing
    rows = np.array(sorted(label_of), dtype=np.int64)
    labels = np.array([label_of[row] for row in rows.tolist()], dtype=np.int16)
    certainty = float(softmax(scores[rows], axis=-1)[np.arange(len(rows)), labels].mean()) if len(rows) else 0.0
    return Selection(rows, labels, certainty, topped_up)


def _collect_candidates(
    scores: NDArray[np.float64] | LazyScores,
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    weighting: str,
    pool: int | None,
) -> tuple[list[TopRows], list[TopRows]]:
    """For each label its draw, or its pool, and the rows with the highest probability for it, in one pass."""
    total, labels = int(counts.sum()), len(counts)
    bounds = _score_bounds(scores, labels) if weighting == "score" and pool is None else [None] * labels
    # earlier labels may take rows of a later label's pool, so it holds as many more
    candidates = [
        TopRows(int(count)) if pool is None else TopRows(max(pool, int(count)) + int(counts[:label].sum()))
        for label, count in enumerate(counts)
    ]
    next_best = [TopRows(total) for _ in counts]
    size = chunk_rows(labels, CHUNK_SIZE)
    for start in range(0, len(scores), size):
        chunk = scores[start : start + size]
        best, probabilities = chunk.argmax(axis=1), softmax(chunk, axis=-1)
        indices = np.arange(start, start + len(chunk))
        for label in range(labels):
            if pool is None:
                inside = np.flatnonzero(best == label)
                candidates[label].update(draw_keys(chunk[inside], label, weighting, rng, bounds[label]), start + inside)
            else:
                candidates[label].update(chunk[:, label], indices)
            next_best[label].update(probabilities[:, label], indices)
    return candidates, next_best


def _without_label(rows: NDArray[np.int64], label_of: Mapping[int, int], count: int) -> NDArray[np.int64]:
    """The first `count` rows that have no label yet."""
    return np.array([row for row in rows.tolist() if row not in label_of][:count], dtype=np.int64)


def select_training_rows(
    scores: Mapping[int, NDArray[np.floating[Any]]],
    weights: Sequence[float],
    counts: NDArray[np.int64],
    settings: IPet,
    teachers: NDArray[np.int64],
    rng: np.random.Generator,
    zero_shot: bool,
    combine: Callable[[Ensemble], LazyScores] | None = None,
) -> Selection:
    """T_i^j without T: the rows that a model's teachers N label for it, by s_N of the generation before.

    `combine` adds the votes of teachers that are no members.
    """
    s_n = Ensemble([scores[int(teacher)] for teacher in teachers], [weights[teacher] for teacher in teachers])
    pool = settings.zero_shot_pool if zero_shot else None
    return select_rows(s_n if combine is None else combine(s_n), counts, rng, settings.draw, pool, settings.top_up)
