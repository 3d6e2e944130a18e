"""Trains a classifier by PET, iPET or a baseline: the steps of section 3 of the paper, in their order.

Every job's results are kept in the run's folder under a key of all that went into it; a job whose results are there is
not run again, so a run that was stopped resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clozify.data.decision import Decision
from clozify.executors.devices import parse_at_once
from clozify.executors.select import choose_executor, single_worker_executor
from clozify.methods.combination import COMBINED_TEMPERATURE
from clozify.methods.label_set_reliability import HeldOutLabelSets
from clozify.models.model_key import start_hashing
from clozify.pipeline.auto import announce
from clozify.pipeline.concurrency import fit_models_per_device
from clozify.pipeline.cross_fitting import (
    HeldOut,
    calibrate,
    calibrate_ensemble,
    cross_fit,
    join_teachers,
    write_reliability,
)
from clozify.pipeline.explain_errors import explain_errors
from clozify.pipeline.final_classifier import (
    Distillation,
    SupervisedTraining,
    choose_supervised_thresholds,
    cross_fit_supervised,
    train_classifier,
)
from clozify.pipeline.frozen import fit_members
from clozify.pipeline.generations import train_generations
from clozify.pipeline.members import (
    choose_member_thresholds,
    evaluate_ensemble,
    evaluate_members,
    first_generation,
    train_members,
)
from clozify.pipeline.other_models import other_models, train_other_models
from clozify.pipeline.prepare import TrainInputs, other_teachers, prepare
from clozify.pipeline.run import Run
from clozify.pipeline.run_files import EnsembleInputs, describe_run, log_file, write_ensemble
from clozify.pipeline.semi_supervised import train_semi_supervised
from clozify.pipeline.soft_labels import write_soft_labels
from clozify.pipeline.static_student import train_static
from clozify.pipeline.teachers import OtherTeachers, pattern_votes, teacher_metrics, write_combined
from clozify.pipeline.token_cache import remove_caches
from clozify.pipeline.trivial_baselines import trivial_baselines
from clozify.pipeline.untrained import evaluate_untrained, pair_weights
from clozify.report.write import write_run_report
from clozify.runs.context import RunContext, no_log
from clozify.runs.keys import hash_key
from clozify.runs.metrics import AccuracyMetrics, Metrics, UntrainedMetrics
from clozify.runs.plan import Plan
from clozify.runs.reliability import Reliability
from clozify.runs.results import (
    ENSEMBLE_METHODS,
    check_replaceable,
    key_labels,
    label_changes,
    results_prefix,
    stale_exports,
)
from clozify.runs.stored_folder import open_run
from clozify.runs.tracking import check_trackers
from clozify.runs.worker import Worker
from clozify.teachers.base import readiness_notes
from clozify.utils.threads import threads_within_quota


def train(
    inputs: TrainInputs,
    output: str | Path,
    devices: str | int = "auto",
    at_once: str | int | None = None,
    executor: str = "local",
    address: str | None = None,
    trackers: Sequence[str] = (),
    replace_results: bool = False,
    log: Callable[[str], None] = no_log,
) -> tuple[Metrics, str]:
    """Train a classifier; returns what was measured, and the folder or address of the method's results.

    The parameters are those of `clozify.train`.
    """
    check_trackers(trackers)
    models_per_device = parse_at_once(at_once)
    device, opened_executor = choose_executor(executor, address, devices, models_per_device)
    start_hashing(str(inputs.model))
    plan = prepare(inputs, device)
    teachers = other_teachers(inputs, plan)
    with open_run(output) as folder, log_file(folder, log) as log_both, threads_within_quota(log_both):
        prefix, description = results_prefix(folder.path, plan.method), describe_run(plan, teachers)
        if not replace_results:
            check_replaceable(folder.path / prefix, folder.address, description)
        plan, description = _keep_names(plan, description, folder.path / prefix, log_both)
        for note in readiness_notes(teachers):
            log_both(f"note: {note}")
        worker = Worker(plan, folder, RunContext(device, log_both, trackers, folder.path))
        if models_per_device is None:
            with single_worker_executor(executor, address, devices) as trial:
                models_per_device, reason = fit_models_per_device(worker, trial)
            log_both(reason)
            _, opened_executor = choose_executor(executor, address, devices, models_per_device)
        with opened_executor as started_executor:
            metrics = _train(Run(worker, started_executor, prefix, teachers), description)
        return metrics, f"{folder.address}/{prefix}".rstrip("/")


def _keep_names(
    plan: Plan, description: dict[str, Any], results: Path, log: Callable[[str], None]
) -> tuple[Plan, dict[str, Any]]:
    """The plan and the content of run.json, so that models of labels that were only renamed are found again."""
    if (changes := label_changes(results, description)) is not None:
        log(f"labels since the last run in this folder ({changes}): {changes.consequence(plan.method)}")
    names = key_labels(results, description)
    if names is None:
        return plan, description
    return replace(plan, key_labels=tuple(names)), {**description, "key_labels": names}


def _train(run: Run, description: dict[str, Any]) -> Metrics:
    """All steps of a run; `description` is the content of run.json."""
    plan, folder, context = run.plan, run.folder, run.context
    started = time.monotonic()
    run.executor.start(run.worker, _expected_jobs(plan, run.results))
    folder.write_json(f"{run.prefix}run.json", description)
    context.tracking.start(folder.path.name, {"task": plan.task.name, "model": plan.model, **plan.recipe.model_dump()})
    for warning in plan.warnings:
        context.log(f"note: {warning}")
    announce(run)
    if plan.method in ENSEMBLE_METHODS:
        results = _train_pet(run)
    elif plan.method == "supervised":
        decision, label_sets = choose_supervised_thresholds(run)
        held_out = label_sets or cross_fit_supervised(run)
        classifier, reliability = train_classifier(run, SupervisedTraining(), decision, held_out)
        results = {"supervised": classifier, "thresholds": decision.by_label(), "estimate": _keep(run, reliability)}
    else:
        results = {plan.method: train_semi_supervised(run)}
    for name in stale_exports(run.results):
        context.warn(f"The folder '{run.results / name}' was exported from an earlier classifier; export again.")
    metrics = Metrics(
        method=plan.method,
        task=plan.task.name,
        model=plan.model,
        recipe=plan.recipe.name,
        rows={name: data["rows"] for name, data in description["data"].items()},
        warnings=[*plan.warnings, *context.warnings],
        run=hash_key(**description),
        trivial=trivial_baselines(plan),
        **results,
    )
    folder.write_json(f"{run.prefix}metrics.json", metrics.to_json())
    explain_errors(run)
    remove_caches(folder)
    context.tracking.finish(metrics.to_json())
    rows = {name: getattr(plan, name) for name in ("labeled", "unlabeled", "test", "dev")}
    write_run_report(run.results, rows, context.log)
    if run.prefix:
        context.log(f"clozify report {folder.address} adds these results to the report of the run's first method")
    context.log(f"done in {time.monotonic() - started:,.0f} s; the run is in {folder.address}")
    return metrics


def _train_pet(run: Run) -> dict[str, Any]:
    """PET, iPET (section 3) and the frozen mode; returns the fields of `Metrics` that they fill."""
    plan = run.plan
    for warning in run.worker.prompts.warnings:
        run.context.warn(warning)
    keep_weights = not plan.is_distilled
    results: dict[str, Any] = {}

    # the accuracy of every pair on T before training is its weight w(p) in the ensemble (section 3.3)
    key: str | None = None
    if plan.method == "frozen":
        members, untrained = fit_members(run)
    else:
        untrained, key = evaluate_untrained(run)
    weights_of_pairs = pair_weights(run, untrained)
    results["untrained"] = UntrainedMetrics(accuracy_on_labeled=untrained.accuracy_on_labeled, job=key)
    results["unsupervised"] = untrained.test

    # with several labels a row, each is predicted from its own threshold on (not in the paper)
    decision, label_sets = choose_member_thresholds(run, weights_of_pairs, untrained.zero_points)
    others = OtherTeachers(run)  # rules, classifiers and others may vote beside the patterns (not in the paper)

    # step 1: fine-tune a model for every pair and seed; iPET does so for several generations (section 3.4)
    if plan.method == "ipet":
        members, results["generations"] = train_generations(
            run, weights_of_pairs, keep_weights, decision, untrained.zero_points, others
        )
    elif plan.method == "pet":
        members = train_members(run, first_generation(plan, weights_of_pairs, keep_weights, untrained.zero_points))
    weights = [weights_of_pairs[member.pair] for member in members]
    if plan.test is not None:
        results["members"] = evaluate_members(plan, members, decision)

    # how good is it, without a test set? models that are trained without a part of T score it (not in the paper)
    held_out: HeldOut | None = label_sets or cross_fit(run, members, weights_of_pairs)

    ensemble = EnsembleInputs(members, weights)
    if others or other_models(plan.task):
        patterns = [pattern_votes(run, members, weights, untrained.accuracy_on_labeled)]
        combination = others.combine(patterns + train_other_models(run, keep_weights, decision, others))
        results["teachers"], held_out = teacher_metrics(run, combination), join_teachers(held_out, combination)
        ensemble = EnsembleInputs(*combination.members(), combination.records(), write_combined(run, combination))
    reliability = calibrate_ensemble(run, held_out, ensemble)
    write_ensemble(run, ensemble, calibrated := calibrate(decision, reliability))
    if plan.test is not None:
        results["ensemble"] = evaluate_ensemble(plan, *ensemble.scored, calibrated)

    # step 2: the ensemble annotates the unlabelled rows with soft labels
    if plan.unlabeled is not None:
        temperature = COMBINED_TEMPERATURE if "teachers" in results else plan.recipe.distill.temperature
        soft_labels = write_soft_labels(run, *ensemble.scored, decision, temperature)

    # step 3: train the final classifier on the soft labels
    if plan.is_distilled:
        decision = decision.at_temperature(temperature)  # that of the soft labels
        held_out = held_out.at_temperature(temperature) if isinstance(held_out, HeldOutLabelSets) else held_out
        training = Distillation(soft_labels, plan.recipe.distill.confident_rows if "teachers" in results else None)
        reliability = _train_classifiers(run, training, decision, held_out, results)
    _remove_replaced(run)
    return results | {"thresholds": decision.by_label(), "estimate": _keep(run, reliability)}


def _train_classifiers(
    run: Run, training: Distillation, decision: Decision, held_out: HeldOut | None, results: dict[str, Any]
) -> Reliability | None:
    """Train the final classifier and, where it is asked for, a static one; adds their metrics to `results`."""
    results["classifier"], reliability = train_classifier(run, training, decision, held_out)
    if run.plan.static_rows is not None:  # a small, fast student of the classifier (not in the paper)
        results["static"], reliability = train_static(run, results["classifier"], decision, held_out)
    return reliability


def _remove_replaced(run: Run) -> None:
    """Remove what earlier results in the folder had, and these do not."""
    if run.plan.unlabeled is None:
        run.folder.remove(f"{run.prefix}labels.parquet")
    if not run.plan.is_distilled:
        run.folder.remove(f"{run.prefix}classifier")


def _keep(run: Run, reliability: Reliability | None) -> AccuracyMetrics | None:
    """Write `reliability.json`; returns what metrics.json holds of it."""
    write_reliability(run, reliability)
    return None if reliability is None else reliability.summary


def _expected_jobs(plan: Plan, results: Path) -> int:
    """How many jobs will be submitted first; 0 where the method has finished, and there may be none."""
    if (results / "metrics.json").exists():
        return 0
    if plan.method == "frozen":
        return len(plan.task.patterns)
    return plan.recipe.repetitions * (plan.member_pairs if plan.method in ("pet", "ipet") else 1)
