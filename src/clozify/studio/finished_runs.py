"""Finished runs of a project: their numbers, and what their classifiers say about a text.

A text is scored once; thresholds and prediction sets are then decided as `clozify predict` does.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.data.in_memory import make_rows
from clozify.errors import ClozifyError, DataError
from clozify.inference.abstaining import Abstainer, AbstainOptions
from clozify.inference.explain import Explanations, explain
from clozify.inference.finished_run import FinishedRun
from clozify.inference.scope import load_run_scope, probabilities_and_scope
from clozify.report.format import percent
from clozify.studio.run_numbers import RunNumbers, read_numbers
from clozify.studio.runs import RUNS_FOLDER, StudioRun


@dataclass(frozen=True)
class Verdict:
    """What one option of `clozify predict` says about a text."""

    text: str
    positive: bool | None  # whether the text is answered, or in scope; None: neither
    details: list[str] = field(default_factory=list)  # the threshold, and what is expected of it


@dataclass(frozen=True)
class ClassifiedText:
    """A text's labels with their calibrated probabilities, likeliest first, and what the options say about it."""

    probabilities: list[tuple[str, float]]
    confidence: str  # a sentence
    verdicts: list[Verdict]
    problems: list[str]  # what was asked for and the run cannot say


@dataclass(frozen=True)
class _ScoredText:
    """A text's probabilities, (labels,), and its out-of-scope score; None where the run has no such scores."""

    probabilities: NDArray[np.float64]
    out_of_scope: NDArray[np.floating[Any]] | None  # (1,)


class FinishedRuns:
    """Reads finished runs, and keeps one classifier and its last answers in memory."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._run: tuple[tuple[Path, int], FinishedRun] | None = None
        self._numbers: dict[tuple[Path, int], RunNumbers] = {}
        self._scored: tuple[object, _ScoredText] | None = None  # the last text
        self._explained: tuple[object, Explanations] | None = None

    def numbers(self, run: StudioRun) -> RunNumbers:
        """The run's numbers; they are read once."""
        with self._lock:
            key = _key(run)
            if key not in self._numbers:
                self._numbers[key] = read_numbers(run)
            return self._numbers[key]

    def fields(self, run: StudioRun) -> list[str]:
        """The fields that the run's classifier reads."""
        return self._open(run).task.fields

    def classify(self, run: StudioRun, texts: Mapping[str, str], options: AbstainOptions) -> ClassifiedText:
        """The labels of one row, and what each option says about it."""
        _check_text(texts)
        with self._lock:
            finished, scored = self._open(run), self._score(run, texts)
        probabilities = scored.probabilities
        names = list(finished.task.labels)
        if finished.decision.multilabel:  # which labels it predicts depends on their thresholds
            predicted = finished.decision.predict(probabilities[None])[0]
            names = [f"{name}: yes" if has else name for name, has in zip(names, predicted, strict=True)]
        verdicts, problems = _decide(finished, scored, options)
        return ClassifiedText(
            [(names[index], float(probabilities[index])) for index in np.argsort(-probabilities, kind="stable")],
            _confidence_sentence(finished, probabilities),
            verdicts,
            problems,
        )

    def explain(self, run: StudioRun, texts: Mapping[str, str]) -> Explanations:
        """Which words moved the label of one row."""
        _check_text(texts)
        key = (_key(run), *texts.items())
        with self._lock:
            if self._explained is None or self._explained[0] != key:
                finished = self._open(run)
                rows = make_rows({name: [text] for name, text in texts.items()}, finished.task, "the text")
                self._explained = key, explain(finished, rows)
            return self._explained[1]

    def has_scope(self, run: StudioRun) -> bool:
        """Whether the run can say that a text is out of scope."""
        finished = self._open(run)
        try:
            load_run_scope(finished)
        except ClozifyError:
            return False
        return True

    def held_out_rows(self, run: StudioRun) -> int:
        """The labelled rows that thresholds and prediction sets are chosen on; 0 where the run has none."""
        reliability = self._open(run).reliability
        return 0 if reliability is None else reliability.rows

    def _open(self, run: StudioRun) -> FinishedRun:
        key = _key(run)
        with self._lock:
            if self._run is None or self._run[0] != key:
                self._run = key, FinishedRun(run.path)
            return self._run[1]

    def _score(self, run: StudioRun, texts: Mapping[str, str]) -> _ScoredText:
        key = (_key(run), *texts.items())
        if self._scored is None or self._scored[0] != key:
            finished = self._open(run)
            rows = make_rows({name: [text] for name, text in texts.items()}, finished.task, "the text")
            scope = load_run_scope(finished) if self.has_scope(run) else None
            (probabilities,), scores = probabilities_and_scope(finished, rows, scope)
            self._scored = key, _ScoredText(probabilities, scores)
        return self._scored[1]


