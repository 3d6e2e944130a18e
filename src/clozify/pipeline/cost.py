"""Estimates what a run costs before it starts: members, steps, rows to score, disk and time (`clozify train --plan`).

The time is measured: a few training steps and a few rows are run on this machine, with weights that are thrown away.
Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from clozify.config.recipe import Mixtext, Training, Uda
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.methods.distill import distill
from clozify.methods.finetune import finetune
from clozify.methods.finetune_group import GroupMember, finetune_group
from clozify.methods.ipet import counts_to_draw
from clozify.methods.ipet_label_sets import label_set_counts
from clozify.methods.score import TOKENS_PER_BATCH, score_rows
from clozify.models.classifier import new_classifier
from clozify.models.cloze import ClozeModel
from clozify.models.lora_group import supports_groups
from clozify.models.task_prompts import compile_task
from clozify.pipeline.augmentation import Augmented, join_paraphrases, make_augmenter, select_fraction
from clozify.pipeline.folds import estimate_folds, estimate_pairs, make_folds
from clozify.pipeline.generations import choose_generation_teachers, generation_indices, members_to_score
from clozify.pipeline.member_groups import max_group_size
from clozify.pipeline.other_models import other_models
from clozify.pipeline.semi_supervised import METHODS as SEMI_SUPERVISED
from clozify.pipeline.semi_supervised import SemiSupervised
from clozify.prompts.encode import EncodedRows
from clozify.runs.context import RunContext
from clozify.runs.plan import Plan
from clozify.teachers.base import Cost, Teacher, row_limit
from clozify.training.loop import TrainingSetup, seed_everything

TIMED_STEPS = 3  # after a first one
CAPTURED_STEPS, REPLAYED_STEPS = 10, 40  # on a GPU the first steps capture CUDA graphs; those after them are timed
TIMED_ROWS = {"cpu": 64, "cuda": 4096}
TRAINING_ROWS = 256  # that timed steps are trained on
TIMED_AUGMENTATIONS = 16  # rows


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a run from the beginning; the names are those of `--plan --json`, which leaves None out."""

    members: int
    steps_a_member: int  # the mean over all members
    rows_to_score_a_member: int  # the mean over all members
    classifiers: int
    steps_a_classifier: int  # the mean over all classifiers
    disk_mib: float
    seconds: int
    rows_to_augment: int | None = None  # for UDA and MixText
    rows_to_label: int | None = None  # by the classifier, for a static one
    threshold_models: int | None = None  # trained to choose thresholds, with several labels a row
    estimate_models: int | None = None  # trained without a part of T, to estimate the accuracy
    at_once: int | None = None  # models that are trained at the same time, for `--at-once auto`
    why: str | None = None
    requests: int | None = None  # to LLMs behind an API, at most, as all that follow
    input_tokens: int | None = None  # an estimate
    output_tokens: int | None = None
    price: float | None = None


@dataclass(frozen=True)
class GenerationCost:
    """The members of a generation, or of plain PET."""

    members: int
    steps: int  # of each member
    scoring_members: int  # members that score the unlabelled rows: teachers of the next generation, or all

    def rows_to_score(self, plan: Plan) -> int:
        """Rows that all members score together: the test rows, and perhaps the unlabelled ones."""
        return self.members * _count(plan.test) + self.scoring_members * _count(plan.unlabeled)


def _count(rows: Rows | None) -> int:
    return 0 if rows is None else len(rows)


def estimate(plan: Plan, context: RunContext, teachers: Sequence[Teacher] = ()) -> CostEstimate:
    """The cost of a run of this plan, with these teachers besides its patterns."""
    paid = [cost for teacher in teachers for cost in _teacher_costs(plan, teacher) if cost.requests]
    cost = _estimate(plan, context)
    if plan.static_rows is not None:
        seconds = len(plan.static_rows) * _classifier_row_seconds(plan, context, plan.static_rows)
        cost = replace(cost, rows_to_label=len(plan.static_rows), seconds=cost.seconds + round(seconds))
    if not paid:
        return cost
    prices = [each.price for each in paid if each.price is not None]
    return replace(
        cost,
        requests=sum(each.requests for each in paid),
        input_tokens=sum(each.input_tokens for each in paid),
        output_tokens=sum(each.output_tokens for each in paid),
        price=sum(prices) if prices else None,
    )


def _teacher_costs(plan: Plan, teacher: Teacher) -> list[Cost]:
    """What a teacher costs for T, the unlabelled and, where it scores all rows, the test rows."""
    test = plan.test if row_limit(teacher) is None else None
    return [teacher.cost(rows) for rows in (plan.labeled, plan.unlabeled, test) if rows is not None and len(rows)]


