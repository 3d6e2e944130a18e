"""Reads and checks everything that a run works on: from the parameters of `clozify.train` to a `Plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clozify.config.auto import Conditions, explain, fit_recipe
from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, TaskSource, load_task
from clozify.config.teachers import ModelEntry
from clozify.data.few_shot import few_shot, select_labeled
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.rows import Rows
from clozify.errors import DataError, TaskError, quoted
from clozify.models.cpu_precision import choose_precision
from clozify.models.loading import count_encoder_parameters
from clozify.models.lora import check_adapter
from clozify.pipeline.augmentation import read_paraphrases
from clozify.pipeline.generative import check_method, default_student, fit_generative, is_generative
from clozify.pipeline.semi_supervised import METHODS as SEMI_SUPERVISED
from clozify.runs.plan import Plan, empty_rows
from clozify.runs.results import ENSEMBLE_METHODS
from clozify.teachers.base import Teacher
from clozify.teachers.build import build_teachers

METHODS = ("pet", "ipet", "frozen", "supervised", *SEMI_SUPERVISED)
MULTILABEL_METHODS = ("pet", "ipet", "supervised")
ZERO_SHOT_METHODS = ("ipet", "frozen")  # which need no labelled rows
STATIC = "static"  # the student that is no encoder


@dataclass(frozen=True)
class TrainInputs:
    """What a run is asked to do; the fields are the parameters of `clozify.train`."""

    task: TaskSource
    labeled: RowSource | None = None
    unlabeled: RowSource | None = None
    test: RowSource | None = None
    dev: RowSource | None = None
    examples: int | None = None
    method: str = "pet"
    model: str | Path = "builtin"
    student: str | Path | None = None
    recipe: str | Path | Recipe = "auto"
    settings: Sequence[str] | Mapping[str, Any] = ()
    column_mapping: Mapping[str, str] | None = None
    augmented: RowSource | None = None
    allow_overlap: bool = False
    teachers: Sequence[Any] = ()  # besides those of the task
    budget: str | None = None

    def read(self, name: str, task: Task) -> Rows | None:
        """The rows of the input `labeled`, `unlabeled`, `test` or `dev`, as the task reads them; None without any."""
        source: RowSource | None = getattr(self, name)
        return None if source is None else load_rows(source, task, self.column_mapping, name=name)


def prepare(inputs: TrainInputs, device: str | None = None) -> Plan:
    """Read and check everything that a run works on; nothing is written."""
    task = load_task(inputs.task)
    recipe = load_recipe(inputs.recipe, inputs.settings)
    check_adapter(recipe.adapter)
    _check_method(inputs, recipe, task)
    _check_models(task, inputs.method)
    if recipe.backslashes_to_spaces:
        task = task.with_changes(line_breaks=[*task.line_breaks, "\\"])
    warnings: list[str] = []
    labeled = _read_labeled(inputs, task, recipe, warnings)
    test, dev, unlabeled = (inputs.read(name, task) for name in ("test", "dev", "unlabeled"))
    test = None if test is None else select_labeled(test, warnings, "test")
    dev = None if dev is None else select_labeled(dev, warnings, "development")
    named_rows = {"labelled": labeled, "development": dev, "test": test}
    for one, other in (("labelled", "test"), ("labelled", "development"), ("development", "test")):
        _warn_of_shared_rows(one, named_rows[one], other, named_rows[other], warnings)
    if unlabeled is not None and not (inputs.allow_overlap or recipe.overlap):
        unlabeled = _remove_overlap(unlabeled, [rows for rows in (labeled, test, dev) if rows is not None], warnings)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    conditions = Conditions(
        device=device,
        encoder_parameters=count_encoder_parameters(inputs.model) if recipe.adapt else 0,
        labels=len(task.labels),
        labeled=len(labeled),
        unlabeled=0 if unlabeled is None else len(unlabeled),
        method=inputs.method,
        multilabel=task.multilabel,
    )
    encoder = None if inputs.student == STATIC else inputs.student
    student = encoder or inputs.model
    generative = inputs.method in ENSEMBLE_METHODS and is_generative(inputs.model)
    if generative:
        check_method(inputs.method, inputs.model)
        student = encoder or default_student(inputs.model, warnings)
    recipe, choice = _fit_recipe(inputs, recipe, conditions, len(task.pairs), generative, warnings)
    static_rows = _static_rows(inputs, unlabeled, recipe, warnings)
    if inputs.method in ENSEMBLE_METHODS and unlabeled is not None:
        unlabeled = _sample(unlabeled, recipe, inputs.method, warnings)
    if inputs.method in ENSEMBLE_METHODS and not generative:
        recipe = choose_precision(recipe, inputs.model, device, warnings)
    warnings += _unused(inputs, task, recipe)
    for rows in (labeled, unlabeled, test, dev):
        warnings += [text for text in (rows.warnings if rows is not None else []) if text not in warnings]
    return Plan(
        task=task,
        recipe=recipe,
        method=inputs.method,
        model=str(inputs.model),
        student=str(student),
        labeled=labeled,
        unlabeled=unlabeled,
        static_rows=static_rows,
        test=test,
        dev=dev,
        paraphrases=_paraphrases(inputs, task),
        warnings=tuple(warnings),
        choice=choice,
    )


def _paraphrases(inputs: TrainInputs, task: Task) -> Rows | None:
    """The rows of `augmented`."""
    return None if inputs.augmented is None else read_paraphrases(inputs.augmented, task, inputs.column_mapping)


def _fit_recipe(
    inputs: TrainInputs, recipe: Recipe, conditions: Conditions, pairs: int, generative: bool, notes: list[str]
) -> tuple[Recipe, str]:
    """The recipe with what it leaves to the conditions and the kind of model, and a sentence about what it chose."""
    adapt = recipe.adapt
    if adapt:
        recipe = load_recipe(fit_recipe(recipe, conditions), inputs.settings)
    if generative:
        recipe = fit_generative(recipe, inputs.model, notes)
    if inputs.student == STATIC and inputs.method == "frozen":  # which has no classifier by default
        frozen = recipe.frozen.model_copy(update={"distillation": True})
        recipe = recipe.model_copy(update={"frozen": frozen})
    if not adapt or inputs.method in SEMI_SUPERVISED:
        return recipe, ""
    return recipe, explain(recipe, conditions, 0 if inputs.method == "supervised" else pairs)


def _unused(inputs: TrainInputs, task: Task, recipe: Recipe) -> list[str]:
    """A warning for everything that the method makes no use of."""
    method, warnings = inputs.method, []
    if (task.rules or task.teachers or inputs.teachers) and method not in ENSEMBLE_METHODS:
        warnings.append(f"The method '{method}' has no ensemble, so rules and other teachers do not vote.")
    if recipe.adapter.method != "none" and method not in ("pet", "ipet"):
        warnings.append(f"The method '{method}' has no members to train, so the adapter is not used.")
    if inputs.dev is not None and method == "frozen":
        warnings.append("The method 'frozen' has no training that could be stopped early: development rows are unused.")
    return warnings


def other_teachers(inputs: TrainInputs, plan: Plan) -> tuple[Teacher, ...]:
    """The teachers of a run besides its patterns; methods without an ensemble have none."""
    if plan.method not in ENSEMBLE_METHODS:
        return ()
    return build_teachers(plan.task, inputs.teachers, inputs.budget)


def _check_method(inputs: TrainInputs, recipe: Recipe, task: Task) -> None:
    """Raises `DataError` where the method does not exist, or lacks data that it needs."""
    method = inputs.method
    if method not in METHODS:
        raise DataError(f"There is no method '{method}'; there is {quoted(METHODS)}.")
    if inputs.student == STATIC and (method not in ENSEMBLE_METHODS or inputs.unlabeled is None):
        raise DataError(
            "The student 'static' learns what a classifier that was distilled from an ensemble answers on unlabelled "
            "rows; give some (--unlabeled), with the method pet, ipet or frozen."
        )
    if task.multilabel:
        _check_multilabel(inputs)
    if inputs.labeled is None and method not in ZERO_SHOT_METHODS:
        raise DataError(f"The method '{method}' needs labelled rows (--labeled); without any, there is ipet.")
    if inputs.unlabeled is None and (method in ("ipet", *SEMI_SUPERVISED) or inputs.labeled is None):
        raise DataError(f"The method '{method}' needs unlabelled rows (--unlabeled).")
    if method not in SEMI_SUPERVISED:
        if inputs.augmented is not None:
            raise DataError(f"Paraphrases (--augmented) are for the methods {quoted(SEMI_SUPERVISED)}, not '{method}'.")
    elif getattr(recipe, method).steps_to_try and inputs.test is None:
        raise DataError(
            f"'{method}.steps_to_try' chooses on the test rows; give some (--test), or set max_steps alone."
        )


def _check_models(task: Task, method: str) -> None:
    """Raises `TaskError` where the task's further models cannot be members of the run."""
    if not (entries := [entry for entry in task.teachers if isinstance(entry, ModelEntry)]):
        return
    if method == "frozen":
        raise TaskError(
            f"The task's teacher '{entries[0].title}' is a language model to fine-tune, which the method 'frozen' does "
            "not; use pet or ipet, or remove it."
        )
    names = [entry.title for entry in entries]
    if twice := [name for name in names if names.count(name) > 1 or name == "patterns"]:
        raise TaskError(f"Two teachers are called '{twice[0]}'; give each a name of its own.")


