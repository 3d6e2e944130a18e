"""Several labels a row: zero points, folds, thresholds, and the losses, against naive references."""

import itertools
import math

import numpy as np
import pytest
import torch

from clozify.config.recipe import IPet
from clozify.data.decision import Decision
from clozify.methods.distill import soft_labels
from clozify.methods.ipet_label_sets import label_set_counts, select_label_sets, set_counts_to_draw
from clozify.methods.multilabel import (
    best_f1_threshold,
    best_metric,
    choose_thresholds,
    common_threshold,
    predict_highest,
    split_folds,
    zero_points_of,
)
from clozify.metrics import basic_metrics
from clozify.training.loop import balanced_batches, class_weights
from clozify.training.losses import binary_cross_entropy, contrastive_loss


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def naive_f1(truth, predicted):
    right = sum(t and p for t, p in zip(truth, predicted, strict=True))
    return 2 * right / max(1, sum(truth) + sum(predicted))


def test_the_loss_is_the_mean_over_rows_of_the_sum_over_labels():
    scores = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    targets = torch.tensor([[1.0, 0.0], [0.25, 1.0]])
    expected = 0.0
    for row, row_targets in zip(scores.tolist(), targets.tolist(), strict=True):
        for s, t in zip(row, row_targets, strict=True):
            expected -= (t * math.log(sigmoid(s)) + (1 - t) * math.log(1 - sigmoid(s))) / 2
    assert binary_cross_entropy(scores, targets).item() == pytest.approx(expected, abs=1e-6)


def test_the_contrastive_loss_is_weighted_by_the_labels_that_rows_share():
    states = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    z = torch.nn.functional.normalize(states, dim=-1)
    losses = []
    for i in range(4):
        others = [j for j in range(4) if j != i]
        log_p = torch.log_softmax(torch.stack([z[i] @ z[j] / 0.1 for j in others]), dim=0)
        sets = [set(np.flatnonzero(labels[j].numpy())) for j in (i, *others)]
        weights = [len(sets[0] & other) / max(1, len(sets[0] | other)) for other in sets[1:]]
        if sum(weights):
            losses.append(-sum(w * p for w, p in zip(weights, log_p, strict=True)) / sum(weights))
    assert contrastive_loss(states, labels).item() == pytest.approx(float(sum(losses)) / len(losses), abs=1e-5)


def test_rows_without_labels_have_no_contrastive_loss():
    assert contrastive_loss(torch.randn(3, 4), torch.zeros(3, 2)).item() == 0


def test_labels_start_at_the_logit_of_their_frequency():
    scores = np.random.default_rng(0).normal(5, 2, (2, 9, 3))
    targets = np.zeros((9, 3), dtype=np.int8)
    targets[:4, 1] = 1
    logits = scores - zero_points_of(scores, targets)[:, None]
    for pair, (label, count) in itertools.product(range(2), enumerate([0, 4, 0])):
        frequency = (count + 0.5) / 10
        assert logits[pair, :, label].mean() == pytest.approx(math.log(frequency / (1 - frequency)))


def test_folds_spread_every_labels_rows_and_those_without_labels():
    rng = np.random.default_rng(1)
    targets = (rng.random((60, 8)) < 0.15).astype(np.int8)
    folds = split_folds(targets, 3, seed=7)
    assert sorted(np.bincount(folds, minlength=3).tolist())[0] >= 15
    for label in np.flatnonzero(targets.sum(axis=0) >= 3):
        assert (np.bincount(folds[targets[:, label] == 1], minlength=3) > 0).all()
    without = np.bincount(folds[~targets.any(axis=1)], minlength=3)
    assert without.max() - without.min() <= 1
    assert (split_folds(targets, 3, seed=7) == folds).all()


def test_the_threshold_of_a_label_has_the_highest_f1_of_all():
    rng = np.random.default_rng(2)
    truth = (rng.random(40) < 0.3).astype(int)
    scores = truth + rng.normal(0, 1, 40)
    best = max(naive_f1(truth.tolist(), (scores >= t).astype(int).tolist()) for t in scores)
    chosen = (scores >= best_f1_threshold(scores, truth)).astype(int)
    assert naive_f1(truth.tolist(), chosen.tolist()) == pytest.approx(best)


@pytest.mark.parametrize(("metric", "name"), [("macro-f1", "macro_f1"), ("accuracy", "accuracy")])
def test_the_common_threshold_follows_the_tasks_metric(metric, name):
    rng = np.random.default_rng(3)
    targets = (rng.random((20, 3)) < 0.4).astype(np.int8)
    scores = 2 * targets + rng.normal(0, 1, (20, 3))
    values = [getattr(basic_metrics(targets, (scores >= t).astype(np.int8), 3), name) for t in np.sort(scores.ravel())]
    assert best_metric(scores, targets, metric) == pytest.approx(max(values))
    assert np.isfinite(common_threshold(scores, targets, metric))


