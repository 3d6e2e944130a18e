import numpy as np

from clozify.config.groups import LabelGroups
from clozify.metrics import DENSE_LABELS, detailed_metrics


def one_hot(predicted, labels):
    return np.eye(labels)[predicted]


def test_an_error_within_a_group_is_no_error_of_the_group():
    groups = LabelGroups(["a", "b", "c", "d"], {"x": ["a", "b"], "y": ["c", "d"]})
    truth, predicted = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 0, 3])
    metrics = detailed_metrics(truth, one_hot(predicted, 4), ["a", "b", "c", "d"], groups).groups
    assert metrics.accuracy == 4 / 6
    assert (metrics.errors, metrics.errors_across) == (4, 2)
    assert metrics.groups["x"].rows == 3
    assert metrics.groups["x"].recall == 2 / 3
    assert metrics.groups["y"].precision == 2 / 3


def test_a_task_without_groups_has_the_metrics_that_it_had():
    evaluation = detailed_metrics(np.array([0, 1]), one_hot([0, 0], 2), ["a", "b"])
    assert list(evaluation.model_dump(exclude_none=True)) == [
        "accuracy", "macro_f1", "calibration_error", "labels", "confusion",
    ]  # fmt: skip
    assert evaluation.confusion == [[1, 0], [1, 0]]


def test_with_very_many_labels_the_confused_ones_are_listed_instead_of_a_matrix():
    """1,000 labels as a matrix are a million numbers for each model."""
    names = [f"label {number}" for number in range(DENSE_LABELS + 1)]
    truth, predicted = np.array([0, 3, 3, 3, 1]), np.array([0, 1, 1, 2, 0])
    evaluation = detailed_metrics(truth, one_hot(predicted, len(names)), names)
    assert evaluation.confusion is None
    assert evaluation.confused == [("label 3", "label 1", 2), ("label 1", "label 0", 1), ("label 3", "label 2", 1)]
    assert detailed_metrics(truth, one_hot(truth, len(names)), names).confused == []
