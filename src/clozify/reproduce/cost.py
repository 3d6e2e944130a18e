"""What cells will cost before they are run: members, steps, rows to score, disk and time; what cells share counts once.

In: the cells that are asked for. Out: plain numbers. Time is from a few steps and rows that are really run on this
machine, once for each task; nothing is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clozify.config.recipe import Recipe
from clozify.errors import DataError
from clozify.methods.ipet import count_generations
from clozify.reproduce.cells import Cell, Cells
from clozify.reproduce.datasets import TaskData
from clozify.runs.plan import Plan

FEW = 256  # rows of the pile that are enough to measure with


class _Bill:
    """Adds up jobs; one that several cells share is paid once."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.paid: set[Any] = set()
        self.speeds: dict[Any, Any] = {}
        self.total: dict[str, Any] = dict.fromkeys(
            ("members", "member_steps", "rows_to_score", "classifiers", "classifier_steps", "pretraining_steps"), 0
        )
        self.seconds = self.numbers = 0.0

    def once(self, *job: Any) -> bool:
        """Whether this job is new."""
        new = job not in self.paid
        self.paid.add(job)
        return new

    def members(self, cell: Cell, data: TaskData, count: int, steps: int, rows: int) -> None:
        """So many members, each with so many steps and rows to score."""
        step, row, _ = self._speed(cell, data, "member")
        self.total["members"] += count if steps else 0
        self.total["member_steps"] += count * steps
        self.total["rows_to_score"] += count * rows
        self.seconds += count * (steps * step + rows * row)
        self.numbers += count * rows * len(data.task.labels)

    def classifiers(self, cell: Cell, data: TaskData, count: int, steps: int) -> None:
        """So many classifiers; one of them is kept."""
        step, size = self._speed(cell, data, "classifier")
        self.total["classifiers"] += count
        self.total["classifier_steps"] += count * steps
        self.seconds += count * steps * step
        self.numbers += size + count * len(data.test) * len(data.task.labels)

    def _speed(self, cell: Cell, data: TaskData, what: str) -> Any:
        from clozify.pipeline.cost import classifier_seconds, member_seconds

        recipe = self.cells.recipe(cell)
        key = (cell.task, what, recipe.language_modeling if what == "member" else None)
        if key not in self.speeds:
            plan = self._plan(cell, data, recipe)
            assert plan.unlabeled is not None
            self.speeds[key] = member_seconds(plan) if what == "member" else classifier_seconds(plan, plan.unlabeled)
        return self.speeds[key]

    def _plan(self, cell: Cell, data: TaskData, recipe: Recipe) -> Plan:
        from clozify.pipeline.train import prepare

        labeled, pile = data.split(cell.examples, recipe, cell.share)
        given = None if labeled is None else labeled.select(np.arange(min(FEW, len(labeled))))
        few = pile.select(np.arange(min(FEW, len(pile))))
        asked = {"model": self.cells.model, "recipe": recipe, "method": "ipet", "allow_overlap": True}
        return prepare(data.task, given, few, **asked)  # type: ignore[arg-type]


def cost(cells: Cells, asked: list[Cell]) -> dict[str, Any]:
    """What the cells will cost that were not run before."""
    bill, notes = _Bill(cells), list[str]()
    left = [cell for cell in asked if cells.find(cell) is None]
    for cell in left:
        try:
            data = cells.check(cell)
        except DataError as error:
            notes.append(f"Not in the sum: {' '.join(error.problems)}")
            continue
        notes += _add(bill, cell, data)
    disk = round(4 * bill.numbers / 2**20, 1)
    found = {"cells": len(asked), "done": len(asked) - len(left), **bill.total}
    return found | {"seconds": round(bill.seconds), "disk_mib": disk, "notes": list(dict.fromkeys(notes))}


def _add(bill: _Bill, cell: Cell, data: TaskData) -> list[str]:
    """Add a cell; returns what the sum leaves out."""
    recipe, notes = bill.cells.recipe(cell), []
    labeled, pile = data.split(cell.examples, recipe, cell.share)
    of_t, rows, pairs = 0 if labeled is None else len(labeled), len(pile) + len(data.test), len(data.task.pairs)
    if cell.pretrained and bill.once("pretraining", cell.task):
        bill.total["pretraining_steps"] += recipe.pretrain.max_steps
        notes.append("The time of in-domain pretraining is not in the sum.")
    if cell.found_words or cell.method == "words":
        notes.append("The time of the verbalizer search is not in the sum.")
    if cell.found_words:
        pairs = len(data.task.patterns)
    section = recipe.finetune if recipe.language_modeling else recipe.finetune_without_lm
    shared = (replace(cell, method="", settings=()), section.model_dump_json(), recipe.language_modeling)
    if cell.method == "unsupervised" and bill.once("untrained", cell.task):
        bill.members(cell, data, pairs, 0, len(data.test))
    if cell.method in ("pet", "ipet"):
        many = pairs * recipe.repetitions
        if of_t and bill.once("generation 0", *shared):
            bill.members(cell, data, many, section.steps(of_t), rows)
        elif not of_t and bill.once("untrained pile", *shared):
            bill.members(cell, data, pairs, 0, rows)
        if cell.method == "ipet":
            _generations(bill, cell, data, shared, many, rows, of_t)
        if recipe.distillation and bill.once("classifier", cell):
            bill.classifiers(cell, data, recipe.repetitions, recipe.distill.steps(len(pile)))
    elif cell.method == "supervised" and bill.once("supervised", cell):
        bill.classifiers(cell, data, recipe.repetitions, recipe.supervised.steps(of_t))
    elif cell.method in ("uda", "mixtext") and bill.once(cell.method, cell):
        settings = getattr(recipe, cell.method)
        for steps in settings.steps_to_try or [settings.steps(of_t)]:
            bill.classifiers(cell, data, recipe.repetitions, steps)
        notes.append(
            "Steps of UDA and MixText are counted as a classifier's, which are shorter; augmenting is left out."
        )
    return notes


def _generations(
    bill: _Bill, cell: Cell, data: TaskData, shared: tuple[Any, ...], many: int, rows: int, of_t: int
) -> None:
    recipe = bill.cells.recipe(cell)
    settings = recipe.ipet
    section = recipe.finetune if recipe.language_modeling else recipe.finetune_without_lm
    k = count_generations(of_t, settings)
    numbers = [1, k] if settings.skip_generations and k > 1 else list(range(1, k + 1))
    for number in numbers:
        skipped = settings.skip_generations and number > 1
        size = of_t * settings.d**number if of_t else settings.zero_shot_examples * settings.d ** (number - 1)
        if bill.once("generation", number, skipped, settings.model_dump_json(exclude={"skip_generations"}), *shared):
            bill.members(cell, data, many, section.steps(size), rows)
