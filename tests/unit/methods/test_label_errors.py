"""Confident learning against its definition, row by row, and cross-fitting on made-up states."""

import numpy as np
import pytest

from clozify.methods import label_errors
from clozify.methods.label_errors import (
    FITS,
    FOLDS,
    JointStates,
    confident_labels,
    cross_fit,
    find_label_errors,
    find_label_set_errors,
    split_folds,
    trusted_rows,
)


def naive_errors(probabilities, labels):
    """The definition: thresholds, the likeliest label that reaches its own, errors by the probability of the label."""
    count = len(probabilities[0])
    thresholds = {}
    for label in range(count):
        of_label = [row[label] for row, row_label in zip(probabilities, labels, strict=True) if row_label == label]
        if of_label:
            thresholds[label] = sum(of_label) / len(of_label)
    errors = {}
    for index, (row, label) in enumerate(zip(probabilities, labels, strict=True)):
        reached = [j for j in thresholds if row[j] >= thresholds[j]]
        if reached and list(labels).count(label) > 1:
            best = max(reached, key=lambda j: row[j])
            if row[best] > row[label]:
                errors[index] = best
    return sorted(errors, key=lambda index: probabilities[index][labels[index]]), errors


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([0.4] * 5, 60)
    labels = np.array([rng.choice(4, p=row[:4] / row[:4].sum()) for row in probabilities])  # none of the last label
    labels[0] = 3 if (labels == 3).sum() != 1 else 2
    order, suggestions = naive_errors(probabilities, labels)
    errors = find_label_errors(probabilities, labels)
    assert errors.order[: len(order)].tolist() == order
    assert np.flatnonzero(errors.is_error).tolist() == sorted(order)
    assert {row: errors.suggestions[row] for row in order} == suggestions
    assert sorted(errors.order) == list(range(60))
    own = probabilities[errors.order, labels[errors.order]]
    assert (np.diff(own[len(order) :]) >= 0).all()


def test_a_row_that_reaches_no_threshold_has_no_confident_label():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    assert confident_labels(probabilities, np.array([0, 1, 0])).tolist() == [0, 1, -1]


def test_the_only_row_of_a_label_and_rows_whose_own_label_is_likelier_are_no_errors():
    """The threshold of the second label is 0.01, which all rows reach."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.99, 0.01]])
    assert not find_label_errors(probabilities, np.array([0, 0, 1])).is_error.any()


def made_up_states(rows=90, seed=0):
    """Two patterns whose h(x) and p(x) say in part which of three labels a row has."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % 3
    means = 2 * rng.normal(size=(3, 6))
    states = [means[truth] + rng.normal(size=(rows, 6)) for _ in range(2)]
    return truth, JointStates.of(states, [rng.normal(size=(3, 4)), rng.normal(size=(3, 4))])


def test_flipped_labels_are_found():
    truth, joint = made_up_states()
    labels = truth.copy()
    labels[:9] = (labels[:9] + 1) % 3
    errors = find_label_errors(cross_fit(joint, labels), labels)
    assert set(errors.order[:9]) == set(range(9))
    assert errors.suggestions[:9].tolist() == truth[:9].tolist()


def test_a_row_does_not_influence_its_own_probabilities():
    """Whatever label a row has, other rows score it; only the folds of rows of its labels change."""
    truth, joint = made_up_states()
    seen = []
    original = label_errors.fit_label_vectors

    def record(states, *others):
        seen.append(states)
        return original(states, *others)

    advanced = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_errors, "fit_label_vectors", record)
        cross_fit(joint, truth, advance=advanced.append)
    assert sum(advanced) == len(seen) == FITS
    folds = split_folds(truth, np.arange(90), seed=1)
    for fold, states in enumerate(seen[-FOLDS:]):
        held_out = joint.states[folds == fold]
        assert not any((states == row).all(axis=1).any() for row in held_out)


def test_joint_scores_are_the_mean_of_the_patterns():
    rng = np.random.default_rng(0)
    states, words = [rng.normal(size=(7, 5)) for _ in range(3)], [rng.normal(size=(2, 3)) for _ in range(3)]
    joint = JointStates.of(states, words)
    expected = np.mean([each[:, :3] @ u.T for each, u in zip(states, words, strict=True)], axis=0)
    np.testing.assert_allclose(joint.states[:, :9] @ joint.words.T, expected)
    assert joint.states.shape == (7, 15)


