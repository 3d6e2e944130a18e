"""Labels that are read without an error where the task does not have them."""

import numpy as np
import pytest
from datasets import Dataset

from clozify.config.task import parse_task
from clozify.data.observed_labels import observe_labels
from clozify.data.rows import Rows

TASK = """
name = "stars"
fields = ["text"]
patterns = ["It was {mask}. {text}"]
aliases = [["low", "middle", "high"]]
[labels]
1 = "bad"
2 = "okay"
3 = "great"
"""
SEVERAL = TASK.replace('fields = ["text"]', 'fields = ["text"]\nmultilabel = true')


def rows_with(labels, task=TASK):
    return Rows(Dataset.from_dict({"text": ["x"] * len(labels), "label": labels}), parse_task(task))


def test_labels_are_those_that_rows_have():
    rows = rows_with(["1", "3", "2", "", "-1", None])
    observed = observe_labels(rows)
    np.testing.assert_array_equal(observed.targets, rows.labels)
    assert (observed.names, observed.unknown) == (["1", "2", "3"], {})
    assert observed.counts().tolist() == [1, 1, 1]


def test_unknown_names_are_reported_and_the_best_list_of_names_is_taken():
    observed = observe_labels(rows_with(["low", "hihg", "high", "1"]))
    assert observed.targets.tolist() == [0, -1, 2, -1]
    assert observed.unknown == {1: ["hihg"], 3: ["1"]}
    assert observed.names == ["low", "middle", "high"]
    assert observed.is_labeled.tolist() == [True, False, True, False]


def test_several_labels_a_row_are_read_alike():
    observed = observe_labels(rows_with(["1|3", "", "-", "2|x"], SEVERAL))
    assert observed.targets.tolist() == [[1, 0, 1], [0, 0, 0], [-1, -1, -1], [-1, -1, -1]]
    assert observed.unknown == {3: ["x"]}
    assert observed.counts().tolist() == [1, 0, 1]


def test_columns_of_0_and_1_are_labels():
    columns = {"text": ["x", "y"], "1": [1, 0], "2": [0, 0], "3": [1, 1]}
    observed = observe_labels(Rows(Dataset.from_dict(columns), parse_task(SEVERAL)))
    assert observed.cells == ["1|3", "3"]


@pytest.mark.parametrize("task", [TASK, SEVERAL])
def test_data_without_a_label_column_has_no_labels(task):
    assert observe_labels(Rows(Dataset.from_dict({"text": ["x"]}), parse_task(task))) is None
