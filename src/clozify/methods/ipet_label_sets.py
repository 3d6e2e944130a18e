"""iPET's draw of training rows where a row may have several labels (section 3.4 has one label a row).

Teachers give every unlabelled row the labels above their thresholds. Rows are drawn for each label, rare labels first,
and for "no label"; a row that is drawn for one label counts for all of its labels. A label with too few rows gets
fewer: a row's other labels would be wrong if it were topped up with the next best.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit

from clozify.config.recipe import IPet
from clozify.data.decision import Decision
from clozify.methods.ensemble import Ensemble
from clozify.methods.ipet import CHUNK_SIZE, Selection, TopRows, counts_to_draw


def label_set_counts(targets: NDArray[Any]) -> NDArray[np.int64]:
    """c_0: the rows of T with each label and, last, those without any; from (rows, labels): (labels + 1,)."""
    counts: NDArray[np.int64] = np.append(targets.sum(axis=0), (~targets.any(axis=1)).sum()).astype(np.int64)
    return counts


def set_counts_to_draw(
    targets: NDArray[Any], generation: int, unlabeled_rows: int, settings: IPet
) -> tuple[NDArray[np.int64], bool]:
    """How many rows to draw for each label and, last, without any, and whether there are too few unlabelled rows.

    A row counts for each of its labels; none is drawn for labels without rows in T, which no teacher has seen.
    """
    label_counts = label_set_counts(targets)
    available = int(unlabeled_rows * label_counts.sum() / len(targets))
    counts, capped = counts_to_draw(label_counts, generation, available, settings)
    return np.where(label_counts > 0, counts, 0), capped


def select_label_sets(
    scores: NDArray[np.float64] | Ensemble, counts: NDArray[np.int64], decision: Decision, rng: np.random.Generator
) -> Selection:
    """Draw `counts[l]` rows that have each label l by the teachers' scores, confident ones preferred.

    Scores are (rows, labels), counts (labels + 1,). The weight of a row is its probability of the label or, for "no
    label", the product of the probabilities that it has none. One pass over the scores.
    """
    candidates = [TopRows(int(count)) for count in counts]
    for start in range(0, len(scores), CHUNK_SIZE):
        chunk = scores[start : start + CHUNK_SIZE]
        predicted = decision.predict(decision.probabilities(chunk)) == 1
        log_weights = np.column_stack([log_expit(chunk), log_expit(-chunk).sum(axis=1)])
        for label, eligible in enumerate([*predicted.T, ~predicted.any(axis=1)]):
            inside = np.flatnonzero(eligible)
            keys = log_weights[inside, label] + rng.gumbel(size=len(inside))  # as in `ipet.draw_keys`
            candidates[label].update(keys, start + inside)
    ranked = [top.rows() for top in candidates]
    union = np.unique(np.concatenate(ranked))
    sets = decision.predict(decision.probabilities(scores[union]))
    member_of = np.column_stack([sets, ~sets.any(axis=1)]).astype(np.int64)  # (union, labels + 1)
    chosen, drawn = np.zeros(len(union), dtype=bool), np.zeros(len(counts), dtype=np.int64)
    for label in np.argsort(counts, kind="stable"):
        for index in np.searchsorted(union, ranked[label]):
            if drawn[label] >= counts[label]:
                break
            if not chosen[index]:
                chosen[index] = True
                drawn += member_of[index]
    certainty = float(decision.certainty(scores[union[chosen]]).mean()) if chosen.any() else 0.0
    return Selection(union[chosen], sets[chosen], certainty, np.zeros(len(counts) - 1, dtype=np.int64))
