"""Which rows the weights of teachers are fitted on, where there are too many for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.methods.votes import has_votes

FITTED_ROWS = 5_000  # evenly spaced rows
MORE_ROWS = 500  # with votes of teachers that few of these rows have, such as an LLM that is asked about some rows


def fitted_rows(rows: int, others: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """The indices of rows to fit weights on, ascending; `others` are scores of all rows, (rows, labels) each.

    They are evenly spaced, and some more of those on which teachers vote that have few votes among them.
    """
    chosen = np.unique(np.linspace(0, rows - 1, min(FITTED_ROWS, rows)).astype(np.int64))
    if len(chosen) == rows:
        return chosen
    voted = [np.flatnonzero(has_votes(scores)) for scores in others]
    rare = [of for of in voted if np.isin(of, chosen).sum() < min(MORE_ROWS, len(of))]
    for of in rare:
        more = of[np.linspace(0, len(of) - 1, min(MORE_ROWS // len(rare), len(of))).astype(np.int64)]
        chosen = np.union1d(chosen, more)
    return chosen
