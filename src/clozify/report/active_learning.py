"""How much a label for each unlabelled row would teach, and which rows to label next.

In: the members' raw scores of the pile. Out: for each row how far the members disagree and how unsure their mean is;
and a choice of rows that is useful, balanced over the labels and diverse in its words.

With H the entropy in units of log |L|, and the members' probabilities p_m averaged to p by their weights, a row's
uncertainty is H(p) and its disagreement H(p) - mean of H(p_m), which is 0 where all members say the same. A row is as
useful as the sum of both; with one member that is its uncertainty alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.rows import CHUNK_ROWS, Rows
from clozify.methods.ensemble import combine_scores

CANDIDATES = 50  # of each label, or as many as are asked for
CHARACTERS = 1_000  # of a row that are compared


@dataclass(frozen=True)
class Doubts:
    """What the members make of every row of the pile, each (rows,)."""

    predicted: NDArray[np.int64]  # by the ensemble
    uncertainty: NDArray[np.float64]
    disagreement: NDArray[np.float64]

    @property
    def usefulness(self) -> NDArray[np.float64]:
        """How much a label would teach."""
        return self.uncertainty + self.disagreement


def disagreement_scores(scores: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> Doubts:
    """Each row's doubts, from each member's raw scores, (rows, labels)."""
    rows, labels = scores[0].shape
    found = Doubts(np.empty(rows, dtype=np.int64), np.empty(rows), np.empty(rows))
    for start in range(0, rows, CHUNK_ROWS):
        here = slice(start, start + CHUNK_ROWS)
        raw = [np.asarray(of_member[here], dtype=np.float32) for of_member in scores]
        shares = [softmax(of_member.astype(np.float64), axis=-1) for of_member in raw]
        whole = _entropy(combine_scores(shares, weights))
        single = combine_scores([_entropy(share)[:, None] for share in shares], weights)[:, 0]
        found.predicted[here] = combine_scores(raw, weights).argmax(axis=-1)
        found.uncertainty[here] = whole / np.log(labels)
        found.disagreement[here] = np.maximum(whole - single, 0) / np.log(labels)
    return found


def _entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=-1)
    return found


def free_rows(pile: Rows, taken: Sequence[Rows] = ()) -> NDArray[np.int64]:
    """The rows of the pile that may be suggested: with text, each text once, and none that stands in `taken`."""
    own = pile.fingerprints()
    first = np.zeros(len(own), dtype=bool)
    first[np.unique(own, return_index=True)[1]] = True
    for rows in taken:
        first &= ~np.isin(own, rows.fingerprints())
    empty = np.ones(len(own), dtype=bool)
    for start, stop in pile.chunks():
        for field in pile.task.fields:
            empty[start:stop] &= np.array([not text for text in pile.texts(field, start, stop)], dtype=bool)
    return np.flatnonzero(first & ~empty)


def choose(
    found: Doubts,
    count: int,
    free: NDArray[np.int64],
    had: NDArray[np.int64],
    pile: Rows | None = None,
) -> NDArray[np.int64]:
    """The rows to label next, the first ones first.

    Again and again, of the rows that the ensemble takes for the labels with the fewest rows (those that a label `had`,
    and those chosen as it), the one with the most usefulness times distance to the nearest chosen row is taken.
    Distance is 1 - the cosine of TF-IDF vectors of pieces of words; without the `pile`'s texts it is left out.
    """
    useful, counts = found.usefulness, had.astype(np.int64).copy()
    most = max(count, CANDIDATES)
    waiting: dict[int, NDArray[np.int64]] = {}
    for label in range(len(had)):
        of_label = free[found.predicted[free] == label]
        if len(of_label):
            waiting[label] = of_label[np.argsort(-useful[of_label], kind="stable")[:most]]
    if not waiting:
        return np.array([], dtype=np.int64)
    candidates = np.concatenate(list(waiting.values()))
    labels = found.predicted[candidates]
    vectors = None if pile is None else _vectors(pile, candidates)
    chosen: list[int] = []
    gain = useful[candidates] + 1e-9  # what is left of a sure row still counts for more than nothing
    open_ = np.ones(len(candidates), dtype=bool)
    distance = np.ones(len(candidates))
    while len(chosen) < count and open_.any():
        fewest = counts[labels[open_]].min()
        place = int(np.where(open_ & (counts[labels] == fewest), gain * distance, -1.0).argmax())
        chosen.append(int(candidates[place]))
        open_[place] = False
        counts[labels[place]] += 1
        if vectors is not None:
            alike = (vectors @ vectors[place].T).toarray().ravel()
            distance = np.minimum(distance, np.clip(1 - alike, 0, 1))
    return np.array(chosen, dtype=np.int64)


def _vectors(pile: Rows, places: NDArray[np.int64]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    picked = pile.select(places)
    texts = [picked.texts(field) for field in pile.task.fields]
    joined = [" ".join(parts)[:CHARACTERS] for parts in zip(*texts, strict=True)]
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit_transform(joined).tocsr()
