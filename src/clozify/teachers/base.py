"""What a teacher is: it gives rows log-probabilities of the labels, or abstains, and says what that costs.

A pair of a language model is one kind of teacher; its scores are made in `methods/` and kept as those of a member. All
other kinds are modules of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import quoted

PATTERNS = "patterns"  # the kind, and the run's own model's name, of all patterns together


@dataclass(frozen=True)
class Cost:
    """What scoring some rows costs, before it is done; what is not known or needed is None or 0."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    price: float | None = None  # in the currency of the prices that the user gave


@dataclass(frozen=True)
class ScoringContext:
    """What a teacher may use when it scores rows."""

    labeled: Rows  # T, for examples in a prompt or for fitting; may be empty
    device: str  # "cpu" or "cuda"
    cache: Path  # a folder for answers that are kept, each under a key of its content
    log: Callable[[str], None]
    uncertainty: NDArray[np.float64] | None = None  # (rows,): a teacher that cannot score all takes the highest first


class Teacher(Protocol):
    """Votes on rows.

    It may also have `learns_from_labeled`, true where its scores depend on T, so that its accuracy there has to be
    cross-fitted, `row_limit`, the most unlabelled rows that it is asked about, and `notes()`, sentences about what is
    missing on this machine to ask it.
    """

    @property
    def name(self) -> str:
        """Its name in logs, metrics and the report; unique in a run."""

    @property
    def kind(self) -> str:
        """ "rule", "classifier", "nli", "openai", "function" or "estimator"."""

    def key(self) -> dict[str, Any]:
        """What its scores depend on, besides the rows and T, as JSON; never a secret."""

    def cost(self, rows: Rows) -> Cost:
        """What it will cost to score these rows, at most."""

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Log-probabilities, (rows, labels) in the order of the task's labels; NaN in rows on which it abstains.

        A vote for a single label is 0 for it and -inf for the others.
        """


def learns_from_labeled(teacher: Teacher) -> bool:
    """Whether a teacher's scores depend on T."""
    return bool(getattr(teacher, "learns_from_labeled", False))


def row_limit(teacher: Teacher) -> int | None:
    """How many unlabelled rows a teacher is asked about at most; None for all."""
    limit: int | None = getattr(teacher, "row_limit", None)
    return limit


def readiness_notes(teachers: Sequence[Teacher]) -> list[str]:
    """What is missing on this machine to ask the teachers, before anything is trained."""
    return [note for teacher in teachers if hasattr(teacher, "notes") for note in teacher.notes()]


def silent_warnings(names: Sequence[str], rows: str = "these") -> list[str]:
    """A sentence about teachers that vote on no row, whose weight says nothing then."""
    if not names:
        return []
    verb, its = ("votes", "its") if len(names) == 1 else ("vote", "their")
    return [f"{quoted(names, 5)} {verb} on none of {rows} rows, so {its} weight and accuracy are only assumed."]


def by_row_limit(teachers: Sequence[Teacher]) -> list[Teacher]:
    """The teachers that score all rows, then those that are asked about some of them."""
    return sorted(teachers, key=lambda teacher: row_limit(teacher) is not None)


def abstentions(rows: int, labels: int) -> NDArray[np.float32]:
    """Scores of a teacher that abstains on all rows: (rows, labels)."""
    return np.full((rows, labels), np.nan, dtype=np.float32)


def votes(labels_of_rows: NDArray[np.int64], labels: int) -> NDArray[np.float32]:
    """Scores of a teacher that names one label a row, or none (-1): (rows, labels)."""
    scores = abstentions(len(labels_of_rows), labels)
    voted = np.flatnonzero(labels_of_rows >= 0)
    scores[voted] = -np.inf
    scores[voted, labels_of_rows[voted]] = 0.0
    return scores
