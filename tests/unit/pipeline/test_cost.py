"""The estimate of a run's cost counts what the run will do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from clozify.config.recipe import load_recipe
from clozify.config.task import parse_task
from clozify.data.in_memory import make_rows
from clozify.pipeline import cost
from clozify.pipeline.cost import GenerationCost, generation_costs, time_member
from clozify.pipeline.generations import choose_generation_teachers
from clozify.runs.plan import Plan, empty_rows

TASK = """
name = "t"
fields = ["text"]
patterns = ["It was {mask}. {text}", "{text}: {mask}", "{mask}! {text}", "{mask}? {text}"]
[labels]
a = "bad"
b = "good"
"""


@pytest.fixture
def plan():
    task = parse_task(TASK)
    labeled = make_rows({"text": [f"row {n}" for n in range(8)], "label": ["a", "b"] * 4}, task, "T")
    unlabeled = make_rows({"text": [f"other {n}" for n in range(100)]}, task, "D")
    test = make_rows({"text": ["x"] * 10, "label": ["a", "b"] * 5}, task, "test")

    def make(method="ipet", labeled=labeled, settings=()):
        recipe = load_recipe("paper", ["repetitions=2", "ipet.d=3", "ipet.generations=2", *settings])
        return Plan(task, recipe, method, "builtin", "builtin", labeled, unlabeled, test)

    return make


def test_later_generations_train_longer_where_epochs_decide_and_their_training_sets_are_larger(plan):
    """A generation's training set has d times as many rows, up to the number of unlabelled ones."""
    steps = [g.steps for g in generation_costs(plan(settings=["finetune.num_train_epochs=2"]))]
    assert steps == [4, 12, 36]  # 8, 24 and 72 rows, 4 in a step
    assert [g.steps for g in generation_costs(plan())] == [1000] * 3
    (only,) = generation_costs(plan("pet", settings=["finetune.num_train_epochs=2"]))
    assert only == GenerationCost(8, 4, 8)


def test_only_teachers_and_the_last_generation_score_the_unlabelled_rows(plan):
    ipet = plan(settings=["ipet.teachers=0.15"])
    generations = generation_costs(ipet)
    teachers = [len(np.unique(np.concatenate(choose_generation_teachers(ipet, 8, index)))) for index in (1, 2)]
    assert [g.scoring_members for g in generations] == [*teachers, 8]
    assert min(teachers) < 8
    assert generations[0].rows_to_score(ipet) == 8 * 10 + teachers[0] * 100


def test_without_labelled_rows_the_first_generation_is_not_trained(plan):
    zero_shot = plan(labeled=empty_rows(parse_task(TASK)), settings=["finetune.num_train_epochs=2"])
    assert [(g.members, g.steps) for g in generation_costs(zero_shot)] == [(8, 5), (8, 15)]  # 10 and 30 rows
    assert generation_costs(plan("supervised")) == []


@pytest.mark.parametrize("fits", [3, 2, 1])
def test_members_that_share_a_batch_share_the_time_of_its_steps(plan, tiny_folder, monkeypatch, fits):
    """Where memory is short, as many as fit: the run divides its groups, too."""
    sizes = {"together": [], "alone": []}

    def train_group(_, members):
        if len(members) > fits:
            raise torch.OutOfMemoryError
        sizes["together"].append(len(members))

    monkeypatch.setattr(cost, "finetune_group", train_group)
    monkeypatch.setattr(cost, "finetune", lambda *_: sizes["alone"].append(1))
    monkeypatch.setattr(cost, "_step_seconds", lambda train, _: train(1) or 6.0)
    settings = ["adapter.method=lora", "adapter.members_at_once=3", "max_seq_length=24"]
    lora = plan("pet", settings=settings)
    lora = Plan(lora.task, lora.recipe, "pet", *[str(tiny_folder("bert"))] * 2, lora.labeled, lora.unlabeled, lora.test)
    timing = time_member(lora, SimpleNamespace(device="cpu", accelerator=Accelerator(cpu=True)), rows=8)
    assert timing.step_seconds == 6.0 / fits
    assert sizes == {"together": [fits] if fits > 1 else [], "alone": [1] if fits == 1 else []}
