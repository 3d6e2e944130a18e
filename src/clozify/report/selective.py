"""Risk against coverage: how often a run's result is right if it answers only the rows that it is most sure of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows, chunk_rows
from clozify.methods.selective import RiskCoverage, risk_coverage
from clozify.metrics import wilson_interval
from clozify.report.format import percent
from clozify.report.run import RunRecord
from clozify.report.wrong_rows import result_test_scores
from clozify.runs.reliability import load_reliability

MAX_POINTS = 200  # of a curve on the page
FEWEST_ANSWERS = 5  # a curve begins here: the risk of fewer rows says nothing
COVERAGES = (0.5, 0.8, 1.0)  # that are told in words


@dataclass(frozen=True)
class AnsweredRows:
    """The most confident rows of a curve."""

    coverage: float
    accuracy: float
    interval: tuple[float, float]  # 95% confidence interval of the accuracy

    @property
    def sentence(self) -> str:
        """How many answers are right where only these rows are answered."""
        rows = "all rows"
        if self.coverage < 0.999:
            rows = f"the {percent(self.coverage, 0)}% of the rows with the highest confidence"
        low, high = self.interval
        return (
            f"Answering {rows}, {percent(self.accuracy, 0)}% of the answers are right (95% interval {percent(low, 0)} "
            f"to {percent(high, 0)})."
        )


@dataclass(frozen=True)
class Curve:
    """The risk of each coverage on some rows."""

    name: str  # which rows
    rows: int
    points: list[tuple[float, float]]  # coverage and risk
    answered: list[AnsweredRows]


@dataclass(frozen=True)
class Selective:
    """The curves of held-out labelled rows and of test rows, where the run has them."""

    curves: list[Curve]
    highest: float  # risk on the page

    @property
    def told(self) -> Curve:
        """The curve with the most rows, whose points are told in words."""
        return max(self.curves, key=lambda curve: curve.rows)

    @property
    def description(self) -> str:
        """The drawing in words, for readers who do not see it."""
        accuracies = ", ".join(percent(point.accuracy) for point in self.told.answered)
        coverages = ", ".join(percent(point.coverage, 0) for point in self.told.answered)
        return (
            f"Risk against coverage; {self.told.name}: {accuracies} percent right at a coverage of {coverages} percent"
        )

    @property
    def source(self) -> str:
        """What the sentences were measured on."""
        without = (
            "" if self.told.name == "test rows" else ", which were scored by models that were trained without them"
        )
        return f"Measured on {self.told.rows:,} {self.told.name}{without}."


def selective(run: RunRecord, test: Rows | None) -> Selective | None:
    """The risk-coverage curves of a run; None without held-out and test scores."""
    record, curves = load_reliability(run.folder), []
    if record is not None and record.rows >= FEWEST_ANSWERS:
        curves.append(_curve("held-out labelled rows", record.confidences, record.hits))
    if (scored := _test_rows(run, test)) is not None and len(scored[0]) >= FEWEST_ANSWERS:
        curves.append(_curve("test rows", *scored))
    if not curves:
        return None
    risk = max(max(risk for _, risk in curve.points) for curve in curves)
    return Selective(curves, min(1.0, max(0.05, math.ceil(20 * risk - 1e-9) / 20)))


def _test_rows(run: RunRecord, test: Rows | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]] | None:
    """The confidence of each test row, at the result's temperature, and whether its labels are right: (rows,)."""
    scores = result_test_scores(run)
    if scores is None or test is None or len(test) != len(scores):
        return None
    confidence, hits = np.empty(len(test)), np.empty(len(test), dtype=bool)
    for start, chunk in scores.chunks(chunk_rows(len(run.task.labels))):
        rows = slice(start, start + len(chunk))
        probabilities = run.decision.probabilities(chunk)
        confidence[rows] = run.decision.confidence(probabilities)
        right = run.decision.predict(probabilities) == test.targets[rows]  # (rows,), or (rows, labels)
        hits[rows] = right.all(axis=1) if run.decision.multilabel else right
    return confidence, hits


def _curve(name: str, confidence: NDArray[Any], hits: NDArray[np.bool_]) -> Curve:
    curve = risk_coverage(confidence, hits)
    shown = np.flatnonzero(curve.answered >= FEWEST_ANSWERS)
    shown = shown[np.unique(np.linspace(0, len(shown) - 1, min(MAX_POINTS, len(shown))).astype(np.int64))]
    points = list(zip(curve.coverage[shown].tolist(), curve.risk[shown].tolist(), strict=True))
    return Curve(name, len(hits), points, [_answered(curve, coverage) for coverage in COVERAGES])


def _answered(curve: RiskCoverage, coverage: float) -> AnsweredRows:
    """The first point of the curve that answers at least this fraction of the rows."""
    index = int(np.searchsorted(curve.coverage, coverage - 1e-9))
    accuracy = 1 - float(curve.risk[index])
    return AnsweredRows(float(curve.coverage[index]), accuracy, wilson_interval(accuracy, int(curve.answered[index])))