def _estimate(plan: Plan, context: RunContext) -> CostEstimate:
    if plan.method in SEMI_SUPERVISED:
        return _estimate_semi_supervised(plan, context)
    if plan.method == "frozen":
        return _estimate_frozen(plan, context)
    own = _members_cost(plan, context)
    of_models = [own, *(_members_cost(plan.with_model(entry.model), context) for entry in other_models(plan.task))]
    members = sum(of_model.members for of_model in of_models)
    rows_to_score = sum(of_model.rows_to_score for of_model in of_models)
    supervised = plan.method == "supervised"
    classifiers = plan.recipe.repetitions if supervised or plan.is_distilled else 0
    section = plan.recipe.supervised if supervised else plan.recipe.distill
    training_rows = plan.labeled if supervised or plan.unlabeled is None else plan.unlabeled
    classifier_steps = section.steps(len(training_rows)) if classifiers else 0
    member = own.timing
    classifier = time_classifier(plan, context, training_rows) if classifiers else ClassifierTiming(0.0, 0)
    weights = classifier.parameters
    if not classifiers:
        weights = plan.member_pairs * plan.recipe.repetitions * sum(of.timing.parameters for of in of_models)
    scores = (rows_to_score + classifiers * _count(plan.test)) * len(plan.task.labels)
    folds, estimates = len(make_folds(plan)), len(estimate_folds(plan)) * (1 if supervised else estimate_pairs(plan))
    if plan.recipe.multilabel.threshold is not None:
        folds, estimates = 0, estimates + folds  # no threshold is chosen
    fold_seconds = classifier_steps * classifier.step_seconds
    if not supervised:
        steps = plan.recipe.member_settings(plan.with_lm).steps(len(plan.labeled))
        fold_seconds = steps * member.step_seconds + len(plan.labeled) * member.row_seconds
    return CostEstimate(
        members=members,
        steps_a_member=round(sum(of_model.steps for of_model in of_models) / max(1, members)),
        rows_to_score_a_member=round(rows_to_score / max(1, members)),
        classifiers=classifiers,
        steps_a_classifier=classifier_steps,
        disk_mib=_float32_mib(scores + weights),
        seconds=round(
            sum(of_model.seconds for of_model in of_models)
            + classifiers * classifier_steps * classifier.step_seconds
            + (folds + estimates) * fold_seconds
        ),
        threshold_models=folds or None,
        estimate_models=estimates or None,
    )


@dataclass(frozen=True)
class MembersCost:
    """The members of a language model, all generations together."""

    members: int
    steps: int
    rows_to_score: int
    timing: MemberTiming

    @property
    def seconds(self) -> float:
        """Seconds of training and scoring."""
        return self.steps * self.timing.step_seconds + self.rows_to_score * self.timing.row_seconds


def _members_cost(plan: Plan, context: RunContext) -> MembersCost:
    generations = generation_costs(plan)
    return MembersCost(
        members=sum(generation.members for generation in generations),
        steps=sum(generation.members * generation.steps for generation in generations),
        rows_to_score=sum(generation.rows_to_score(plan) for generation in generations),
        timing=time_member(plan, context) if generations else MemberTiming(0.0, 0.0, 0),
    )


def generation_costs(plan: Plan) -> list[GenerationCost]:
    """The generations of members that are trained: one for PET, M^0 to M^k for iPET, none for a supervised run.

    With `num_train_epochs` later generations of iPET have more steps, since their training sets are larger. Only
    teachers score the unlabelled rows, and the last generation, whose scores become the soft labels.
    """
    if plan.method == "supervised":
        return []
    members = plan.member_pairs * plan.recipe.repetitions
    settings = plan.recipe.member_settings(plan.with_lm)
    first = GenerationCost(members, settings.steps(len(plan.labeled)), members)
    if plan.method != "ipet":
        return [first]
    assert plan.unlabeled is not None
    indices = generation_indices(plan)
    scoring = [len(members_to_score(choose_generation_teachers(plan, members, index))) for index in indices]
    if plan.recipe.ipet.keep == "better":
        scoring = [members] * len(indices)
    sizes = [len(plan.labeled)]
    if plan.task.multilabel:
        label_counts = label_set_counts(plan.labeled.label_matrix)
    else:
        label_counts = np.bincount(plan.labeled.labels, minlength=len(plan.task.labels)).astype(np.int64)
    for index in indices:
        drawn, _ = counts_to_draw(label_counts, index, len(plan.unlabeled), plan.recipe.ipet)
        sizes.append(len(plan.labeled) + int(drawn.sum()))
    generations = [
        GenerationCost(members, settings.steps(size), scoring_members)
        for size, scoring_members in zip(sizes, [*scoring, members], strict=True)
    ]
    return generations if len(plan.labeled) else generations[1:]  # without labelled rows M^0 is not trained


