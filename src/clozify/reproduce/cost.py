"""Estimates the cost of experiments: members, steps, rows to score, disk and time; shared jobs count once.

Time comes from a few steps and rows that are run on this machine, once for each task; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from clozify.config.recipe import Recipe
from clozify.config.sections import Training
from clozify.errors import DataError
from clozify.methods.ipet import count_generations
from clozify.reproduce.datasets import TaskData
from clozify.reproduce.experiments import Experiment, ExperimentRunner
from clozify.runs.context import RunContext
from clozify.runs.plan import Plan

TIMING_ROWS = 256


@dataclass
class TableCost:
    """The cost of the experiments of a table; the names are those of `--plan --json`."""

    cells: int
    done: int  # cells that have a result
    members: int = 0
    member_steps: int = 0
    rows_to_score: int = 0
    classifiers: int = 0
    classifier_steps: int = 0
    pretraining_steps: int = 0
    seconds: float = 0
    disk_mib: float = 0
    notes: list[str] = field(default_factory=list)


def estimate_cost(runner: ExperimentRunner, experiments: Sequence[Experiment]) -> TableCost:
    """The cost of the experiments that have no result yet."""
    remaining = [experiment for experiment in experiments if runner.find(experiment) is None]
    estimate = _Estimate(runner, TableCost(len(experiments), len(experiments) - len(remaining)))
    for experiment in remaining:
        try:
            data = runner.check(experiment)
        except DataError as error:
            estimate.cost.notes.append(f"Not included: {' '.join(error.problems)}")
            continue
        estimate.add(experiment, data)
    cost = estimate.cost
    return replace(cost, seconds=round(cost.seconds), disk_mib=round(cost.disk_mib, 1), notes=_unique(cost.notes))


def _unique(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


class _Estimate:
    """Adds up the cost of jobs; a job that several experiments share counts once."""

    def __init__(self, runner: ExperimentRunner, cost: TableCost) -> None:
        self.runner, self.cost = runner, cost
        self._jobs: set[Any] = set()
        self._timings: dict[Any, Any] = {}

    def add(self, experiment: Experiment, data: TaskData) -> None:
        """Add an experiment, with notes on what is not included."""
        recipe = self.runner.experiment_recipe(experiment)
        labeled, unlabeled = data.select(experiment.examples, recipe, experiment.unlabeled_fraction)
        labeled_size = 0 if labeled is None else len(labeled)
        if experiment.pretrained and self._is_new("pretraining", experiment.task):
            self.cost.pretraining_steps += recipe.pretrain.max_steps
            self.cost.notes.append("The time of in-domain pretraining is not included.")
        if experiment.searched_words or experiment.method == "words":
            self.cost.notes.append("The time of the verbalizer search is not included.")
        if experiment.method == "unsupervised" and self._is_new("untrained", experiment.task):
            self._add_members(experiment, data, len(data.task.pairs), 0, len(data.test))
        elif experiment.method in ("pet", "ipet"):
            self._add_pet(experiment, data, labeled_size, len(unlabeled))
        elif experiment.method == "supervised" and self._is_new("supervised", experiment):
            self._add_classifiers(experiment, data, recipe.supervised.steps(labeled_size))
        elif experiment.method in ("uda", "mixtext") and self._is_new(experiment.method, experiment):
            settings = getattr(recipe, experiment.method)
            for steps in settings.steps_to_try or [settings.steps(labeled_size)]:
                self._add_classifiers(experiment, data, steps)
            self.cost.notes.append(
                "A step of UDA and MixText is counted as a step of the final classifier, which is shorter; text "
                "augmentation is not included."
            )

    def _add_pet(self, experiment: Experiment, data: TaskData, labeled_size: int, unlabeled_size: int) -> None:
        recipe = self.runner.experiment_recipe(experiment)
        pairs = len(data.task.patterns if experiment.searched_words else data.task.pairs)
        members, rows = pairs * recipe.repetitions, unlabeled_size + len(data.test)
        section: Training = recipe.finetune if recipe.language_modeling else recipe.finetune_without_lm
        members_key = replace(experiment, method="", settings=()), section.model_dump_json(), recipe.language_modeling
        if labeled_size and self._is_new("generation 0", *members_key):
            self._add_members(experiment, data, members, section.steps(labeled_size), rows)
        elif not labeled_size and self._is_new("untrained on D", *members_key):
            self._add_members(experiment, data, pairs, 0, rows)
        if experiment.method == "ipet":
            ipet = recipe.ipet
            last = count_generations(labeled_size, ipet)
            for index in [1, last] if ipet.skip_generations and last > 1 else range(1, last + 1):
                skipped = ipet.skip_generations and index > 1
                size = labeled_size * ipet.d**index if labeled_size else ipet.zero_shot_examples * ipet.d ** (index - 1)
                settings = ipet.model_dump_json(exclude={"skip_generations"})
                if self._is_new("generation", index, skipped, settings, *members_key):
                    self._add_members(experiment, data, members, section.steps(size), rows)
        if recipe.distillation and self._is_new("classifier", experiment):
            self._add_classifiers(experiment, data, recipe.distill.steps(unlabeled_size))

    def _is_new(self, *job: Any) -> bool:
        """Whether this job was not counted yet; it counts as counted from now on."""
        new = job not in self._jobs
        self._jobs.add(job)
        return new

    def _add_members(self, experiment: Experiment, data: TaskData, count: int, steps: int, rows: int) -> None:
        step_seconds, row_seconds, _ = self._timing(experiment, data, "member")
        self.cost.members += count if steps else 0
        self.cost.member_steps += count * steps
        self.cost.rows_to_score += count * rows
        self.cost.seconds += count * (steps * step_seconds + rows * row_seconds)
        self.cost.disk_mib += _float32_mib(count * rows * len(data.task.labels))

    def _add_classifiers(self, experiment: Experiment, data: TaskData, steps: int) -> None:
        """Add the repetitions of a classifier; the weights of one are kept."""
        count = self.runner.experiment_recipe(experiment).repetitions
        step_seconds, parameters = self._timing(experiment, data, "classifier")
        self.cost.classifiers += count
        self.cost.classifier_steps += count * steps
        self.cost.seconds += count * steps * step_seconds
        self.cost.disk_mib += _float32_mib(parameters + count * len(data.test) * len(data.task.labels))

    def _timing(self, experiment: Experiment, data: TaskData, job: str) -> Any:
        """Measured seconds of a step (and of scoring a row), and the number of parameters."""
        from clozify.pipeline.cost import time_classifier, time_member

        recipe = self.runner.experiment_recipe(experiment)
        key = (experiment.task, job, recipe.language_modeling if job == "member" else None)
        if key not in self._timings:
            plan = self._timing_plan(experiment, data, recipe)
            assert plan.unlabeled is not None
            context = RunContext("cuda" if torch.cuda.is_available() else "cpu")
            self._timings[key] = (
                time_member(plan, context) if job == "member" else time_classifier(plan, context, plan.unlabeled)
            )
        return self._timings[key]

    def _timing_plan(self, experiment: Experiment, data: TaskData, recipe: Recipe) -> Plan:
        from clozify.pipeline.prepare import TrainInputs, prepare

        labeled, unlabeled = data.select(experiment.examples, recipe, experiment.unlabeled_fraction)
        if labeled is not None:
            labeled = labeled.select(np.arange(min(TIMING_ROWS, len(labeled))))
        unlabeled = unlabeled.select(np.arange(min(TIMING_ROWS, len(unlabeled))))
        return prepare(
            TrainInputs(
                data.task,
                labeled,
                unlabeled,
                model=self.runner.model,
                recipe=recipe,
                method="ipet",
                allow_overlap=True,
            )
        )


def _float32_mib(count: float) -> float:
    return 4 * count / 2**20