def test_folds_are_stratified_and_keep_groups_together():
    labels = np.repeat([0, 1, 2], 20)
    groups = np.arange(60)
    groups[[0, 1, 25]] = 0
    folds = split_folds(labels, groups, seed=0)
    assert folds[0] == folds[1] == folds[25]
    counts = np.array([np.bincount(folds[labels == label], minlength=FOLDS) for label in range(3)])
    assert counts.min() >= 3
    assert counts.max() <= 6


def test_a_label_that_would_lose_more_than_half_of_its_rows_keeps_all():
    labels = np.array([0, 0, 0, 1, 1, 1])
    is_error = np.array([True, True, False, True, False, False])
    assert trusted_rows(is_error, labels).tolist() == [True, True, True, False, True, True]


def test_few_rows_are_no_error():
    truth, joint = made_up_states(rows=4)
    assert cross_fit(joint, truth).shape == (4, 3)
    assert cross_fit(joint.first(1), truth[:1]).shape == (1, 3)


@pytest.mark.parametrize("seed", range(5))
def test_missing_and_superfluous_labels_are_those_of_the_definition(seed):
    """Each label is a question with two answers; the row with the least likely wrong answer comes first."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((60, 4)) < 0.3).astype(np.int64)
    probabilities = 1 / (1 + np.exp(-rng.normal(4.0 * truth - 2, 1.2)))
    targets = np.where(rng.random(truth.shape) < 0.08, 1 - truth, truth)
    targets[:, 3] = np.arange(60) == 5  # the only row of a label is not judged
    expected = {}
    for label in range(4):
        of_label = [[1 - p, p] for p in probabilities[:, label].tolist()]
        for row in naive_errors(of_label, targets[:, label].tolist())[0]:
            expected.setdefault(row, {})[label] = of_label[row][targets[row, label]]
    assert 5 not in expected or 3 not in expected[5]
    order = sorted(expected, key=lambda row: min(expected[row].values()))
    errors = find_label_set_errors(probabilities, targets)
    assert expected
    assert errors.order[: len(order)].tolist() == order
    assert np.flatnonzero(errors.is_error).tolist() == sorted(order)
    assert {row: np.flatnonzero(errors.suggestions[row] != targets[row]).tolist() for row in order} == {
        row: sorted(labels) for row, labels in expected.items()
    }


def made_up_label_sets(rows=120, seed=0):
    """States that say in part which of three labels a row has; some have several, some none."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((rows, 3)) < 0.4).astype(np.int64)
    states = [truth @ (5 * np.eye(3, 6)) + rng.normal(size=(rows, 6)) for _ in range(2)]
    return truth, JointStates.of(states, [rng.normal(size=(3, 4)), rng.normal(size=(3, 4))])


def test_changed_label_sets_come_first():
    """Confident learning calls the surest of them errors; the others follow by the probability of their answers."""
    truth, joint = made_up_label_sets()
    targets = truth.copy()
    changed = [(row, row % 3) for row in range(9)]
    for row, label in changed:
        targets[row, label] = 1 - targets[row, label]
    errors = find_label_set_errors(cross_fit(joint, targets), targets)
    first = set(errors.order[:9].tolist())
    assert len(first & set(range(9))) >= 8
    found = [(row, label) for row, label in changed if errors.suggestions[row, label] == truth[row, label]]
    assert len(found) >= 5


def test_folds_of_label_sets_keep_groups_together_and_few_rows_are_no_error():
    truth, joint = made_up_label_sets()
    groups = np.arange(120)
    groups[[3, 50, 99]] = 3
    folds = split_folds(truth, groups, seed=0)
    assert folds[3] == folds[50] == folds[99]
    assert np.bincount(folds).min() > 15
    assert cross_fit(joint.first(4), truth[:4]).shape == (4, 3)
    assert cross_fit(joint.first(1), truth[:1]).shape == (1, 3)


def test_a_label_of_sets_that_would_lose_more_than_half_of_its_rows_keeps_all():
    targets = np.array([[1, 0], [1, 1], [1, 0], [0, 1], [0, 1], [0, 0]])
    is_error = np.array([True, True, False, False, False, True])
    assert trusted_rows(is_error, targets).tolist() == [True, True, True, True, True, False]
