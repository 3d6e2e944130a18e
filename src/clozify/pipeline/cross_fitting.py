"""How good the result is, without a test set: models that are trained without a fold of T score it.

`methods/reliability.py` has the formulas. The estimate and the calibrated probabilities of the held-out rows are
written to `reliability.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.data.decision import Decision
from clozify.methods.conformal import expected_thresholds
from clozify.methods.ensemble import Ensemble, combine_scores
from clozify.methods.label_set_reliability import HeldOutLabelSets, estimate_label_sets
from clozify.methods.reliability import (
    AccuracyEstimate,
    HeldOutScores,
    estimate_accuracy,
    match_confidence,
    most_likely_temperature,
    target_confidence,
)
from clozify.models.classifier import scale_logits
from clozify.pipeline.folds import Fold, estimate_folds, estimate_pairs
from clozify.pipeline.member_jobs import MemberSpec
from clozify.pipeline.members import train_members
from clozify.pipeline.run import Run
from clozify.pipeline.run_files import EnsembleInputs
from clozify.pipeline.teachers import Combination
from clozify.runs.metrics import AccuracyMetrics
from clozify.runs.records import HELD_OUT_SCORES, Member
from clozify.runs.reliability import RELIABILITY_FILE, Reliability
from clozify.utils.atomic import atomic_write_text
from clozify.utils.checked_files import open_npy

SHARE_ROWS = 5_000  # unlabelled rows, evenly spaced, that labels' shares are estimated on
COMBINED_PRIOR = (1.0, 0.3)  # of the temperature of several teachers' log-probabilities: centre, spread of its log
PRIORS = {"pet": (1.8, 0.1), "ipet": (1.8, 0.1), "frozen": (1.0, 1.0), "supervised": (1.5, 0.5)}  # of temperatures
HeldOut: TypeAlias = HeldOutScores | HeldOutLabelSets  # with one label a row, with several


def cross_fit(run: Run, members: Sequence[Member], pair_weights: Sequence[float]) -> HeldOutScores | None:
    """Scores of T by ensembles that were trained without a fold of it; None where nothing is estimated."""
    if not (folds := estimate_folds(run.plan)):
        return None
    if run.plan.method != "frozen":
        return _cross_fit_members(run, folds, pair_weights)
    scores = [open_npy(member.folder / HELD_OUT_SCORES) for member in members]
    combined = combine_scores(scores, [pair_weights[member.pair] for member in members])
    return HeldOutScores(combined, run.plan.labeled.labels, len(folds))


def _cross_fit_members(run: Run, folds: Sequence[Fold], pair_weights: Sequence[float]) -> HeldOutScores:
    """Scores of T by members of the best pairs."""
    plan = run.plan
    pairs = np.argsort([-weight for weight in pair_weights], kind="stable")[: estimate_pairs(plan)].tolist()
    seeds = plan.seeds(len(plan.task.pairs))
    specs = [MemberSpec(pair, seeds[pair][0], score_unlabeled=False, fold=fold) for fold in folds for pair in pairs]
    members = iter(train_members(run, specs, "estimate"))
    scores = np.zeros((len(plan.labeled), len(plan.task.labels)))
    for fold in folds:
        of_fold = [open_npy(next(members).folder / HELD_OUT_SCORES) for _ in pairs]
        scores[fold.held_out(plan)] = combine_scores(of_fold, [pair_weights[pair] for pair in pairs])
    return HeldOutScores(scores, plan.labeled.labels, len(folds))


def join_teachers(held_out: HeldOut | None, combination: Combination) -> HeldOut | None:
    """The scores of T by all teachers together, the patterns' by models that were trained without a fold."""
    if not isinstance(held_out, HeldOutScores):  # tasks with several labels a row have no other teachers
        return held_out
    return HeldOutScores(combination.of_labeled(held_out.scores), held_out.truth, held_out.folds)


def calibrate_ensemble(run: Run, held_out: HeldOut | None, ensemble: EnsembleInputs) -> Reliability | None:
    """The ensemble's estimated accuracy and its temperature, by the likelihood of the held-out rows."""
    if not isinstance(held_out, HeldOutScores):
        return _label_set_reliability(held_out)
    prior = PRIORS[run.plan.method] if ensemble.combined is None else COMBINED_PRIOR
    temperature = most_likely_temperature(held_out, *prior)
    shares = None
    if run.plan.unlabeled is not None:
        members, weights = ensemble.scored
        scores = Ensemble([member.unlabeled_scores() for member in members], weights)
        rows = np.unique(np.linspace(0, len(scores) - 1, min(SHARE_ROWS, len(scores))).astype(np.int64))
        shares = softmax(scores[rows] / temperature, axis=-1).mean(axis=0)
    return _reliability(held_out, estimate_accuracy(held_out, shares), temperature, temperature)


