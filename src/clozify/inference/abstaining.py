"""Which rows of a finished run get no prediction, and which labels a prediction set has.

`AbstainOptions` are what a user asks for; an `Abstainer` has the thresholds that follow from a run's held-out scores
and decides about rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.predictions import Answers, PredictedChunk
from clozify.errors import RunError
from clozify.methods.conformal import fewest_rows, prediction_sets
from clozify.methods.scope import Scope
from clozify.methods.selective import (
    OperatingPoint,
    operating_point,
    risk_coverage,
    threshold_for_coverage,
    threshold_for_risk,
)
from clozify.runs.reliability import Reliability

CONFIDENCE, OUT_OF_SCOPE = "confidence", "out of scope"  # why a row has no prediction
REASONS = (CONFIDENCE, OUT_OF_SCOPE)
ScoredChunk: TypeAlias = tuple[
    int, NDArray[np.float64], NDArray[np.float64] | None
]  # start, probabilities, scope scores
REJECTED = 0.05  # the fraction of rows in scope that are rejected by default


@dataclass(frozen=True)
class AbstainOptions:
    """What a user asks for; at most one of the first three, which choose a threshold of the confidence."""

    min_confidence: float | None = None
    max_risk: float | None = None
    coverage: float | None = None
    sets: float | None = None
    reject_out_of_scope: float | bool | None = None  # True: the default fraction

    def __post_init__(self) -> None:
        limits = {
            "--min-confidence": (self.min_confidence, True),
            "--max-risk": (self.max_risk, False),
            "--coverage": (self.coverage, True),
            "--sets": (self.sets, False),
            "--reject-out-of-scope": (self.rejected, False),
        }
        for name, (value, with_one) in limits.items():
            if value is not None and not (0 < value < 1 or (with_one and value == 1)):
                raise RunError(
                    f"{name} takes a number above 0 and {'at most' if with_one else 'below'} 1, not {value:g}."
                )
        chosen = [name for name in ("--min-confidence", "--max-risk", "--coverage") if limits[name][0] is not None]
        if len(chosen) > 1:
            raise RunError(f"{' and '.join(chosen)} each set the threshold of the confidence; use one of them.")

    @property
    def rejected(self) -> float | None:
        """The fraction of rows in scope that may be rejected as out of scope; None: no row is."""
        if isinstance(self.reject_out_of_scope, bool):
            return REJECTED if self.reject_out_of_scope else None
        return self.reject_out_of_scope

    @property
    def has_any(self) -> bool:
        """Whether anything is asked for."""
        return self != AbstainOptions() and (self != AbstainOptions(reject_out_of_scope=False))


@dataclass
class Tally:
    """Counts of what was decided."""

    rows: int = 0
    abstained: Counter[str] = field(default_factory=Counter)
    labels_in_sets: int = 0

    def add(self, answers: Answers, rows: int) -> None:
        """Count some rows."""
        self.rows += rows
        self.abstained.update(reason for reason in answers.abstained or [] if reason is not None)
        self.labels_in_sets += 0 if answers.sets is None else int(answers.sets.sum())


@dataclass(frozen=True)
class Abstainer:
    """The thresholds for one run, and what is expected of them."""

    decision: Decision  # which labels probabilities mean
    threshold: float | None = None  # of the confidence
    asked: str = ""  # what the threshold was chosen for
    point: OperatingPoint | None = None  # what the threshold does on held-out rows
    level: float | None = None  # of the prediction sets
    set_threshold: float = 0.0
    held_out: int = 0  # rows that the thresholds were chosen on
    scope: Scope | None = None
    max_score: float = math.inf  # out-of-scope scores above it are rejected
    rejected: float | None = None

    @property
    def abstains(self) -> bool:
        """Whether some rows may get no prediction."""
        return self.threshold is not None or self.scope is not None

    def answers(
        self, probabilities: NDArray[np.float64], out_of_scope: NDArray[np.floating[Any]] | None = None
    ) -> Answers:
        """Decide about rows with these probabilities, (rows, labels), and out-of-scope scores, (rows,)."""
        abstained: list[str | None] | None = None
        if self.abstains:
            below = np.zeros(len(probabilities), dtype=bool)
            if self.threshold is not None:
                below = self.decision.confidence(probabilities) < self.threshold
            outside = below & False if out_of_scope is None else out_of_scope > self.max_score
            abstained = [
                OUT_OF_SCOPE if is_outside else CONFIDENCE if is_below else None
                for is_outside, is_below in zip(outside.tolist(), below.tolist(), strict=True)
            ]
        sets = None
        if self.level is not None:
            predicted = self.decision.predict(probabilities) if self.decision.multilabel else None
            sets = prediction_sets(probabilities, self.set_threshold, predicted)
        return Answers(abstained, sets, out_of_scope)

    def decide(self, chunks: Iterable[ScoredChunk], tally: Tally) -> Iterator[PredictedChunk]:
        """Decide about chunks of rows and count what was decided."""
        for start, probabilities, out_of_scope in chunks:
            answers = self.answers(probabilities, out_of_scope)
            tally.add(answers, len(probabilities))
            yield PredictedChunk(start, probabilities, answers)

    def lines(self, tally: Tally | None = None) -> list[str]:
        """What the thresholds are, what is expected of them and, with a tally, what they did; one sentence each."""
        lines = []
        if self.threshold is not None:
            lines.append(f"{self._confidence_line()}{_counted(tally, CONFIDENCE)}.")
        if self.rejected is not None and self.scope is not None:
            lines.append(
                f"Rows with an out-of-scope score above {self.max_score:.3g}, which {_percent(self.rejected)} of "
                f"{len(self.scope.reference_scores(self.rejected)):,} rows of the training have, get no prediction"
                f"{_counted(tally, OUT_OF_SCOPE)}."
            )
        if self.level is not None:
            size = f"; {tally.labels_in_sets / max(tally.rows, 1):.1f} labels on average" if tally is not None else ""
            several = self.decision.multilabel
            lines.append(
                f"Prediction sets, with {'the predicted labels and all others' if several else 'the labels'} of a "
                f"probability of at least {self.set_threshold:.3g}, chosen on {self.held_out:,} held-out labelled "
                f"rows, contain {'all true labels' if several else 'the true label'} for {_percent(self.level)} of the "
                f"rows{size}."
            )
        return lines

    def _confidence_line(self) -> str:
        text = f"Rows with a confidence below {self.threshold:.3g} get no prediction"
        if self.asked:
            text += f", chosen on {self.held_out:,} held-out labelled rows for {self.asked}"
        if self.point is None:
            return f"{text}; the accuracy of the others is unknown, since the run has no held-out scores"
        if self.point.accuracy is None or self.point.interval is None:
            return f"{text}; none of {self.point.rows:,} held-out labelled rows was as confident"
        low, high = self.point.interval
        of_rows = "" if self.asked else f" by {self.point.rows:,} held-out labelled rows"
        right = "with all labels right" if self.decision.multilabel else "right"
        return (
            f"{text}: expected{of_rows} are predictions for {_percent(self.point.coverage)} of the rows, "
            f"{_percent(self.point.accuracy)} of them {right} (95% interval {100 * low:.0f} to {100 * high:.0f})"
        )


def choose_thresholds(
    options: AbstainOptions,
    source: str,
    decision: Decision,
    reliability: Reliability | None,
    load_scope: Callable[[], Scope],
) -> Abstainer:
    """The thresholds for a run, which messages call `source`; raises a `RunError` where it lacks what they need."""
    confidence = {name: getattr(options, name) for name in ("min_confidence", "max_risk", "coverage", "sets")}
    asked = [f"--{name.replace('_', '-')}" for name, value in confidence.items() if value is not None]
    needed = [name for name in asked if name != "--min-confidence"]
    if needed and reliability is None:
        raise RunError(
            f"{' and '.join(needed)} needs held-out scores of labelled rows, which '{source}' does not have "
            "(reliability.json); train it again with more labelled rows, or use --min-confidence."
        )
    scope, max_score = None, math.inf
    if options.rejected is not None:
        scope = load_scope()
        max_score = _max_score(scope, options.rejected, source)
    threshold, text = options.min_confidence, ""
    point, level = None, options.sets
    if reliability is not None:
        if options.max_risk is not None:
            threshold, text = _threshold_for_risk(reliability, options.max_risk)
        elif options.coverage is not None:
            threshold = threshold_for_coverage(reliability.confidences, options.coverage)
            text = f"a coverage of {_percent(options.coverage)}"
        if threshold is not None:
            point = operating_point(reliability.confidences, reliability.hits, threshold)
    return Abstainer(
        decision,
        threshold,
        text,
        point,
        level,
        0.0 if level is None or reliability is None else _set_threshold(reliability, level),
        0 if reliability is None else reliability.rows,
        scope,
        max_score,
        options.rejected,
    )


def _threshold_for_risk(reliability: Reliability, max_risk: float) -> tuple[float, str]:
    threshold = threshold_for_risk(reliability.confidences, reliability.hits, max_risk)
    if threshold is None:
        lowest = risk_coverage(reliability.confidences, reliability.hits).upper_risk.min()
        raise RunError(
            f"With {reliability.rows:,} held-out labelled rows, no threshold promises a risk of at most "
            f"{_percent(max_risk)}; use --max-risk {math.ceil(1000 * lowest) / 1000:g} or more, or label more rows and "
            "train again."
        )
    return threshold, f"a risk of at most {_percent(max_risk)}"


def _set_threshold(reliability: Reliability, level: float) -> float:
    if reliability.rows < (fewest := fewest_rows(level)):
        raise RunError(
            f"Prediction sets of the level {level:g} take {fewest:,} held-out labelled rows or more, and the run has "
            f"{reliability.rows:,}; ask for a lower level, or label more rows and train again."
        )
    return reliability.set_threshold(level)


def _max_score(scope: Scope, rejected: float, source: str) -> float:
    threshold = scope.threshold(rejected)
    if threshold is None:
        raise RunError(
            f"--reject-out-of-scope {rejected:g} takes the scores of {fewest_rows(1 - rejected):,} rows of the "
            f"training or more, and '{source}' has those of {len(scope.reference_scores(rejected)):,}; train with more "
            "(--labeled or --unlabeled), or name a larger fraction."
        )
    return threshold


def _counted(tally: Tally | None, reason: str) -> str:
    """How many rows have no prediction for a reason."""
    if tally is None:
        return ""
    return f"; here {tally.abstained[reason]:,} of {tally.rows:,} rows have none"


def _percent(fraction: float) -> str:
    """5% for 0.05, 91.2% for 0.9123."""
    return f"{100 * fraction:.3g}%"