def _check_multilabel(inputs: TrainInputs) -> None:
    """Raises `DataError` where the method has no meaning, or none yet, with several labels a row."""
    if inputs.method not in MULTILABEL_METHODS:
        raise DataError(
            f"The method '{inputs.method}' is for one label a row, and the task has multilabel = true; there is "
            f"{quoted(MULTILABEL_METHODS)}."
        )
    if inputs.labeled is None or inputs.examples == 0:
        raise DataError(
            "iPET without labelled rows would need thresholds to label rows with, which are chosen on labelled rows; "
            "give some (--labeled), or use clozify zero-shot."
        )


def _read_labeled(inputs: TrainInputs, task: Task, recipe: Recipe, warnings: list[str]) -> Rows:
    """T: the labelled rows, or the few of them that are asked for."""
    rows = inputs.read("labeled", task)
    if rows is None:
        return empty_rows(task)
    labeled = select_labeled(rows, warnings, "labelled")
    if inputs.examples is not None:
        labeled = few_shot(labeled, inputs.examples, recipe.seed if recipe.selection == "random" else None)
    if len(labeled) == 0 and inputs.method not in ZERO_SHOT_METHODS:
        raise DataError(
            f"The method '{inputs.method}' needs labelled rows, and 0 were asked for; without any, there is ipet."
        )
    if task.multilabel and len(labeled) and not labeled.label_matrix.any():
        raise DataError(f"No row of the labelled data '{labeled.source}' has any label, so nothing can be learned.")
    targets = labeled.targets
    counts = targets.sum(axis=0) if task.multilabel else np.bincount(targets, minlength=len(task.labels))
    missing = [label for label, count in zip(task.labels, counts, strict=True) if count == 0]
    if missing and len(labeled):
        warnings.append(f"No labelled row has the label {quoted(missing, 5)}, so little will be learned of it.")
    return labeled


