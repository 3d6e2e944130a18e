"""What the next labels will probably bring, and when to stop labelling.

With n labelled rows and an error e, one minus the accuracy, a power law expects m further labels to bring

    g = e (1 - (n / (n + m))^c)

with c = 0.15. A run with n' < n labelled rows shows what the labels since then have brought: s, the mean over
unlabelled rows of p(y | x) - p(y' | x), where y is the label that the run predicts, y' the one that the earlier run
predicts, and p the run's probability, at the temperature at which its mean confidence is its accuracy. Then the
expected gain is the mean of g and s r, where r = (n^-c - (n + m)^-c) / (n'^-c - n^-c) is what a power law expects of
the next labels, in terms of the last ones. Its interval is +- (sqrt(m / 20) points + the gain), which held in eight to
nine of ten cases.

`benchmarks/suggest.py` measures both. Accuracies of earlier runs are not extrapolated: that predicts worse than to
expect no gain, since they differ by less than they are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.methods.reliability import match_confidence
from clozify.report.format import percent
from clozify.runs.metrics import Record

EXPONENT = 0.15  # c
LEAST_GAIN = 0.005  # for every 20 labels; with less to expect, labelling may stop
STABLE_KAPPA = 0.99  # agreement of consecutive runs at which labelling may stop (Bloodgood and Vijay-Shanker, 2009)
LABELS = 20  # that the two numbers of points are for


class Accuracy(Record):
    """A run's accuracy with its 95% interval, and what it was measured on."""

    accuracy: float
    low: float
    high: float
    source: Literal["test rows", "estimate"]


class Change(Record):
    """What changed on the unlabelled rows from one run to the next."""

    before: int  # labelled rows of the earlier run
    after: int
    rows: int  # unlabelled rows that both runs have scored
    changed: float  # the fraction of them that is predicted as another label
    kappa: float | None = None  # Cohen's kappa of both runs' predictions; None with several labels a row
    gain: float | None = None  # s, the gain in accuracy that the later run sees; None without its accuracy


class Gain(Record):
    """The expected gain in accuracy, and its interval, which held in eight to nine of ten cases."""

    expected: float
    low: float
    high: float


class Outlook(Record):
    """What the next labels will probably bring, and whether to stop."""

    labels: int  # labelled rows so far
    count: int  # further labels
    accuracy: Accuracy | None = None
    gain: Gain | None = None
    changes: list[Change] = []  # between consecutive runs, the last one is to this run
    stop: bool | None = None  # None where nothing tells
    sentences: list[str]


def power_law_gain(error: float, labels: int, count: int) -> float:
    """The gain in accuracy, g, that a power law expects of `count` more labels."""
    return float(error * (1 - (labels / (labels + count)) ** EXPONENT))


def expected_gain(error: float, labels: int, count: int, last: Change | None = None) -> Gain:
    """The expected gain of `count` labels after `labels` labelled rows, where `last` saw one, the mean of both ways."""
    gain = power_law_gain(error, labels, count)
    if last is not None and last.gain is not None:
        now, later, before = (max(1, n) ** -EXPONENT for n in (labels, labels + count, last.before))
        gain = (gain + last.gain * (now - later) / (before - now)) / 2
    half = np.sqrt(count / LABELS) / 100 + abs(gain)
    return Gain(expected=gain, low=float(gain - half), high=float(gain + half))


def probabilities_at(scores: NDArray[Any], accuracy: float) -> NDArray[np.float64]:
    """Probabilities at the temperature at which their mean confidence is `accuracy`: (rows, labels)."""
    target = min(max(accuracy, 1 / scores.shape[-1] + 0.01), 0.99)
    return np.asarray(softmax(np.asarray(scores, np.float64) / match_confidence(scores, target), axis=-1))


def gain_seen(scores: NDArray[Any], predicted: NDArray[np.integer[Any]], accuracy: float) -> float:
    """s: by how much a run with these scores of unlabelled rows and this accuracy improves on labels `predicted`."""
    probabilities = probabilities_at(scores, accuracy)
    rows = np.arange(len(probabilities))
    return float((probabilities.max(axis=-1) - probabilities[rows, predicted]).mean())


def cohen_kappa(predicted: NDArray[np.integer[Any]], others: NDArray[np.integer[Any]]) -> float:
    """Cohen's kappa of two predictions of the same rows; 1 where both predict one and the same label for all rows."""
    size = int(max(predicted.max(), others.max())) + 1
    fractions = [np.bincount(labels, minlength=size) / len(labels) for labels in (predicted, others)]
    expected, observed = float(fractions[0] @ fractions[1]), float((predicted == others).mean())
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)


def make_outlook(
    labels: int, count: int, accuracy: Accuracy | None, changes: Sequence[Change] = (), problem: str | None = None
) -> Outlook:
    """The outlook of a run with `labels` labelled rows; `problem` says why there is no accuracy."""
    last = changes[-1] if changes else None
    gain = None
    if accuracy is not None and labels:
        gain = expected_gain(1 - accuracy.accuracy, labels, count, last)
    few = gain is not None and gain.expected < LEAST_GAIN * count / LABELS
    stable = last is not None and last.kappa is not None and last.kappa >= STABLE_KAPPA
    stop = None if gain is None and last is None else few or stable
    sentences = [_about_gain(count, accuracy, gain, problem)]
    if last is not None:
        sentences.append(_about_changes(changes))
    if stop:
        reasons = [f"{count} labels bring less than {_points(LEAST_GAIN * count / LABELS)}"] if few else []
        reasons += ["the predictions are stable"] if stable else []
        sentences.append(f"You may stop: {' and '.join(reasons)}.")
    return Outlook(
        labels=labels,
        count=count,
        accuracy=accuracy,
        gain=gain,
        changes=list(changes),
        stop=stop,
        sentences=sentences,
    )


def _points(fraction: float) -> str:
    return "half a point" if fraction == LEAST_GAIN else f"{100 * fraction:.1f} points"


def _about_gain(count: int, accuracy: Accuracy | None, gain: Gain | None, problem: str | None) -> str:
    """The expected gain and the accuracy so far, or why there is none."""
    if accuracy is None or gain is None:
        return f"What the next {count} labels bring cannot be estimated: {problem or 'the run has no labelled rows'}."
    source = "on the test rows" if accuracy.source == "test rows" else "estimated without test rows"
    return (
        f"The next {count} labels will probably bring {100 * gain.expected:+.1f} points ({100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f}); accuracy so far is {percent(accuracy.accuracy, 0)}% "
        f"({percent(accuracy.low, 0)} to {percent(accuracy.high, 0)}), {source}."
    )


def _about_changes(changes: Sequence[Change]) -> str:
    """How many predictions changed from run to run."""
    parts = [f"{percent(c.changed)}% from {c.before:,} to {c.after:,} labelled rows" for c in changes]
    return f"Predictions of unlabelled rows that changed: {', '.join(parts)}."
