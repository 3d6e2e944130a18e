"""iPET's arithmetic: how many generations, how large the training sets, who teaches whom, which rows (section 3.4).

In: counts, scores and a source of chance. Out: for each member of a generation the rows of the pile that it is to be
trained on and the labels that its teachers give them. Every rule ends, whatever the scores are: rows that a label
lacks are topped up with the next best for it, and a pile that is too small caps all labels in the ratio of T. The draw
is one pass over the scores, which remembers no more rows than may be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.recipe import IPet
from clozify.methods.ensemble import Ensemble

AT_ONCE = 131_072  # rows looked at together; another number draws other rows from piles that are larger


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


def choose_teachers(models: int, own: int | None, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """lambda (n - 1) of the other models, at least one; a model that is alone teaches itself."""
    others = np.array([model for model in range(models) if model != own], dtype=np.int64)
    if len(others) == 0:
        return np.array([own], dtype=np.int64)
    count = max(1, int(np.floor(share * len(others) + 0.5)))
    return np.sort(rng.choice(others, size=count, replace=False))


def draw_keys(
    scores: NDArray[np.float64],
    label: int,
    how: str,
    rng: np.random.Generator,
    bounds: tuple[float, float] | None = None,
) -> NDArray[np.float64]:
    """A key for each row: the rows with the highest are a draw without replacement, in proportion to a row's weight.

    log w + G with G from Gumbel's distribution: the greatest key falls to each row with probability w / sum w, the next
    to each of the others likewise, and so on; no weight can vanish for being small. A row's key does not depend on the
    other rows', so they may come in parts; a raw score needs the lowest and the highest of them all, the `bounds`.
    """
    if how == "score":  # a raw score may be negative: less the lowest of the rows to draw from
        own = scores[:, label]
        lowest, highest = bounds or ((own.min(), own.max()) if len(own) else (0.0, 0.0))
        with np.errstate(divide="ignore"):
            logs = np.log(own - lowest if highest > lowest else np.ones_like(own))
    else:  # softmax at T = 1
        logs = scores[:, label] - np.logaddexp.reduce(scores, axis=1)
    found: NDArray[np.float64] = logs + rng.gumbel(size=len(scores))
    return found


class Best:
    """The rows with the highest values of all that were met, so many of them; of equals the first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._values, self._rows = np.empty(0), np.empty(0, dtype=np.int64)
        self._least: float | None = None  # what a row must be above, once there are enough

    def meet(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Look at some more rows, which come after those that were met."""
        if self._least is not None:
            above = values > self._least
            values, rows = values[above], rows[above]
        self._values, self._rows = np.concatenate([self._values, values]), np.concatenate([self._rows, rows])
        if len(self._rows) >= 2 * self.count:
            self._settle()

    def _settle(self) -> None:
        order = np.argsort(-self._values, kind="stable")[: self.count]
        self._values, self._rows = self._values[order], self._rows[order]
        if len(order) == self.count:
            self._least = float(self._values[-1]) if self.count else np.inf

    def rows(self) -> NDArray[np.int64]:
        """The rows, the best first."""
        self._settle()
        return self._rows


def _bounds(scores: NDArray[np.float64] | Ensemble, labels: int) -> list[tuple[float, float]]:
    """The lowest and the highest score of the rows whose best label it is, for each label."""
    lowest, highest = np.full(labels, np.inf), np.full(labels, -np.inf)
    for start in range(0, len(scores), AT_ONCE):
        part = scores[start : start + AT_ONCE]
        np.minimum.at(lowest, part.argmax(axis=1), part.max(axis=1))
        np.maximum.at(highest, part.argmax(axis=1), part.max(axis=1))
    return list(zip(lowest.tolist(), highest.tolist(), strict=True))


def select_rows(
    scores: NDArray[np.float64] | Ensemble,
    wanted: NDArray[np.int64],
    rng: np.random.Generator,
    how: str = "probability",
    pool: int | None = None,
) -> Selection:
    """Draw `wanted` rows for each label from T_N, confident ones preferred; no row serves two labels.

    Scores are the teachers', (rows, labels). T_N(l) holds the rows whose best label is l; with a `pool` (the first
    generation without labelled rows) the so many rows with the highest score for l, whatever their best label is. What
    is still lacking is topped up with the rows that are next best for the label. All this in one pass over the scores;
    a draw by raw scores takes another one before, for the lowest of them.
    """
    total, labels = int(wanted.sum()), len(wanted)
    bounds = _bounds(scores, labels) if how == "score" and pool is None else [None] * labels
    # the labels before one may take rows that are among the best for it too: so many more are remembered
    firsts = [
        Best(int(count)) if pool is None else Best(max(pool, int(count)) + int(wanted[:label].sum()))
        for label, count in enumerate(wanted)
    ]
    next_best = [Best(total) for _ in wanted]
    for start in range(0, len(scores), AT_ONCE):
        part = scores[start : start + AT_ONCE]
        best, probabilities = part.argmax(axis=1), softmax(part, axis=-1)
        everything = np.arange(start, start + len(part))
        for label in range(labels):
            if pool is None:
                own = np.flatnonzero(best == label)
                firsts[label].meet(draw_keys(part[own], label, how, rng, bounds[label]), start + own)
            else:
                firsts[label].meet(part[:, label], everything)
            next_best[label].meet(probabilities[:, label], everything)
    owner: dict[int, int] = {}
    topped_up = np.zeros(labels, dtype=np.int64)
    for label, count in enumerate(wanted):
        chosen = firsts[label].rows()
        if pool is not None:
            candidates = _free(chosen, owner, max(pool, int(count)))
            keys = draw_keys(scores[candidates], label, how, rng)
            chosen = candidates[np.argsort(-keys, kind="stable")[:count]]
        owner |= dict.fromkeys(chosen.tolist(), label)
    for label, of_label in enumerate(np.bincount(list(owner.values()), minlength=labels).tolist()):
        missing = int(wanted[label]) - of_label
        if missing > 0:
            owner |= dict.fromkeys(_free(next_best[label].rows(), owner, missing).tolist(), label)
            topped_up[label] = missing
    rows = np.array(sorted(owner), dtype=np.int64)
    given = np.array([owner[row] for row in rows.tolist()], dtype=np.int16)
    certainty = float(softmax(scores[rows], axis=-1)[np.arange(len(rows)), given].mean()) if len(rows) else 0.0
    return Selection(rows, given, certainty, topped_up)


def _free(rows: NDArray[np.int64], owner: Mapping[int, int], count: int) -> NDArray[np.int64]:
    """The first so many rows that serve no label yet."""
    return np.array([row for row in rows.tolist() if row not in owner][:count], dtype=np.int64)


def select_training_rows(
    scores: Mapping[int, NDArray[np.floating[Any]]],
    weights: Sequence[float],
    wanted: NDArray[np.int64],
    settings: IPet,
    teachers: NDArray[np.int64],
    rng: np.random.Generator,
    zero_shot: bool,
) -> Selection:
    """T_i^j without T: the rows that one member's teachers N label for it, by s_N of the generation before."""
    s_n = Ensemble([scores[int(teacher)] for teacher in teachers], [weights[teacher] for teacher in teachers])
    return select_rows(s_n, wanted, rng, settings.draw, settings.zero_shot_pool if zero_shot else None)
