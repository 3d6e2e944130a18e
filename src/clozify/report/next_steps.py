"""What to do after a run, derived from its numbers."""

from __future__ import annotations

from clozify.metrics import wilson_interval
from clozify.report.format import percent
from clozify.report.outlook import LABELS, LEAST_GAIN, expected_gain
from clozify.report.run import RunRecord
from clozify.report.scores import Confusion, PatternScore, Score, loses_to_ensemble, other_method_scores
from clozify.report.unlabeled import Agreement
from clozify.runs.reliability import load_reliability
from clozify.runs.results import ENSEMBLE_METHODS

MAX_STEPS = 5
WIDE_INTERVAL = 0.1  # from end to end; 400 test rows have this at an accuracy of 50%
WEAK_PATTERN = 0.1  # a pattern this much below the best one is pointed out
WEAK_LABEL = 0.5  # a label with a lower F1 is pointed out


def next_steps(
    run: RunRecord,
    result: Score | None,
    patterns: list[PatternScore],
    agreement: Agreement | None,
    confusion: Confusion | None,
) -> list[str]:
    """Sentences, the most important first."""
    steps = [] if result is None else _about_baselines(run, result)
    steps += _about_patterns(run, patterns, agreement)
    steps += _about_labels(confusion)
    if result is None:
        steps.insert(0, _about_missing_test_rows(run))
    elif result.interval is not None and result.interval[1] - result.interval[0] > WIDE_INTERVAL:
        steps.append(
            f"Label more test rows before you compare settings: with {run.metrics.rows['test']:,} rows the accuracy "
            f"may be anywhere from {percent(result.interval[0])} to {percent(result.interval[1])}."
        )
    if "unlabeled" in run.inputs.data:
        steps.append(_about_more_labels(run, result))
    is_compared = run.method == "supervised" or any(o.method == "supervised" for o in other_method_scores(run))
    if result is not None and len(steps) < MAX_STEPS and not is_compared and run.inputs.data["labeled"].rows:
        steps.append(
            "Train the supervised baseline with the same labelled and test rows (`--method supervised`): it shows what "
            "the patterns and the unlabelled rows add."
        )
    return steps[:MAX_STEPS]


def _about_missing_test_rows(run: RunRecord) -> str:
    advice = "Label some rows for a test set and name it with `--test`: "
    metric = "micro-F1" if run.task.multilabel else "the accuracy"
    if run.metrics.estimate is None:
        return advice + f"{metric} is unknown without."
    _, low, high = run.metrics.estimate.main
    return advice + f"without, {metric} may be anywhere from {percent(low)} to {percent(high)}."


def _about_more_labels(run: RunRecord, result: Score | None) -> str:
    """What to label next, and what it will probably bring."""
    labels, reliability = run.inputs.data["labeled"].rows, load_reliability(run.folder)
    accuracy = None if reliability is None else reliability.accuracy
    if result is not None:
        accuracy = result.accuracy
    if accuracy is None or not labels or run.task.multilabel:
        return "Label more rows: `clozify suggest` writes those that would help most to a file."
    gain = expected_gain(1 - accuracy, labels, LABELS).expected
    expected = f"{LABELS} more will probably bring {100 * gain:+.1f} points"
    if gain < LEAST_GAIN:
        return f"Label more rows only if small gains count: {expected}."
    return f"Label more rows: `clozify suggest` writes those that would help most to a file; {expected}."


def _about_baselines(run: RunRecord, result: Score) -> list[str]:
    """Whether the result is better than what takes no language model."""
    trivial = run.metrics.trivial
    if trivial is None or (result.interval is None and not run.task.multilabel):
        return []
    low = result.accuracy if result.interval is None else result.interval[0]
    advice = "try a larger `--model`"
    if loses_to_ensemble(run, result):
        advice = "train the classifier for more steps first (`distill.max_steps`); its ensemble is better"
    elif run.method in ENSEMBLE_METHODS:
        advice = f"look at the patterns and words with `clozify check`, and {advice}"
    if trivial.majority.main >= low:
        return [
            f"The result is not clearly better than always answering '{trivial.majority_label}' "
            f"({percent(trivial.majority.main)}): {advice}."
        ]
    if trivial.tfidf is not None and trivial.tfidf.main >= low:
        return [
            "The result is not clearly better than TF-IDF with logistic regression "
            f"({percent(trivial.tfidf.main)}), which takes a second to train: {advice}."
        ]
    return []


def _about_patterns(run: RunRecord, patterns: list[PatternScore], agreement: Agreement | None) -> list[str]:
    """Patterns that guess before training, that are far below the best one, or that agree with no other."""
    labeled, steps = run.inputs.data["labeled"].rows, []
    best = max((pattern.after for pattern in patterns if pattern.after is not None), default=None)
    weak = [p.pair for p in patterns if best is not None and p.after is not None and best - p.after > WEAK_PATTERN]
    weak += [pair for pair in (agreement.outliers if agreement else []) if pair not in weak]
    if weak:
        steps.append(f"Reword or remove {', '.join(weak)}: far below the best pattern, or at odds with the others.")
    guess = 1 / len(run.task.labels)
    guessing = [
        pattern.pair
        for pattern in patterns
        if labeled
        and not run.task.multilabel
        and pattern.before_on_labelled is not None
        and wilson_interval(pattern.before_on_labelled, labeled)[0] <= guess
    ]
    if guessing and labeled >= 5 * len(run.task.labels):  # of fewer rows, an accuracy says too little
        names = "all patterns" if len(guessing) == len(patterns) else ", ".join(guessing)
        steps.append(
            f"Try other words (`clozify find-words`): before training, the answers of {names} on the labelled rows are "
            "not clearly better than guessing."
        )
    return steps


def _about_labels(confusion: Confusion | None) -> list[str]:
    """The label that is recognised worst."""
    scored = [] if confusion is None else [score for score in confusion.label_scores if score.rows]
    if not scored:
        return []
    worst = min(scored, key=lambda score: score.f1)
    if worst.f1 >= WEAK_LABEL:
        return []
    return [
        f"Label more rows of '{worst.label}' or choose another word for it: its F1 is {percent(worst.f1)}, the lowest."
    ]
