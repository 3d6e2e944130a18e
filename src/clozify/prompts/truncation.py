"""How many tokens each field keeps of a row that is too long: the longest-first strategy of the paper (appendix C).

Truncation takes tokens from the fields before the pattern is applied, so the pattern's own words are never cut.
Both functions map the fields' lengths (rows, fields) to the numbers of tokens that are kept (rows, fields).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def truncate_longest_field(lengths: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Cuts the longest fields of each row so that the row has at most `budget` tokens.

    The result is that of a loop which takes one token at a time from the longest field (from the later of two equally
    long ones). It is computed directly: fields are visited from the shortest to the longest, and each one keeps all
    its tokens as long as it has at most an equal part of what is left of the budget. From the first one that has more,
    all fields are cut to that equal part, `level`; the remainder goes to the first of the cut fields, one token each.
    """
    keep = lengths.copy()
    too_long = np.flatnonzero(lengths.sum(axis=1) > budget)
    fields = lengths.shape[1]
    if not len(too_long) or not fields:
        return keep
    full = lengths[too_long]  # (too_long, fields)
    rows = np.arange(len(too_long))
    order = np.argsort(full, axis=1, kind="stable")  # shortest first
    left = np.full(len(too_long), budget, dtype=np.int64)  # tokens for the fields not yet visited
    level = np.full(len(too_long), -1, dtype=np.int64)  # -1: no field was cut so far
    cut = np.zeros(full.shape, dtype=bool)
    for rank in range(fields):
        field = order[:, rank]
        length = full[rows, field]
        equal_part = left // (fields - rank)
        first_cut = (level < 0) & (length > equal_part)
        level[first_cut] = equal_part[first_cut]
        cut[rows, field] = level >= 0
        left -= np.where(level < 0, length, 0)
    kept = np.where(cut, level[:, None], full)
    remainder = left - np.where(cut, level[:, None], 0).sum(axis=1)
    kept += cut & (np.cumsum(cut, axis=1) <= remainder[:, None])
    keep[too_long] = kept
    return keep


def truncate_longest_segment(
    lengths: NDArray[np.int64], budget: int, field_segments: tuple[int, ...]
) -> NDArray[np.int64]:
    """Cuts the longer of two segments, as the authors' code does, from the end of its last field.

    `field_segments` holds the segment (0 or 1) of each field.
    """
    segment_lengths = np.zeros((len(lengths), 2), dtype=np.int64)
    for field, segment in enumerate(field_segments):
        segment_lengths[:, segment] += lengths[:, field]
    left = truncate_longest_field(segment_lengths, budget)
    keep = np.zeros_like(lengths)
    for field, segment in enumerate(field_segments):
        keep[:, field] = np.minimum(lengths[:, field], left[:, segment])
        left[:, segment] -= keep[:, field]
    return keep