def predict_command(run: StudioRun, texts: Mapping[str, str], options: AbstainOptions) -> str:
    """The same on the command line; a row with several fields needs a file."""
    values = list(texts.values())
    command = ["clozify", "predict", f"{RUNS_FOLDER}/{run.number}"]
    command += ["--text", values[0]] if len(values) == 1 else ["--data", "FILE"]
    names = {
        "--min-confidence": options.min_confidence,
        "--max-risk": options.max_risk,
        "--coverage": options.coverage,
        "--sets": options.sets,
        "--reject-out-of-scope": options.rejected,
    }
    for name, value in names.items():
        command += [] if value is None else [name, f"{value:g}"]
    return shlex.join(command)


def _key(run: StudioRun) -> tuple[Path, int]:
    """A run's folder, and when it was finished."""
    metrics = run.path / "metrics.json"
    return run.path, metrics.stat().st_mtime_ns if metrics.is_file() else 0


def _check_text(texts: Mapping[str, str]) -> None:
    if not any(text.strip() for text in texts.values()):
        raise DataError("Write a text to classify.")


def _confidence_sentence(finished: FinishedRun, probabilities: NDArray[np.float64]) -> str:
    """The predicted label and its confidence, and whether that is calibrated."""
    if finished.decision.multilabel:
        names = finished.decision.names(finished.decision.predict(probabilities[None]))[0]
        return f"Predicted: {names or 'none of the labels'}, each label by its own threshold."
    confidence = (
        f"{finished.task.labels[int(probabilities.argmax())]}, with a confidence of {percent(probabilities.max())}%"
    )
    if finished.reliability is None:
        return f"{confidence}, which is not calibrated, since the run has no held-out scores of labelled rows."
    return (
        f"{confidence}, calibrated on {finished.reliability.rows:,} labelled rows: about "
        f"{percent(probabilities.max(), 0)} of 100 answers with this confidence are right."
    )


def _decide(finished: FinishedRun, scored: _ScoredText, options: AbstainOptions) -> tuple[list[Verdict], list[str]]:
    """What the threshold of the confidence, the sets and the scope say, and why one of them cannot."""
    parts: list[tuple[AbstainOptions, Callable[[Abstainer], Verdict]]] = [
        (AbstainOptions(options.min_confidence, options.max_risk, options.coverage), partial(_answered, scored)),
        (AbstainOptions(sets=options.sets), partial(_prediction_set, scored, finished.decision)),
        (AbstainOptions(reject_out_of_scope=options.reject_out_of_scope), partial(_in_scope, scored)),
    ]
    verdicts, problems = list[Verdict](), list[str]()
    for part, decide in parts:
        if not part.has_any:
            continue
        try:
            verdicts.append(decide(finished.abstainer(part)))
        except ClozifyError as error:
            problems += error.problems
    return verdicts, problems


def _answered(scored: _ScoredText, abstainer: Abstainer) -> Verdict:
    (reason,) = abstainer.answers(scored.probabilities[None]).abstained or [None]
    threshold = f"{abstainer.threshold:.3g}"
    if reason is None:
        return Verdict(f"Answered: the confidence is at least {threshold}.", True, abstainer.lines())
    return Verdict(f"Not answered: the confidence is below {threshold}.", False, abstainer.lines())


def _prediction_set(scored: _ScoredText, decision: Decision, abstainer: Abstainer) -> Verdict:
    sets = abstainer.answers(scored.probabilities[None]).sets
    assert sets is not None  # a level is there
    (names,) = decision.name_lists(sets)
    return Verdict(
        f"Prediction set at the level {abstainer.level:g}: {', '.join(names) or 'no label'}.", None, abstainer.lines()
    )


def _in_scope(scored: _ScoredText, abstainer: Abstainer) -> Verdict:
    assert scored.out_of_scope is not None  # the abstainer has a scope
    score, highest = float(scored.out_of_scope[0]), f"{abstainer.max_score:.3g}"
    (reason,) = abstainer.answers(scored.probabilities[None], scored.out_of_scope).abstained or [None]
    if reason is None:
        text = f"In scope: the out-of-scope score is {score:.3g}, and {highest} is the highest that is answered."
        return Verdict(text, True, abstainer.lines())
    text = f"Out of scope: the score is {score:.3g}, above {highest}; the text is unlike those of the training."
    return Verdict(text, False, abstainer.lines())
