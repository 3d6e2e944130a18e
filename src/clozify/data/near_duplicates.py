"""Groups of rows with the same or nearly the same text, without comparing all pairs of rows.

Texts are equal where they are equal in lower case without punctuation. Of the different ones, two are nearly the same
where the Jaccard similarity of their sets of 5 consecutive characters is at least `MIN_SIMILARITY` and, in every
field, at least `MIN_FIELD_SIMILARITY`: two questions about one long text are different rows.

Pairs are found exactly by prefix filtering (Bayardo et al., 2007; Xiao et al., 2008). If J(x, y) >= t, then x and y
share one of the (1 - t) |x| + 1 rarest elements of x and one of as many of y; only rows that do are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SIMILARITY = 0.8
MIN_FIELD_SIMILARITY = 0.5
MIN_CHARACTERS = 25  # shorter texts are compared for equality alone: one letter of them may change the meaning
CHARACTERS = 5  # of an element
HASH_SIZE = 2**22
CHUNK_ROWS = 512  # rows whose candidates are computed at a time


@dataclass(frozen=True)
class DuplicateGroup:
    """Rows with the same or nearly the same text."""

    rows: tuple[int, ...]
    similarity: float  # the lowest of the pairs that connect the group; 1 where all texts are equal


@dataclass(frozen=True)
class _Pairs:
    """Pairs of rows and their similarities."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    similarity: NDArray[np.float64]


def normalize(text: str) -> str:
    """The text in lower case, with one space instead of punctuation and white space."""
    return " ".join(re.sub(r"[\W_]+", " ", text.lower()).split()) or " ".join(text.lower().split())


def find_duplicates(fields: Sequence[Sequence[str]], min_similarity: float = MIN_SIMILARITY) -> list[DuplicateGroup]:
    """The groups of rows with nearly the same text, by their first rows; `fields` has the rows' texts of each field.

    Rows without any text are in no group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    texts = ["\n".join(map(normalize, row)) for row in zip(*fields, strict=True)]
    first_of_text = {text: row for row, text in reversed(list(enumerate(texts)))}
    original = np.array([first_of_text[text] for text in texts], dtype=np.int64)  # the first row with the same text
    has_text = np.array([bool(text.strip()) for text in texts], dtype=bool)
    distinct = np.flatnonzero((original == np.arange(len(texts))) & has_text)
    pairs = _similar_pairs([[normalize(column[row]) for row in distinct.tolist()] for column in fields], min_similarity)
    copies = np.flatnonzero((original != np.arange(len(texts))) & has_text)
    first = np.concatenate([distinct[pairs.first], original[copies]])
    second = np.concatenate([distinct[pairs.second], copies])
    similarity = np.concatenate([pairs.similarity, np.ones(len(copies))])
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(texts), len(texts)))
    count, group_of_row = connected_components(graph, directed=False)
    lowest = np.ones(count)
    np.minimum.at(lowest, group_of_row[first], similarity)
    return _collect_groups(group_of_row, lowest)


def _collect_groups(group_of_row: NDArray[np.int32], lowest: NDArray[np.float64]) -> list[DuplicateGroup]:
    """The groups of two rows or more, by their first rows."""
    order = np.argsort(group_of_row, kind="stable")
    starts = np.flatnonzero(np.diff(group_of_row[order], prepend=-1))
    members = [rows for rows in np.split(order, starts[1:]) if len(rows) > 1]
    groups = [DuplicateGroup(tuple(rows.tolist()), float(lowest[group_of_row[rows[0]]])) for rows in members]
    return sorted(groups, key=lambda group: group.rows[0])


def _similar_pairs(fields: Sequence[Sequence[str]], min_similarity: float) -> _Pairs:
    """The pairs of different texts with nearly the same content."""
    empty = _Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    lengths = np.sum([[len(text) for text in column] for column in fields], axis=0)
    rows = np.flatnonzero(lengths >= MIN_CHARACTERS)
    if len(rows) < 2:
        return empty
    elements = [_character_sets([column[int(row)] for row in rows]) for column in fields]
    similar = [empty]
    for pairs in _candidates(elements, min_similarity):
        similarity = _jaccard(elements, pairs)  # (pairs,)
        near = similarity >= min_similarity
        for each in elements if len(elements) > 1 else ():
            near &= _jaccard([each], pairs) >= MIN_FIELD_SIMILARITY
        similar.append(_Pairs(rows[pairs[near, 0]], rows[pairs[near, 1]], similarity[near]))
    return _Pairs(
        np.concatenate([pairs.first for pairs in similar]),
        np.concatenate([pairs.second for pairs in similar]),
        np.concatenate([pairs.similarity for pairs in similar]),
    )


def _character_sets(texts: Sequence[str]) -> Any:
    """The hashed sets of consecutive characters as a sparse matrix of 0 and 1: (texts, hashes)."""
    from sklearn.feature_extraction.text import HashingVectorizer

    sizes = (CHARACTERS, CHARACTERS)
    options = {"n_features": HASH_SIZE, "binary": True, "norm": None, "alternate_sign": False, "dtype": np.float32}
    return HashingVectorizer(analyzer="char", ngram_range=sizes, lowercase=False, **options).transform(texts).tocsr()


def _candidates(elements: Sequence[Any], min_similarity: float) -> Iterator[NDArray[np.int64]]:
    """Pairs of rows, the second after the first, that share one of their rarest elements: (pairs, 2) at a time."""
    from scipy.sparse import hstack

    matrix = elements[0] if len(elements) == 1 else hstack(elements, format="csr")
    prefixes = _rarest(matrix, min_similarity)
    transposed = prefixes.T.tocsr()
    sizes = np.diff(matrix.indptr)
    for start in range(0, matrix.shape[0], CHUNK_ROWS):
        shared = (prefixes[start : start + CHUNK_ROWS] @ transposed).tocoo()
        first, second = shared.coords[0].astype(np.int64) + start, shared.coords[1].astype(np.int64)
        smaller, larger = np.minimum(sizes[first], sizes[second]), np.maximum(sizes[first], sizes[second])
        keep = (first < second) & (smaller >= min_similarity * larger)  # J <= smaller / larger
        yield np.column_stack([first[keep], second[keep]])


def _rarest(matrix: Any, min_similarity: float) -> Any:
    """Of each row of a matrix of 0 and 1, as many of the rarest elements as similar rows must share one of."""
    from scipy.sparse import csr_array

    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, counts[matrix.indices], rows))  # by row; the rarest first, ties by index
    sizes = np.diff(matrix.indptr)
    kept = sizes - np.ceil(min_similarity * sizes - 1e-9).astype(np.int64) + 1
    rank = np.arange(len(rows)) - matrix.indptr[rows]
    keep = rank < kept[rows]
    columns = matrix.indices[order][keep]
    return csr_array((np.ones(len(columns), dtype=np.float32), (rows[keep], columns)), shape=matrix.shape)


def _jaccard(elements: Sequence[Any], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """J of pairs of rows over these fields together, 1 where both are empty: (pairs,)."""
    shared, total = np.zeros(len(pairs)), np.zeros(len(pairs))
    for matrix in elements:
        sizes = np.diff(matrix.indptr)
        total += sizes[pairs].sum(axis=1)
        for start in range(0, len(pairs), CHUNK_ROWS * 16):  # of many pairs a part at a time
            part = pairs[start : start + CHUNK_ROWS * 16]
            product = matrix[part[:, 0]].multiply(matrix[part[:, 1]])
            shared[start : start + len(part)] += np.asarray(product.sum(axis=1)).ravel()
    union = total - shared
    return np.where(union > 0, shared / np.maximum(union, 1), 1.0)
