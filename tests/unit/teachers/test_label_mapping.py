from __future__ import annotations

import numpy as np
import pytest

from clozify.config.task import load_task
from clozify.errors import TaskError
from clozify.teachers.label_mapping import map_labels

TASK = load_task(
    {
        "fields": ["text"],
        "patterns": ["{mask}: {text}"],
        "labels": {"1": "World", "2": "Sports", "3": "Business"},
        "aliases": [["0", "1", "2"], ["World", "Sports", "Business"]],
    }
)


def test_names_are_equal_whatever_their_case_and_aliases_are_names():
    mapping = map_labels(["sports", "WORLD", "weather"], TASK, {}, "The classifier")
    assert mapping.indices.tolist() == [1, 0, -1]


def test_labels_that_fit_several_lists_of_names_are_read_by_the_list_that_has_most_of_them():
    assert map_labels(["1", "2", "3"], TASK, {}, "It").indices.tolist() == [0, 1, 2]
    assert map_labels(["0", "1", "2"], TASK, {}, "It").indices.tolist() == [0, 1, 2]


def test_entries_come_before_equal_names():
    mapping = map_labels(["World", "LABEL_7", "Sports"], TASK, {"LABEL_7": "3", "Sports": "World"}, "It")
    assert mapping.indices.tolist() == [0, 2, 0]


def test_probabilities_of_one_label_are_summed_and_the_rest_is_renormalised():
    mapping = map_labels(["football", "World", "weather", "tennis"], TASK, {"football": "2", "tennis": "2"}, "It")
    theirs = np.array([[0.1, 0.3, 0.5, 0.1], [0.0, 0.0, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        ours = mapping.log_probabilities(np.log(theirs))
    assert np.exp(ours[0]) == pytest.approx([0.3 / 0.5, 0.2 / 0.5, 0.0], abs=1e-6)
    assert np.isneginf(ours[0, 2])
    assert np.isnan(ours[1]).all()  # nothing is left of the row: it abstains
    assert "'weather'" in mapping.notes("It")[0]
    assert "'3'" in mapping.notes("It")[1]


def test_all_faults_of_a_mapping_are_reported_at_once():
    with pytest.raises(TaskError) as caught:
        map_labels(["World", "Sports"], TASK, {"Wrld": "1", "Sports": "Sprts"}, "The classifier 'x'")
    first, second = caught.value.problems
    assert "no label 'Wrld' (did you mean 'World'?)" in first
    assert "'World' and 'Sports'" in first
    assert "'Sprts'" in second
    assert "'1', '2' and '3'" in second


def test_labels_that_stand_for_fewer_than_two_of_the_task_are_an_error_that_shows_the_entry():
    with pytest.raises(TaskError, match=r"'LABEL_0' and 'LABEL_1', which stand for none .* \"LABEL_0\" = \"1\""):
        map_labels(["LABEL_0", "LABEL_1"], TASK, {}, "The classifier 'x'")
    with pytest.raises(TaskError, match="only '2'"):
        map_labels(["LABEL_0", "Sports"], TASK, {}, "The classifier 'x'")
