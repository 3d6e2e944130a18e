import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from clozify.config.task import load_task
from clozify.methods import static_student
from clozify.methods.static_student import (
    DEFAULT_INVERSE_PENALTY,
    INVERSE_PENALTIES,
    agreement,
    fit_static,
    lost_accuracy,
    select_features,
)
from clozify.models.static_classifier import SHIFT, StaticClassifier

WORDS = "alpha beta gamma delta epsilon zeta eta theta".split()
NO_ROWS = np.zeros(0, dtype=np.int64)


def make_texts(count: int, seed: int = 0) -> dict[str, list[str]]:
    rng = np.random.default_rng(seed)

    def field() -> list[str]:
        return [" ".join(rng.choice(WORDS, rng.integers(0, 7))) for _ in range(count)]

    return {"title": field(), "body": field()}


def naive_inputs(texts: dict[str, list[str]]) -> np.ndarray:
    """z of every row, as the module's docstring has it."""
    rows = []
    for fields in zip(*texts.values(), strict=True):
        counts: Counter = Counter()
        for text in fields:
            words = re.findall(r"\w+", text)
            counts.update(words)
            counts.update(itertools.pairwise(words))
        rows.append(counts)
    total = sum(rows, Counter())
    kept = [feature for feature, count in total.items() if count >= 2]
    document_count = {feature: sum(feature in row for row in rows) for feature in kept}
    idf = {feature: math.log((1 + len(rows)) / (1 + document_count[feature])) + 1 for feature in kept}
    inputs = np.zeros((len(rows), len(kept)))
    for index, row in enumerate(rows):
        norm = math.sqrt(sum(row[feature] * idf[feature] ** 2 for feature in kept)) or 1.0
        inputs[index] = [row[feature] * idf[feature] / norm for feature in kept]
    return inputs


def classifier_of(fit, labels: int) -> StaticClassifier:
    names = {str(index): f"word{index}" for index in range(labels)}
    return StaticClassifier(
        fit.weights, load_task({"fields": ["title", "body"], "patterns": ["{title}{mask}{body}"], "labels": names})
    )


@pytest.fixture
def exact(monkeypatch):
    """Let the optimizer run to the minimum, which the reference finds, too."""
    monkeypatch.setattr(static_student, "MAX_ITERATIONS", 2000)
    monkeypatch.setattr(static_student, "TOLERANCE", 1e-12)


def test_the_fit_is_logistic_regression_on_soft_labels(exact):
    texts = make_texts(60)
    targets = np.random.default_rng(1).dirichlet([0.5] * 3, size=60)
    inputs = naive_inputs(texts)
    reference = LogisticRegression(C=DEFAULT_INVERSE_PENALTY, tol=1e-8, max_iter=10_000).fit(
        np.tile(inputs, (3, 1)), np.repeat(np.arange(3), 60), sample_weight=targets.T.ravel()
    )
    scores = classifier_of(fit_static(texts, targets, NO_ROWS), 3).score_texts(texts)
    assert softmax(scores, axis=1) == pytest.approx(reference.predict_proba(inputs), abs=3e-3)


def test_with_several_labels_a_row_each_label_is_a_logistic_regression(exact):
    texts = make_texts(60)
    targets = np.random.default_rng(1).uniform(size=(60, 2))
    inputs = naive_inputs(texts)
    scores = classifier_of(fit_static(texts, targets, NO_ROWS, multilabel=True), 2).score_texts(texts)
    for label in range(2):
        weights = np.concatenate([1 - targets[:, label], targets[:, label]])
        reference = LogisticRegression(C=DEFAULT_INVERSE_PENALTY, tol=1e-8, max_iter=10_000).fit(
            np.tile(inputs, (2, 1)), np.repeat([0, 1], 60), sample_weight=weights
        )
        assert expit(scores[:, label]) == pytest.approx(reference.predict_proba(inputs)[:, 1], abs=3e-3)


def cross_entropy(scores: np.ndarray, targets: np.ndarray) -> float:
    return -float((targets * np.log(softmax(scores, axis=1))).sum())


def test_the_penalty_and_the_temperature_are_chosen_on_rows_that_are_held_out(monkeypatch):
    texts, held_out = make_texts(400), np.arange(0, 400, 10)
    has_alpha = np.array(["alpha" in row for row in map(" ".join, zip(*texts.values(), strict=True))])
    targets = np.where(has_alpha[:, None], [0.2, 0.8], [0.9, 0.1])
    fit = fit_static(texts, targets, held_out)
    best = cross_entropy(fit.held_out_scores, targets[held_out])
    assert fit.held_out_scores.shape == (40, 2)
    assert agreement(fit.held_out_scores, targets[held_out]) > 0.9
    for factor in (0.8, 1.25):
        assert cross_entropy(fit.held_out_scores * factor, targets[held_out]) > best
    smaller = INVERSE_PENALTIES[: INVERSE_PENALTIES.index(fit.inverse_penalty)]
    for inverse_penalty in smaller:
        monkeypatch.setattr(static_student, "INVERSE_PENALTIES", (inverse_penalty,))
        assert cross_entropy(fit_static(texts, targets, held_out).held_out_scores, targets[held_out]) > best


def test_where_nothing_can_be_learned_no_label_is_likely():
    noise = np.eye(2)[np.random.default_rng(0).integers(0, 2, 400)]
    fit = fit_static(make_texts(400), noise, np.arange(0, 400, 10))
    assert softmax(fit.held_out_scores, axis=1).max() < 0.8


def test_held_out_scores_are_of_weights_that_have_not_seen_the_rows(monkeypatch):
    monkeypatch.setattr(static_student, "INVERSE_PENALTIES", (1.0,))
    texts, held_out = make_texts(200), np.arange(0, 200, 10)
    targets = np.random.default_rng(0).dirichlet([1, 1], size=200)
    changed = targets.copy()
    changed[held_out] = targets[held_out][:, ::-1]
    one, other = (fit_static(texts, each, held_out).held_out_scores for each in (targets, changed))
    assert one / np.abs(one).max() == pytest.approx(other / np.abs(other).max(), abs=1e-4)  # T alone differs


def test_features_that_occur_once_or_share_a_slot_are_left_out(monkeypatch):
    assert len(select_features({"text": ["a b", "a c"]}, 2)) == 1  # a
    keys = select_features(make_texts(300), 2)
    assert len(keys) == len(np.unique(keys >> SHIFT)) == len(WORDS) + len(WORDS) ** 2
    monkeypatch.setattr(static_student, "MAX_WEIGHTS", 20)
    most_frequent = select_features({"text": ["x y"] * 9 + make_texts(20)["title"]}, 10)
    assert len(most_frequent) == 2


def test_texts_without_words_give_a_classifier_of_the_bias():
    fit = fit_static({"title": ["", "?"], "body": ["", "..."]}, np.array([[0.9, 0.1], [0.9, 0.1]]), NO_ROWS)
    (scores,) = classifier_of(fit, 2).score_texts({"title": ["a"], "body": ["b"]})
    assert softmax(scores) == pytest.approx([0.9, 0.1], abs=1e-2)


def test_agreement_and_lost_accuracy_compare_with_the_targets():
    targets = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.5, 0.0]])
    scores = np.array([[2.0, 0, 0], [0, 0, 1], [0, 1, 0]])
    assert agreement(scores, targets) == pytest.approx(1 / 3)
    assert lost_accuracy(scores, targets) == pytest.approx((0 + 0.3 + 0) / 3)
    assert agreement(np.array([[-1.0, 2], [3, -4]]), np.array([[0.2, 0.1], [0.9, 0.4]]), True) == 0.75
