"""The estimate of a run's cost counts what the run will do."""

import numpy as np
import pytest

from clozify.config.recipe import load_recipe
from clozify.config.task import parse_task
from clozify.data.in_memory import make_rows
from clozify.pipeline.cost import GenerationCost, generation_costs
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
