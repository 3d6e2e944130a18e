"""Training, from files to a run folder: the room behind `clozify train` and `clozify.train`.

In: a task, labelled rows, a pile of unlabelled ones and perhaps test rows. Out: a run folder with every member's
scores, the pile's soft labels, the classifier and the numbers (sections 3.1 to 3.3, 4.2). Each job is done once: what
the folder holds already is taken from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from clozify import __version__
from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, load_task
from clozify.data.rows import Rows, few_shot, read_rows
from clozify.errors import DataError, quoted
from clozify.executors.accelerate_launch import is_worker_rank, run_worker_rank
from clozify.executors.devices import parse_at_once
from clozify.executors.select import choose_executor, single_worker_executor
from clozify.methods.ensemble import combine_scores
from clozify.metrics import detailed_metrics
from clozify.models.cpu_precision import choose_precision
from clozify.models.lora import check_adapter
from clozify.pipeline.augmentation import read_paraphrases
from clozify.pipeline.concurrency import fit_models_per_device
from clozify.pipeline.final_classifier import train_classifiers
from clozify.pipeline.generations import train_generations
from clozify.pipeline.members import first_jobs, member_metrics, train_members, untrained
from clozify.pipeline.run import Run
from clozify.pipeline.semi_supervised import compare
from clozify.pipeline.semi_supervised_training import METHODS as SEMI_SUPERVISED
from clozify.pipeline.soft_labels import write_soft_labels
from clozify.pipeline.token_cache import drop_caches
from clozify.report.write import write_run_report
from clozify.runs.context import RunContext, no_log
from clozify.runs.keys import data_key, hash_key
from clozify.runs.plan import Plan, no_rows, with_labels
from clozify.runs.stored_folder import open_run
from clozify.runs.tracking import check_trackers
from clozify.runs.worker import Worker

METHODS = ("pet", "ipet", "supervised", *SEMI_SUPERVISED)


def prepare(
    task: str | Path | Task,
    labeled: str | Path | Rows | None = None,
    unlabeled: str | Path | Rows | None = None,
    test: str | Path | Rows | None = None,
    dev: str | Path | Rows | None = None,
    examples: int | None = None,
    model: str | Path = "builtin",
    student: str | Path | None = None,
    method: str = "pet",
    recipe: str | Path | Recipe = "paper",
    settings: Sequence[str] = (),
    column_mapping: Mapping[str, str] | None = None,
    allow_overlap: bool = False,
    device: str | None = None,
    augmented: str | Path | Rows | None = None,
) -> Plan:
    """Read and check everything that a run works on; nothing is written."""
    loaded = load_task(task)
    how = load_recipe(recipe, settings)
    if method not in METHODS:
        raise DataError(f"There is no method '{method}'; there is {quoted(METHODS)}.")

    check_adapter(how.adapter)
    if how.backslashes_to_spaces:
        loaded = loaded.with_changes(line_breaks=[*loaded.line_breaks, "\\"])

    def rows_of(source: str | Path | Rows) -> Rows:
        return source.with_task(loaded) if isinstance(source, Rows) else read_rows(source, loaded, column_mapping)

    warnings: list[str] = []
    if labeled is None and method != "ipet":
        raise DataError(f"The method '{method}' needs labelled rows (--labeled); without any, there is ipet.")
    if unlabeled is None and method == "ipet":
        raise DataError("The method 'ipet' needs a pile of unlabelled rows (--unlabeled).")
    _check_semi_supervised(method, how, unlabeled is not None, test is not None, augmented is not None)
    given = no_rows(loaded) if labeled is None else with_labels(rows_of(labeled), warnings, "labelled")
    if examples is not None and labeled is not None:
        given = few_shot(given, examples, how.seed if how.selection == "random" else None)
    if len(given) == 0 and method != "ipet":
        raise DataError(f"The method '{method}' needs labelled rows, and 0 were asked for; without any, there is ipet.")
    without = [
        loaded.labels[place] for place in np.flatnonzero(np.bincount(given.labels, minlength=len(loaded.labels)) == 0)
    ]
    if without and len(given):
        warnings.append(f"No labelled row has the label {quoted(without, 5)}, so little will be learned of it.")
    tests = None if test is None else with_labels(rows_of(test), warnings, "test")
    devs = None if dev is None else with_labels(rows_of(dev), warnings, "development")
    pile = None if unlabeled is None else rows_of(unlabeled)
    if pile is not None and not (allow_overlap or how.overlap):
        before = len(pile)
        pile = pile.excluding(*[rows for rows in (given, tests, devs) if rows is not None])
        if len(pile) < before:
            warnings.append(
                f"{before - len(pile):,} unlabelled rows that are labelled, development or test rows too were left out."
            )
        if len(pile) == 0:
            raise DataError("No unlabelled row is left once the labelled and the test rows are taken out.")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if method in ("pet", "ipet"):
        how = choose_precision(how, model, where, warnings)
    elif how.adapter.method != "none":
        warnings.append(f"The method '{method}' has no members, so the adapter is not used.")
    for rows in (given, pile, tests, devs):
        warnings += [said for said in (rows.warnings if rows is not None else []) if said not in warnings]
    return Plan(
        loaded,
        how,
        method,
        str(model),
        str(student or model),
        given,
        pile,
        tests,
        devs,
        None if augmented is None else read_paraphrases(augmented, loaded, column_mapping),
        tuple(warnings),
    )


def _check_semi_supervised(method: str, recipe: Recipe, pile: bool, test: bool, augmented: bool) -> None:
    """What UDA and MixText need, and nobody else."""
    if method not in SEMI_SUPERVISED:
        if augmented:
            raise DataError(f"Paraphrases (--augmented) are for the methods {quoted(SEMI_SUPERVISED)}, not '{method}'.")
        return
    if not pile:
        raise DataError(f"The method '{method}' needs a pile of unlabelled rows (--unlabeled).")
    if getattr(recipe, method).steps_to_try and not test:
        raise DataError(
            f"'{method}.steps_to_try' chooses on the test rows; give some (--test), or set max_steps alone."
        )


def train(
    task: str | Path | Task,
    labeled: str | Path | Rows | None,
    output: str | Path,
    devices: str | int = "auto",
    at_once: str | int | None = None,
    executor: str = "local",
    address: str | None = None,
    trackers: Sequence[str] = (),
    log: Callable[[str], None] = no_log,
    **more: Any,
) -> dict[str, Any]:
    """Train a classifier and return the run's metrics, as `metrics.json` has them.

    - `task`: a task file, a shipped task's name, or a `Task`.
    - `labeled`: the labelled rows, T; a file, or rows that were read. `None` only for the method `ipet`.
    - `output`: the run's folder, which resumes, or an address, `s3://bucket/run`.
    - `devices`: `auto` (every GPU, else the CPU), `cpu`, or a number of GPUs; `at_once`: how many models are trained
      at a time on each of them, or `auto`: as many as fit, by a trial.
    - `executor`: `local`, or `ray` for a cluster, whose `address` may be given.

    Of several processes that Accelerate's launcher has started, the first returns the metrics and the others nothing.

    `more` is by name:

    - `unlabeled`: the pile, D. Without it the result is the ensemble itself.
    - `test`: labelled rows to measure on; `dev`: labelled rows to stop training by.
    - `examples`: take so many of the labelled rows, the first of each label.
    - `method`: `pet` (the default), `ipet`, `supervised`, `uda` or `mixtext`.
    - `model`: a folder, a hub name or `builtin`, the default; `student`: another model for the final classifier.
    - `recipe`: `paper` (the default), `quick`, `original-code`, a file or a `Recipe`; `settings`: changes to it, as in
      `["distill.max_steps=500"]`.
    - `column_mapping`: what the data calls a field, as in `{"text": "body"}`.
    - `augmented`: paraphrases of the pile, for UDA and MixText.
    - `allow_overlap`: keep labelled and test rows in the pile.
    - `trackers`: names that Accelerate knows; `log`: called with every message.
    """
    if is_worker_rank():
        run_worker_rank(devices)
        return {}
    number = parse_at_once(at_once)
    check_trackers(trackers)
    device, where = choose_executor(executor, address, devices, number or 1)
    plan = prepare(task, labeled, device=device, **more)
    with open_run(output) as folder, (folder.path / "log.txt").open("a", encoding="utf-8") as log_file:

        def log_to_file(line: str) -> None:
            log_file.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")
            log_file.flush()
            log(line)

        worker = Worker(plan, folder, RunContext(device, log_to_file, trackers, folder.path))
        if number is None:
            with single_worker_executor(executor, address, devices) as trial:
                number, why = fit_models_per_device(worker, trial)
            log_to_file(why)
            _, where = choose_executor(executor, address, devices, number)
        with where as running:
            return _run(Run(worker, running))


def _run(run: Run) -> dict[str, Any]:
    plan, folder, context = run.plan, run.folder, run.context
    began = time.monotonic()
    pairs = len(plan.task.pairs) if plan.method in ("pet", "ipet") else 1
    finished = (folder.path / "metrics.json").exists()  # then there may be little to do
    run.executor.start(run.worker, 0 if finished else pairs * plan.recipe.repetitions)
    data = data_key(plan)
    described = {
        "clozify": __version__,
        "torch": torch.__version__,
        "method": plan.method,
        "model": plan.model,
        "student": plan.student,
        "task": plan.task.model_dump(),
        "recipe": plan.recipe.model_dump(),
        "data": {
            name: {**known, "source": str(getattr(plan, name).source), "columns": getattr(plan, name).renamed_columns}
            for name, known in data.items()
        },
    }
    folder.write_json("run.json", described)
    context.tracking.start(folder.path.name, {"task": plan.task.name, "model": plan.model, **plan.recipe.model_dump()})
    for warning in plan.warnings:
        context.log(f"note: {warning}")
    if plan.method in ("supervised", *SEMI_SUPERVISED):
        work = compare(run) if plan.method != "supervised" else train_classifiers(run, None)
        metrics: dict[str, Any] = {plan.method: work}
        folder.remove("ensemble.json", "labels.parquet")  # what an earlier run left here is not this run's
    else:
        metrics = _pet(run)
    metrics |= {"method": plan.method, "task": plan.task.name, "model": plan.model, "recipe": plan.recipe.name}
    metrics |= {
        "rows": {name: known["rows"] for name, known in data.items()},
        "warnings": [*plan.warnings, *context.warnings],
    }
    metrics["run"] = hash_key(**described)  # what these numbers are of
    folder.write_json("metrics.json", metrics)
    drop_caches(folder)
    context.tracking.finish(metrics)
    rows = {name: getattr(plan, name) for name in ("labeled", "unlabeled", "test", "dev")}
    write_run_report(folder.path, rows, context.log)
    context.log(f"done in {time.monotonic() - began:,.0f} s; the run is in {folder.address}")
    return metrics


def _pet(run: Run) -> dict[str, Any]:
    """Sections 3.1 to 3.4: members of one generation or several, their weights, soft labels, the classifier."""
    plan, folder = run.plan, run.folder
    for warning in run.worker.prompts.warnings:
        run.context.warn(warning)
    before = untrained(run)
    of_pairs = before.get("accuracy_on_labeled", [1.0] * len(plan.task.pairs))
    if plan.recipe.weighting == "uniform":
        of_pairs = [1.0] * len(of_pairs)
    elif not any(of_pairs):
        run.context.warn("Every pair's accuracy on the labelled rows is 0 before training: all members weigh the same.")
    metrics: dict[str, Any] = {"untrained": {name: before[name] for name in before if name not in ("test", "seconds")}}
    keep = plan.unlabeled is None or not plan.recipe.distillation
    if plan.method == "ipet":
        members, metrics["generations"] = train_generations(run, of_pairs, keep)
    else:
        members = train_members(run, first_jobs(plan, keep=keep))
    weights = [of_pairs[member["pair"]] for member in members]
    if plan.test is not None:
        truth = plan.test.labels
        metrics["unsupervised"] = before["test"]
        metrics["members"] = member_metrics(plan, members, truth)
        scores = combine_scores([np.load(member["folder"] / "test.npy") for member in members], weights)
        metrics["ensemble"] = detailed_metrics(truth, softmax(scores, axis=-1), plan.task.labels).model_dump()
    folder.write_json(
        "ensemble.json",
        {
            "task": plan.task.model_dump(),
            "recipe": plan.recipe.model_dump(),
            "weights": [
                {"member": member["folder"].name, "pair": plan.task.pairs[member["pair"]].name, "seed": member["seed"],
                 "weight": weight}
                for member, weight in zip(members, weights, strict=True)
            ],
        },
    )  # fmt: skip
    if plan.unlabeled is not None:
        targets = write_soft_labels(run, members, weights)
    if plan.unlabeled is not None and plan.recipe.distillation:
        metrics["classifier"] = train_classifiers(run, targets)
    else:  # what an earlier run left here is not this run's result
        folder.remove("classifier", *(["labels.parquet"] if plan.unlabeled is None else []))
    return metrics