def _warn_of_shared_rows(one: str, rows: Rows | None, other: str, others: Rows | None, warnings: list[str]) -> None:
    """Warn of rows that are in two sets, `one` and `other`; both stay whole, so that results can be compared."""
    if rows is None or others is None:
        return
    shared = np.flatnonzero(np.isin(rows.fingerprints(), others.fingerprints()))
    if len(shared):
        first = int(rows.row_numbers()[shared[0]]) + 1
        warnings.append(
            f"{len(shared):,} of {len(rows):,} {one} rows are {other} rows too (the first is row {first:,} of "
            f"'{rows.source}'), so results on {other} rows are too good; remove them from one of the two."
        )


def _remove_overlap(unlabeled: Rows, others: Sequence[Rows], warnings: list[str]) -> Rows:
    """D without the rows of T, the test set and the development set."""
    remaining = unlabeled.excluding(*others)
    if len(remaining) < len(unlabeled):
        warnings.append(
            f"{len(unlabeled) - len(remaining):,} unlabelled rows that are labelled, development or test rows too were "
            "left out."
        )
    if len(remaining) == 0:
        raise DataError("No unlabelled row is left once the labelled and the test rows are taken out.")
    return remaining


def _sample(unlabeled: Rows, recipe: Recipe, method: str, warnings: list[str]) -> Rows:
    """The rows with the lowest hashes, as many as the recipe asks for: the choice changes little with the rows."""
    setting = "frozen.unlabeled_rows" if method == "frozen" else "unlabeled_rows"
    count = recipe.frozen.unlabeled_rows if method == "frozen" else recipe.unlabeled_rows
    if count is None or len(unlabeled) <= count:
        return unlabeled
    warnings.append(f"{count:,} of {len(unlabeled):,} unlabelled rows are used; {setting} sets the number.")
    return _lowest_hashes(unlabeled, count)


def _static_rows(inputs: TrainInputs, unlabeled: Rows | None, recipe: Recipe, warnings: list[str]) -> Rows | None:
    """The unlabelled rows that the classifier labels for a static one; None where none is asked for."""
    if inputs.student != STATIC or unlabeled is None:
        return None
    if not (recipe.frozen.distillation if inputs.method == "frozen" else recipe.distillation):
        raise DataError(
            "The student 'static' learns what the distilled classifier answers, and this run would have none: give at "
            "least two unlabelled rows a label, and do not set distillation=false."
        )
    count = recipe.static.unlabeled_rows
    if count < len(unlabeled):
        warnings.append(
            f"{count:,} of {len(unlabeled):,} unlabelled rows are labelled for the static classifier; "
            "static.unlabeled_rows sets the number."
        )
    return _lowest_hashes(unlabeled, count)


def _lowest_hashes(rows: Rows, count: int) -> Rows:
    """At most `count` rows, in their order."""
    if len(rows) <= count:
        return rows
    return rows.select(np.sort(np.argsort(rows.fingerprints(), kind="stable")[:count]))
