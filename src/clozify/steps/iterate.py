"""iPET's arithmetic: how many generations, how large the training sets, who teaches whom, which rows (section 3.4).

In: counts, scores and a source of chance. Out: for each member of a generation the rows of the pile that it is to be
trained on and the labels that its teachers give them. Every rule ends, whatever the scores are: rows that a label
lacks are topped up with the next best for it, and a pile that is too small caps all labels in the ratio of T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clozify.metrics import softmax
from clozify.recipe import IPet
from clozify.steps.combine import combine


@dataclass
class Selection:
    """Rows of the pile for one member, and what is worth telling of them."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int16]
    certainty: float  # the mean probability that the teachers give to the labels drawn
    topped_up: NDArray[np.int64] = field(repr=False)  # (labels,): rows that were not the teachers' first choice


def count_generations(rows: int, settings: IPet) -> int:
    """k = ceil(log_d(enough / |T|)) in whole numbers: 0 for |T| >= enough, and 4 (or as given) without any row."""
    if settings.generations is not None:
        return settings.generations
    if rows == 0:
        return 4
    generations = 0
    while rows * settings.d**generations < settings.enough:
        generations += 1
    return generations


def first_counts(labels: int, settings: IPet) -> NDArray[np.int64]:
    """c_1(l) without labelled rows: 10 / |L|, a remainder going one each to the first labels.

    With more labels than that each gets one row: a label that starts with none would never be learned.
    """
    share, rest = divmod(max(settings.zero_shot_examples, labels), labels)
    return np.array([share + (place < rest) for place in range(labels)], dtype=np.int64)


def counts_to_draw(
    of_t: NDArray[np.int64], generation: int, pile: int, settings: IPet
) -> tuple[NDArray[np.int64], bool]:
    """c_j(l) - c_0(l) for each label, with c_j(l) = d^j c_0(l); and whether the pile was too small for it.

    Without labelled rows c_1 is given and c_j(l) = d^(j - 1) c_1(l). A pile that is too small caps the sum; the ratio
    of the labels is kept as well as whole numbers allow.
    """
    if of_t.sum() == 0:
        wanted = first_counts(len(of_t), settings) * settings.d ** (generation - 1)
    else:
        wanted = of_t * (settings.d**generation - 1)
    total = int(wanted.sum())
    if total <= pile:
        return wanted, False
    exact = [int(count) * pile for count in wanted]  # over total; in whole numbers, so that nothing overflows
    capped = np.array([value // total for value in exact], dtype=np.int64)
    spare = sorted(range(len(wanted)), key=lambda place: (-(exact[place] % total), place))
    for place in spare[: pile - int(capped.sum())]:
        capped[place] += 1
    return capped, True


def choose_teachers(models: int, own: int | None, share: float, chance: np.random.Generator) -> NDArray[np.int64]:
    """lambda (n - 1) of the other models, at least one; a model that is alone teaches itself."""
    others = np.array([model for model in range(models) if model != own], dtype=np.int64)
    if len(others) == 0:
        return np.array([own], dtype=np.int64)
    count = max(1, int(np.floor(share * len(others) + 0.5)))
    return np.sort(chance.choice(others, size=count, replace=False))


def draw_keys(scores: NDArray[np.float64], label: int, how: str, chance: np.random.Generator) -> NDArray[np.float64]:
    """A key for each row: the rows with the highest are a draw without replacement, in proportion to a row's weight.

    log w + G with G from Gumbel's distribution: the greatest key falls to each row with probability w / sum w, the next
    to each of the others likewise, and so on; no weight can vanish for being small.
    """
    if how == "score":  # a raw score may be negative: less the lowest of the rows to draw from
        weights = scores[:, label] - scores[:, label].min() if len(scores) else scores[:, label]
        weights = weights if weights.any() else np.ones_like(weights)
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
    else:  # softmax at T = 1
        logs = scores[:, label] - np.logaddexp.reduce(scores, axis=1)
    found: NDArray[np.float64] = logs + chance.gumbel(size=len(scores))
    return found


def select_rows(
    scores: NDArray[np.float64],
    wanted: NDArray[np.int64],
    chance: np.random.Generator,
    how: str = "probability",
    pool: int | None = None,
) -> Selection:
    """Draw `wanted` rows for each label from T_N, confident ones preferred; no row serves two labels.

    Scores are the teachers', (rows, labels). T_N(l) holds the rows whose best label is l; with a `pool` (the first
    generation without labelled rows) the so many rows with the highest score for l, whatever their best label is. What
    is still lacking is topped up with the rows that are next best for the label.
    """
    best = scores.argmax(axis=1)
    probabilities = softmax(scores)
    owner = np.full(len(scores), -1, dtype=np.int16)
    topped_up = np.zeros(len(wanted), dtype=np.int64)
    for label, count in enumerate(wanted):
        if pool is None:
            candidates = np.flatnonzero((best == label) & (owner < 0))
        else:
            free = np.flatnonzero(owner < 0)
            candidates = free[np.argsort(-scores[free, label], kind="stable")[: max(pool, count)]]
        keys = draw_keys(scores[candidates], label, how, chance)
        owner[candidates[np.argsort(-keys, kind="stable")[:count]]] = label
    for label, count in enumerate(wanted):
        missing = int(count - (owner == label).sum())
        if missing > 0:
            free = np.flatnonzero(owner < 0)
            owner[free[np.argsort(-probabilities[free, label], kind="stable")[:missing]]] = label
            topped_up[label] = missing
    rows = np.flatnonzero(owner >= 0)
    labels = owner[rows]
    certainty = float(probabilities[rows, labels].mean()) if len(rows) else 0.0
    return Selection(rows, labels, certainty, topped_up)


def iterate(
    scores: Mapping[int, NDArray[np.float32]],
    weights: Sequence[float],
    wanted: NDArray[np.int64],
    settings: IPet,
    teachers: NDArray[np.int64],
    chance: np.random.Generator,
    zero_shot: bool,
) -> Selection:
    """T_i^j without T: the rows that one member's teachers N label for it, by s_N of the generation before."""
    s_n = combine([scores[int(teacher)] for teacher in teachers], [weights[teacher] for teacher in teachers])
    return select_rows(s_n, wanted, chance, settings.draw, settings.zero_shot_pool if zero_shot else None)
