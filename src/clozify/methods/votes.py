"""A teacher's votes: its scores of rows, the labels that they mean, and how many are right on T."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Offsets = tuple[tuple[float, ...], ...]  # of a teacher and of its voters, one a label each; empty for none


def has_votes(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Whether a teacher votes on each row: (rows,)."""
    voted: NDArray[np.bool_] = ~np.isnan(scores[:, 0])
    return voted


def coverage(scores: NDArray[np.floating[Any]]) -> float:
    """The fraction of rows on which a teacher votes."""
    return float(has_votes(scores).mean()) if len(scores) else 0.0


def hard_votes(scores: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """The label that a teacher votes for in each row, -1 where it abstains: (rows,)."""
    voted, labels = has_votes(scores), np.full(len(scores), -1, dtype=np.int64)
    labels[voted] = np.asarray(scores)[voted].argmax(axis=-1)
    return labels


@dataclass(frozen=True)
class OnLabeled:
    """A teacher's votes on T: how many, and how many are right."""

    votes: float = 0.0
    correct: float = 0.0

    @classmethod
    def of(cls, scores: NDArray[np.floating[Any]], truth: NDArray[np.integer[Any]]) -> OnLabeled:
        """The votes of these scores, (rows, labels), on rows with these labels, (rows,)."""
        votes = hard_votes(scores)
        return cls(float((votes >= 0).sum()), float((votes == truth).sum()))

    def at_most(self, votes: float) -> OnLabeled:
        """The same accuracy on at most so many votes."""
        scale = min(1.0, votes / self.votes) if self.votes else 0.0
        return OnLabeled(scale * self.votes, scale * self.correct)


@dataclass(frozen=True)
class LabeledScores:
    """A teacher's scores of T, (rows, labels), and the labels, (rows,)."""

    scores: NDArray[Any]
    truth: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Votes:
    """A teacher's scores of some rows, and its votes on T; a model's patterns are one teacher with several voters."""

    scores: NDArray[Any]  # (rows, labels), NaN in rows on which it abstains
    on_labeled: tuple[OnLabeled, ...]  # one per voter
    voters: tuple[NDArray[Any], ...] = ()  # the patterns' own scores, (rows, labels) each; empty for a single voter
    coverage: float | None = None  # the fraction of all rows on which it votes, where `scores` are those of some
    labeled: LabeledScores | None = None  # where `on_labeled` comes from, if offsets are to count there, too

    def with_offsets(self, offsets: Offsets) -> Votes:
        """The teacher with offsets of its own scores and of its voters'."""
        if not offsets:
            return self
        own, *of_voters = map(np.asarray, offsets)
        voters = tuple(scores + of_voter for scores, of_voter in zip(self.voters, of_voters, strict=True))
        on_labeled = self.on_labeled
        if self.labeled is not None:
            on_labeled = (OnLabeled.of(self.labeled.scores + own, self.labeled.truth),)
        return replace(self, scores=self.scores + own, voters=voters, on_labeled=on_labeled)