def calibrate(decision: Decision, reliability: Reliability | None) -> Decision:
    """The decision at the temperature of an estimate, where there is one."""
    return decision if reliability is None else replace(decision, temperature=reliability.temperature)


def calibrate_classifier(
    run: Run, held_out: HeldOut | None, unlabeled_scores: NDArray[Any] | None, lost: float = 0.0
) -> Reliability | None:
    """A classifier's estimated accuracy and its temperature; `unlabeled_scores`, (rows, labels), are its own.

    `lost` is how much less accurate it is than a classifier that follows the ensemble.
    """
    if not isinstance(held_out, HeldOutScores):
        return _label_set_reliability(held_out)
    if unlabeled_scores is None:
        temperature = most_likely_temperature(held_out, *PRIORS[run.plan.method])
        return _reliability(held_out, estimate_accuracy(held_out), temperature, temperature)
    probabilities = softmax(unlabeled_scores.astype(np.float64), axis=-1)
    estimate = estimate_accuracy(held_out, probabilities.mean(axis=0)).lowered(lost)
    target = target_confidence(estimate, float(probabilities.max(axis=-1).mean()))
    temperature = match_confidence(unlabeled_scores, target)
    reliability = _reliability(held_out, estimate, temperature, match_confidence(held_out.scores, target))
    calibrated = softmax(unlabeled_scores.astype(np.float64) / temperature, axis=-1)
    return reliability.model_copy(update={"expected_thresholds": expected_thresholds(calibrated).tolist()})


def _reliability(
    held_out: HeldOutScores, estimate: AccuracyEstimate, temperature: float, held_out_temperature: float
) -> Reliability:
    """The record; the held-out scores are of other models than the result, with a temperature of their own."""
    summary = AccuracyMetrics(
        rows=len(held_out.truth),
        folds=held_out.folds,
        accuracy=estimate.accuracy,
        low=estimate.low,
        high=estimate.high,
        temperature=temperature,
    )
    return Reliability.of_probabilities(summary, held_out.probabilities(held_out_temperature), held_out.truth)


def _label_set_reliability(held_out: HeldOutLabelSets | None) -> Reliability | None:
    """The record with several labels a row, whose probabilities are not calibrated: thresholds are chosen for them."""
    if held_out is None:
        return None
    estimate = estimate_label_sets(held_out)
    return Reliability(
        rows=len(held_out.targets),
        folds=held_out.folds,
        accuracy=estimate.exact_match,
        low=estimate.exact_match_interval[0],
        high=estimate.exact_match_interval[1],
        temperature=1.0,
        micro_f1=estimate.micro_f1,
        micro_f1_low=estimate.micro_f1_interval[0],
        micro_f1_high=estimate.micro_f1_interval[1],
        confidence=held_out.confidence.tolist(),
        correct=held_out.correct.tolist(),
        true_probability=held_out.true_probability.tolist(),
    )


def write_reliability(run: Run, reliability: Reliability | None) -> None:
    """Write `reliability.json` into the results' folder, or remove that of earlier results."""
    if reliability is None:
        run.folder.remove(run.prefix + RELIABILITY_FILE)
        return
    run.folder.write_json(run.prefix + RELIABILITY_FILE, reliability.to_json())
    name, (value, low, high) = "accuracy" if reliability.micro_f1 is None else "micro-F1", reliability.main
    run.context.log(
        f"estimated {name}, by {reliability.folds} folds of {reliability.rows:,} labelled rows: "
        f"{100 * value:.1f} (95% interval {100 * low:.1f} to {100 * high:.1f})"
    )


def publish_reliability(classifier: Path, output_layer: str | None, reliability: Reliability) -> None:
    """Scale a published classifier's logits by its temperature, and put the record into its folder."""
    if output_layer is not None and reliability.temperature != 1.0:
        scale_logits(classifier, output_layer, 1 / reliability.temperature)
    write_classifier_reliability(classifier, reliability)


def write_classifier_reliability(classifier: Path, reliability: Reliability) -> None:
    """Put the record into a classifier's folder."""
    atomic_write_text(classifier / RELIABILITY_FILE, reliability.model_dump_json(indent=2) + "\n")
