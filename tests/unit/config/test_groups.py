import numpy as np
import pytest

from clozify.config.groups import LabelGroups
from clozify.config.task import load_task, parse_task
from clozify.errors import TaskError

TASK = """
name = "bank"
fields = ["text"]
patterns = ["{mask}: {text}"]

[labels]
transfer = "send"
balance = "money"
flight = "fly"
weather = "rain"
"""
GROUPS = """
[groups]
banking = ["transfer", "balance"]
travel = "flight"
"""


def test_a_label_in_no_group_is_a_group_of_its_own():
    task = parse_task(TASK + GROUPS)
    assert task.label_groups.by_label == ["banking", "banking", "travel", "weather"]
    assert task.label_groups.names == ["banking", "travel", "weather"]


def test_a_groups_probability_is_the_sum_of_its_labels():
    groups = LabelGroups(["a", "b", "c", "d"], {"x": ["d", "a"], "y": ["c"]})
    assert groups.names == ["x", "y", "b"]
    sums = groups.sum_columns(np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]))
    assert np.allclose(sums, [[0.5, 0.3, 0.2], [0.8, 0.1, 0.1]])


def test_all_faults_of_groups_are_reported_at_once():
    faulty = """
[groups]
banking = ["transfer", "ballance", "transfer"]
money = ["transfer"]
nothing = []
weather = ["flight"]
"""
    with pytest.raises(TaskError) as error:
        parse_task(TASK + faulty, "t.toml")
    text = str(error.value)
    assert "'banking' names 'ballance', which is no label (did you mean 'balance'?)" in text
    assert "'banking' names the label 'transfer' twice" in text
    assert "'transfer' is in the groups 'banking' and 'money'" in text
    assert "The group 'nothing' has no label" in text
    assert "The group 'weather' has the name of a label that is in no group" in text
    assert len(error.value.problems) == 5
    assert all(problem.startswith("t.toml: ") for problem in error.value.problems)


@pytest.mark.parametrize("value", ["3", '{ a = "b" }', "[1.5]"])
def test_a_group_that_is_no_list_of_labels_is_an_error(value):
    with pytest.raises(TaskError, match="group"):
        parse_task(f"{TASK}[groups]\nbanking = {value}")


def test_a_task_with_groups_is_written_and_read_back_and_one_without_is_written_as_before():
    task, plain = parse_task(TASK + GROUPS), parse_task(TASK)
    assert parse_task(task.to_toml()) == task
    assert "groups" not in plain.to_toml()
    assert plain.label_groups is None
    entries = {"fields": ["text"], "patterns": ["{mask} {text}"], "labels": {1: "a", 2: "b"}, "groups": {"g": [1, 2]}}
    assert load_task(entries).label_groups.by_label == ["g", "g"]
