"""What a run will cost, before it is spent: members, steps, rows to label, disk, and time measured on the spot.

In: a run's plan. Out: plain numbers for a table or JSON. A few steps and a few rows are really run, with throw-away
weights; nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from clozify.config.recipe import Mixtext, Recipe, Uda
from clozify.data.rows import Rows
from clozify.methods.distill import distill
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.models.classifier import new_classifier
from clozify.models.task_prompts import compile_task
from clozify.pipeline.augmentation import Augmented, from_file, in_other_words, maker, share_of
from clozify.pipeline.generations import generation_indices
from clozify.pipeline.semi_supervised import METHODS as SEMI_SUPERVISED
from clozify.pipeline.semi_supervised import SemiSupervised
from clozify.prompts.encode import EncodedRows
from clozify.runs.context import RunContext
from clozify.runs.plan import Plan
from clozify.training.loop import TrainingSetup, seed_everything

STEPS = 3  # steps to time, after a first one
RECORDED, REPLAYED = 10, 40  # a GPU records its first steps: those after them are timed
ROWS = {"cpu": 64, "cuda": 4096}  # rows to time
AUGMENTED = 16  # rows to time the augmentation of


def estimate(plan: Plan, context: RunContext) -> dict[str, Any]:
    """Members, steps, rows, disk and seconds of a run of this plan from the beginning."""
    if plan.method in SEMI_SUPERVISED:
        return _semi_supervised(plan, context)
    section = plan.recipe.finetune if plan.with_lm else plan.recipe.finetune_without_lm
    with_members = plan.method != "supervised"
    generations = 0 if plan.method != "ipet" else len(generation_indices(plan))
    generations += len(plan.labeled) > 0 or plan.method != "ipet"  # M^0 is trained where there are labelled rows
    members = len(plan.task.pairs) * plan.recipe.repetitions * generations if with_members else 0
    rows = sum(len(part) for part in (plan.unlabeled, plan.test) if part is not None)
    distilled = plan.unlabeled is not None and plan.recipe.distillation
    classifiers = plan.recipe.repetitions if distilled or not with_members else 0
    final = plan.recipe.supervised if not with_members else plan.recipe.distill
    trained_on = plan.labeled if not with_members or plan.unlabeled is None else plan.unlabeled
    found: dict[str, Any] = {
        "members": members,
        "steps_a_member": section.steps(len(plan.labeled)) if members else 0,
        "rows_to_score_a_member": rows if members else 0,
        "classifiers": classifiers,
        "steps_a_classifier": final.steps(len(trained_on)) if classifiers else 0,
    }
    step, row, parameters = member_seconds(plan, context) if members else (0.0, 0.0, 0)
    final_step, size = classifier_seconds(plan, context, trained_on) if classifiers else (0.0, 0)
    kept = size if classifiers else len(plan.task.pairs) * plan.recipe.repetitions * parameters
    scores = (members * rows + classifiers * (len(plan.test) if plan.test is not None else 0)) * len(plan.task.labels)
    found["disk_mib"] = round(4 * (scores + kept) / 2**20, 1)
    found["seconds"] = round(
        members * (found["steps_a_member"] * step + rows * row) + classifiers * found["steps_a_classifier"] * final_step
    )
    return found


def _semi_supervised(plan: Plan, context: RunContext) -> dict[str, Any]:
    """The same for UDA and MixText: rows to augment, and a training for every number of steps that is tried."""
    assert plan.unlabeled is not None
    settings: Uda | Mixtext = getattr(plan.recipe, plan.method)
    pile = plan.unlabeled.select(share_of(plan, np.arange(len(plan.unlabeled))))
    tried = settings.steps_to_try or (settings.steps(len(plan.labeled)),)
    few = pile.select(np.arange(min(256, len(pile))))
    row, versions = 0.0, 1 if plan.paraphrases is None else len(from_file(plan, plan.paraphrases, context).versions)
    if plan.paraphrases is None:
        _, versions, _, make = maker(plan, context.device)
        some = pile.select(np.arange(min(AUGMENTED, len(pile))))
        in_other_words(plan, some.select([0]), make, 0, 0)  # loads the model
        row = _timed(lambda: in_other_words(plan, some, make, 0, 0)) / len(some)
    classifier = new_classifier(plan.student, plan.task, plan.recipe, context.device)

    def steps(count: int) -> None:
        work = SemiSupervised(plan.method, settings.with_steps(count), Augmented(few, [few] * versions, ""))
        setup = TrainingSetup(
            work.method_settings, seed_everything(0), context.accelerator, balance=plan.recipe.balance
        )
        work.train(plan, classifier, setup)

    steps(1)
    step = _timed(lambda: steps(STEPS)) / STEPS
    classifiers = plan.recipe.repetitions * len(tried)
    scores = classifiers * (len(plan.test) if plan.test is not None else 0) * len(plan.task.labels)
    to_augment = versions * len(pile) if plan.paraphrases is None else 0
    return {
        "members": 0,
        "steps_a_member": 0,
        "rows_to_score_a_member": 0,
        "rows_to_augment": to_augment,
        "classifiers": classifiers,
        "steps_a_classifier": round(float(np.mean(tried))),
        "disk_mib": round(4 * (scores + len(tried) * classifier.model.num_parameters()) / 2**20, 1),
        "seconds": round(to_augment * row + plan.recipe.repetitions * sum(tried) * step),
    }


def _short(recipe: Recipe, section: str, steps: int) -> Recipe:
    """The recipe with so many steps in a section, whatever else would decide their number."""
    few = {"max_steps": steps, "num_train_epochs": None, "exact_steps": True}
    return recipe.model_copy(update={section: getattr(recipe, section).model_copy(update=few)})


def _timed(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _a_step(steps: Callable[[int], None], device: str) -> float:
    """Seconds of one step of a training, which `steps` does anew for so many."""
    steps(1)
    if device == "cpu":
        return _timed(lambda: steps(STEPS)) / STEPS
    first = _timed(lambda: steps(RECORDED))
    return max(0.0, _timed(lambda: steps(RECORDED + REPLAYED)) - first) / REPLAYED


def member_seconds(plan: Plan, context: RunContext, rows: int | None = None) -> tuple[float, float, int]:
    """Seconds of a fine-tuning step and of scoring a row, and how many parameters are trained.

    So many rows are scored, some of them several times where there are fewer.
    """
    model = plan.load_model(context.device)
    questions = compile_task(model, plan.task, None, plan.recipe.wording)
    question = questions.patterns[0]
    pile = (
        plan.unlabeled.select(np.arange(min(256, len(plan.unlabeled)))) if plan.unlabeled is not None else plan.labeled
    )
    length = min(plan.recipe.max_seq_length, model.max_length)
    given = plan.labeled if len(plan.labeled) else pile  # without labelled rows members train on the pile's
    labels = np.zeros(len(given), dtype=np.int16) if given is pile else plan.labeled.labels
    labeled = EncodedRows(question.template, questions.tokenize(model, given, 0, len(given)), length)
    helpers = (
        EncodedRows(question.template, questions.tokenize(model, pile, 0, len(pile)), length) if plan.with_lm else None
    )
    name = "finetune" if plan.with_lm else "finetune_without_lm"

    def steps(count: int) -> None:
        settings = _short(plan.recipe, name, count).member_settings(plan.with_lm)
        setup = TrainingSetup(settings, seed_everything(0), context.accelerator, balance=plan.recipe.balance)
        finetune(model, question.words[0], labeled, labels, helpers, setup)

    step = _a_step(steps, context.device)
    few = pile.select(np.resize(np.arange(len(pile)), rows or ROWS[context.device]))
    list(score_rows(model, questions.for_pair(0), few.select(np.arange(min(len(few), 8))), length))  # sets libraries up
    row = _timed(lambda: list(score_rows(model, questions.for_pair(0), few, length))) / len(few)
    return step, row, model.model.num_parameters(only_trainable=True)


def classifier_seconds(plan: Plan, context: RunContext, rows: Rows) -> tuple[float, int]:
    """Seconds of a step of the final classifier, and its parameters."""
    classifier = new_classifier(plan.student, plan.task, plan.recipe, context.device)
    few = rows.select(np.arange(min(256, len(rows))))
    encoded = classifier.encode(few)
    targets = np.full((len(few), len(plan.task.labels)), 1 / len(plan.task.labels), dtype=np.float32)

    def steps(count: int) -> None:
        settings = _short(plan.recipe, "distill", count).distill
        distill(classifier, encoded, targets, TrainingSetup(settings, seed_everything(0), context.accelerator))

    return _a_step(steps, context.device), classifier.model.num_parameters()