def _estimate_frozen(plan: Plan, context: RunContext) -> CostEstimate:
    """The cost of states of all rows in every pattern, and of a classifier where one is distilled."""
    rows, patterns = _count(plan.labeled) + _count(plan.unlabeled) + _count(plan.test), len(plan.task.patterns)
    model = plan.load_model(context.device)
    assert isinstance(model, ClozeModel)
    row_seconds = _row_seconds(plan, model, context.device)
    states = rows * patterns * (model.head.word_vectors.shape[1] + model.model.config.hidden_size)
    classifiers, steps, seconds, parameters = 0, 0, rows * patterns * row_seconds, 0
    if plan.is_distilled:
        assert plan.unlabeled is not None
        classifiers, steps = plan.recipe.repetitions, plan.recipe.distill.steps(len(plan.unlabeled))
        classifier = time_classifier(plan, context, plan.unlabeled)
        seconds, parameters = seconds + classifiers * steps * classifier.step_seconds, classifier.parameters
    return CostEstimate(
        members=len(plan.task.pairs),
        steps_a_member=0,
        rows_to_score_a_member=rows,
        classifiers=classifiers,
        steps_a_classifier=steps,
        disk_mib=_float32_mib(states // 2 + parameters),  # states are float16
        seconds=round(seconds),
    )


def _row_seconds(plan: Plan, model: ClozeModel, device: str) -> float:
    """Seconds of scoring a row with one pattern."""
    rows = plan.labeled if plan.unlabeled is None else plan.unlabeled
    prompts = compile_task(model, plan.task, None, plan.recipe.wording).for_pair(0)
    sample = rows.select(np.resize(np.arange(len(rows)), TIMED_ROWS[device]))
    length = plan.recipe.max_seq_length
    list(score_rows(model, prompts, sample.select(np.arange(8)), length))  # initialises libraries
    return _seconds(lambda: list(score_rows(model, prompts, sample, length))) / len(sample)


def _estimate_semi_supervised(plan: Plan, context: RunContext) -> CostEstimate:
    """The cost of UDA or MixText: rows to augment, and a training for every number of steps that is tried."""
    assert plan.unlabeled is not None
    settings: Uda | Mixtext = getattr(plan.recipe, plan.method)
    unlabeled = plan.unlabeled.select(select_fraction(plan, np.arange(len(plan.unlabeled))))
    steps_to_try = settings.steps_to_try or (settings.steps(len(plan.labeled)),)
    if plan.paraphrases is not None:
        versions, row_seconds = len(join_paraphrases(plan, plan.paraphrases, context).versions), 0.0
    else:
        augmenter = make_augmenter(plan, context.device)
        versions, sample = augmenter.versions, unlabeled.select(np.arange(min(TIMED_AUGMENTATIONS, len(unlabeled))))
        augmenter.augment_rows(plan, sample.select([0]), 0, 0)  # loads the model
        row_seconds = _seconds(lambda: augmenter.augment_rows(plan, sample, 0, 0)) / len(sample)
    sample = unlabeled.select(np.arange(min(TRAINING_ROWS, len(unlabeled))))
    classifier = new_classifier(plan.student, plan.task, plan.recipe, context.device)

    def train(steps: int) -> None:
        training = SemiSupervised(plan.method, settings.with_steps(steps), Augmented(sample, [sample] * versions, ""))
        setup = TrainingSetup(
            training.method_settings, seed_everything(0), context.accelerator, balance=plan.recipe.balance
        )
        training.train(plan, classifier, setup)

    step_seconds = _step_seconds(train, context.device)
    classifiers = plan.recipe.repetitions * len(steps_to_try)
    rows_to_augment = versions * len(unlabeled) if plan.paraphrases is None else 0
    scores = classifiers * _count(plan.test) * len(plan.task.labels)
    return CostEstimate(
        members=0,
        steps_a_member=0,
        rows_to_score_a_member=0,
        classifiers=classifiers,
        steps_a_classifier=round(float(np.mean(steps_to_try))),
        disk_mib=_float32_mib(scores + len(steps_to_try) * classifier.model.num_parameters()),
        seconds=round(rows_to_augment * row_seconds + plan.recipe.repetitions * sum(steps_to_try) * step_seconds),
        rows_to_augment=rows_to_augment,
    )


def _float32_mib(count: int) -> float:
    return round(4 * count / 2**20, 1)


def _with_steps(settings: Training, steps: int) -> Training:
    """The settings with exactly this many steps."""
    return settings.model_copy(update={"max_steps": steps, "num_train_epochs": None, "exact_steps": True})


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _step_seconds(train: Callable[[int], None], device: str) -> float:
    """Seconds of one step of a training; `train(steps)` trains for this many steps."""
    train(1)
    if device == "cpu":
        return _seconds(lambda: train(TIMED_STEPS)) / TIMED_STEPS
    captured = _seconds(lambda: train(CAPTURED_STEPS))
    return max(0.0, _seconds(lambda: train(CAPTURED_STEPS + REPLAYED_STEPS)) - captured) / REPLAYED_STEPS


class MemberTiming(NamedTuple):
    """Seconds of a fine-tuning step and of scoring a row, and the number of trained parameters."""

    step_seconds: float
    row_seconds: float
    parameters: int


class ClassifierTiming(NamedTuple):
    """Seconds of a training step of the final classifier, and the number of its parameters."""

    step_seconds: float
    parameters: int


def time_member(plan: Plan, context: RunContext, rows: int | None = None) -> MemberTiming:
    """Measure a member: train a few steps, and score this many rows (some repeatedly, where there are fewer).

    Members that are trained in one batch share the seconds of its steps.
    """
    model = plan.load_model(context.device)
    prompts = compile_task(model, plan.task, None, plan.recipe.wording)
    pattern = prompts.patterns[0]
    max_length = min(plan.recipe.max_seq_length, model.max_length)
    unlabeled = (
        None if plan.unlabeled is None else plan.unlabeled.select(np.arange(min(TRAINING_ROWS, len(plan.unlabeled))))
    )
    scored = plan.labeled if unlabeled is None else unlabeled
    labeled = plan.labeled if len(plan.labeled) else scored  # zero-shot members are trained on unlabelled rows
    labels = plan.labeled.targets if len(plan.labeled) else np.zeros(len(labeled), dtype=np.int16)

    def encode(rows: Rows) -> EncodedRows:
        return EncodedRows(pattern.template, prompts.tokenize(model, rows, 0, len(rows)), max_length)

    training_rows = (pattern.words[0], encode(labeled), labels, encode(scored) if plan.with_lm else None)
    group_size = min(max_group_size(plan, context.device), plan.member_pairs * plan.recipe.repetitions)
    if group_size > 1 and not (isinstance(model, ClozeModel) and supports_groups(model)):
        group_size = 1

    def train(steps: int) -> None:
        nonlocal group_size
        settings = _with_steps(plan.recipe.member_settings(plan.with_lm), steps)
        setup = TrainingSetup(settings, seed_everything(0), context.accelerator, balance=plan.recipe.balance)
        while group_size > 1 and isinstance(model, ClozeModel):
            with suppress(torch.OutOfMemoryError):
                finetune_group(model, [GroupMember(*training_rows, seed, setup) for seed in range(group_size)])
                return
            group_size = -(-group_size // 2)  # as the run does
        finetune(model, *training_rows, setup)

    step_seconds = _step_seconds(train, context.device) / group_size
    sample = scored.select(np.resize(np.arange(len(scored)), rows or TIMED_ROWS[context.device]))
    pair = prompts.for_pair(0)
    list(score_rows(model, pair, sample.select(np.arange(min(len(sample), 8))), max_length))  # initialises libraries
    row_seconds = _seconds(lambda: list(score_rows(model, pair, sample, max_length))) / len(sample)
    return MemberTiming(step_seconds, row_seconds, model.model.num_parameters(only_trainable=True))


def _classifier_row_seconds(plan: Plan, context: RunContext, rows: Rows) -> float:
    """Seconds of scoring a row with the final classifier."""
    classifier = new_classifier(plan.student, plan.task, plan.recipe, context.device)
    classifier.use_precision(
        "auto" if GpuOptions.from_recipe(plan.recipe).scores_in_int8(context.device) else "float32"
    )
    sample = rows.select(np.resize(np.arange(len(rows)), TIMED_ROWS[context.device]))
    budget = TOKENS_PER_BATCH[context.device]
    list(classifier.score_rows(sample.select(np.arange(8)), budget))  # initialises libraries
    return _seconds(lambda: list(classifier.score_rows(sample, budget))) / len(sample)


def time_classifier(plan: Plan, context: RunContext, rows: Rows) -> ClassifierTiming:
    """Measure the final classifier: train a few steps on some of these rows."""
    classifier = new_classifier(plan.student, plan.task, plan.recipe, context.device)
    sample = rows.select(np.arange(min(TRAINING_ROWS, len(rows))))
    encoded = classifier.encode(sample)
    targets = np.full((len(sample), len(plan.task.labels)), 1 / len(plan.task.labels), dtype=np.float32)

    def train(steps: int) -> None:
        settings = _with_steps(plan.recipe.distill, steps)
        distill(classifier, encoded, targets, TrainingSetup(settings, seed_everything(0), context.accelerator))

    return ClassifierTiming(_step_seconds(train, context.device), classifier.model.num_parameters())