def test_thresholds_of_labels_with_few_rows_stay_near_the_common_one():
    """A label with one row would else be predicted by chance."""
    rng = np.random.default_rng(4)
    targets = np.zeros((200, 3), dtype=np.int8)
    targets[:100, 0], targets[:2, 1] = 1, 1
    scores = rng.normal(0, 1, (200, 3)) + np.array([3.0, -3.0, 0.0]) + 4 * targets
    common = common_threshold(scores, targets, "micro-f1")
    strong, weak = choose_thresholds(scores, targets, "micro-f1", 10), choose_thresholds(scores, targets, "micro-f1", 0)
    assert strong[2] == weak[2] == pytest.approx(common)  # without rows, the common one
    assert abs(strong[1] - common) == pytest.approx(abs(weak[1] - common) * 2 / 12)
    assert abs(strong[0] - weak[0]) < 0.2 * abs(weak[0] - common) + 1e-9


def test_without_thresholds_the_highest_scores_of_all_rows_are_predicted():
    scores = np.array([[[3.0, 2.0], [1.0, -1.0], [0.0, -2.0]]])
    assert predict_highest(scores, 1.0)[0].tolist() == [[1, 1], [1, 0], [0, 0]]
    assert predict_highest(scores, 1 / 3)[0].tolist() == [[1, 0], [0, 0], [0, 0]]


def test_soft_labels_of_several_labels_are_sigmoids():
    soft = soft_labels(np.array([[2.0, -4.0]]), 2.0, multilabel=True)
    assert soft[0].tolist() == pytest.approx([sigmoid(1.0), sigmoid(-2.0)])


def test_every_label_and_no_label_are_drawn_equally_often():
    labels = np.array([[1, 0], [1, 0], [1, 1], [0, 0], [1, 0], [1, 0]])
    rng = np.random.default_rng(0)
    drawn = np.concatenate(list(itertools.islice(balanced_batches(labels, 3, rng), 100)))
    assert (drawn == 3).sum() == 100  # the only row without a label
    assert (drawn == 2).sum() > 100  # the only one with the second label


def test_weights_of_labels_have_a_mean_of_one():
    weights = class_weights(np.array([[1, 0], [1, 1], [1, 0], [1, 0]]), 2)
    assert weights.tolist() == pytest.approx([0.4, 1.6])


def test_a_decision_predicts_every_label_from_its_threshold_on():
    decision = Decision(["a", "b", "c"], (0.5, 0.2, 0.9))
    predicted = decision.predict(np.array([[0.5, 0.3, 0.8], [0.1, 0.1, 0.1]]))
    assert predicted.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert decision.names(predicted) == ["a|b", ""]
    assert decision.name_lists(predicted) == [["a", "b"], []]
    assert decision.certainty(np.array([[0.0, -1.0, -9.0]])).tolist() == pytest.approx([(0.5 + sigmoid(-1)) / 2])


def test_thresholds_at_a_temperature_predict_the_same_of_scores_divided_by_it():
    scores = np.random.default_rng(5).normal(0, 3, (50, 3))
    decision = Decision(["a", "b", "c"], (0.5, 0.2, 0.9))
    cooled = decision.at_temperature(2.0)
    before, after = decision.predict(decision.probabilities(scores)), cooled.predict(cooled.probabilities(scores / 2))
    assert (before == after).all()


def test_ipet_draws_rows_with_the_teachers_labels_and_rows_without_any():
    rng = np.random.default_rng(6)
    scores = rng.normal(-3, 1, (400, 3))
    scores[:100, 0] += 6  # rows with the first label
    scores[50:120, 1] += 6  # some of them with the second, too
    decision = Decision(["a", "b", "c"], (0.5, 0.5, 0.5))
    targets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]])
    assert label_set_counts(targets).tolist() == [2, 1, 0, 1]
    counts, capped = set_counts_to_draw(targets, 2, 400, IPet(d=3))
    assert (counts.tolist(), capped) == ([16, 8, 0, 8], False)
    selection = select_label_sets(scores, counts, decision, np.random.default_rng(0))
    assert (selection.labels == decision.predict(decision.probabilities(scores[selection.rows]))).all()
    assert 16 <= selection.labels[:, 0].sum() <= 24  # a row that was drawn for the second may have it, too
    assert selection.labels[:, 1].sum() >= 8
    assert (~selection.labels.any(axis=1)).sum() == 8
    assert selection.certainty > 0.8


def test_ipet_gives_a_label_that_is_never_predicted_no_rows():
    scores = np.full((50, 2), -5.0)
    scores[:10, 0] = 5
    decision = Decision(["a", "b"], (0.5, 0.5))
    selection = select_label_sets(scores, np.array([4, 4, 4]), decision, np.random.default_rng(0))
    assert selection.labels.sum(axis=0).tolist() == [4, 0]
