"""Label vectors on a frozen encoder, against the formula written out."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from clozify.methods.frozen import (
    DEFAULT_PENALTY,
    PENALTIES,
    Centre,
    LabelVectors,
    choose_penalty,
    compute_states,
    fit_label_vectors,
    fit_logistic,
)
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows


def naive_scores(v, states, words, width, everything):
    """s(l | x) of the module's docstring, one row and label at a time."""
    mean = everything.mean(axis=0)
    norms = [np.sqrt(np.mean([np.sum(row**2) for row in (everything - mean)[:, part]])) for part in parts(width)]
    scores = np.zeros((len(states), len(words)))
    for row, state in enumerate(states):
        centred = state - mean
        scaled = np.concatenate(
            [*(centred[part] / norm for part, norm in zip(parts(width), norms, strict=True)), [1.0]]
        )
        for label, word in enumerate(words):
            scores[row, label] = word @ centred[:width] + v[label] @ scaled
    return scores


def parts(width):
    return slice(None, width), slice(width, None)


@pytest.mark.parametrize("rows", [3, 12])
def test_the_fit_minimises_the_documented_loss(rows):
    rng = np.random.default_rng(0)
    width, size, labels, penalty = 3, 5, 4, 0.3
    states, everything = rng.normal(size=(rows, size)) + 2, rng.normal(size=(20, size)) + 2
    words, truth = rng.normal(size=(labels, width)), rng.integers(labels, size=rows)

    def loss(v):
        v = v.reshape(labels, size + 1)
        scores = naive_scores(v, states, words, width, everything)
        picked = [scores[row, label] - np.log(np.exp(scores[row]).sum()) for row, label in enumerate(truth)]
        return penalty / 2 * (v**2).sum() - sum(picked)

    fitted, _ = fit_label_vectors(states, truth, words, Centre.of([everything[:7], everything[7:]], width), penalty)
    expected = minimize(loss, np.zeros(labels * (size + 1)), method="BFGS", options={"gtol": 1e-5}).x
    expected = naive_scores(expected.reshape(labels, -1), everything, words, width, everything)
    np.testing.assert_allclose(fitted.scores(everything), expected, atol=1e-3)


def test_without_rows_the_label_vectors_are_the_words_less_their_mean_score():
    rng = np.random.default_rng(0)
    everything, words = rng.normal(size=(9, 5)), rng.normal(size=(2, 3))
    fitted, penalty = fit_label_vectors(np.zeros((0, 0)), np.zeros(0, int), words, Centre.of([everything], 3))
    assert penalty is None
    raw = everything[:, :3] @ words.T
    np.testing.assert_allclose(fitted.scores(everything), raw - raw.mean(axis=0), atol=1e-6)


def test_the_penalty_is_low_where_rows_of_a_label_are_alike_and_high_where_words_know_more():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 4)
    clusters = np.eye(3)[labels] * 3 + rng.normal(size=(12, 3)) * 0.1
    noise, knowing = rng.normal(size=(12, 3)), np.eye(3)[labels] * 4
    assert choose_penalty(clusters, labels, np.zeros((12, 3))) == min(PENALTIES)
    assert choose_penalty(noise, labels, knowing) == max(PENALTIES)
    assert choose_penalty(noise[::4], labels[::4], knowing[::4]) == DEFAULT_PENALTY  # one row a label


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet", "albert"])
def test_transformed_states_times_the_words_vectors_are_the_label_scores(architecture, tiny, rows):
    model = tiny(architecture)
    for prompt in compile_task(model, rows.task).patterns:
        tokens = compile_task(model, rows.task).tokenize(model, rows, 0, len(rows))
        batch = EncodedRows(prompt.template, tokens, 40).batch(np.arange(len(rows)))
        with torch.inference_mode():
            states, means = model.transformed_and_mean_states(batch)
            vectors, biases = model.label_vectors(prompt.words[0])
            expected = model.label_scores(model.states_at_mask(batch), prompt.words[0])
            hidden = [
                model.encoder(torch.from_numpy(batch.input_ids[row : row + 1, :length]))[0][0].mean(dim=0)
                for row, length in enumerate(batch.attention_mask.sum(axis=1))
                if not batch.token_type_ids[row].any()
            ]
        assert torch.allclose(states @ vectors.T + biases, expected, atol=1e-4)
        if hidden:
            assert torch.allclose(means, torch.stack(hidden), atol=1e-4)


def test_states_do_not_depend_on_the_order_of_rows(tiny, rows):
    model = tiny("bert")
    prompts = compile_task(model, rows.task)
    tokens = prompts.tokenize(model, rows, 0, len(rows))
    forwards = compute_states(model, EncodedRows(prompts.patterns[0].template, tokens, 40))
    order = np.arange(len(rows))[::-1]
    selected = {field: tokens[field].select(order) for field in prompts.patterns[0].template.fields}
    backwards = compute_states(model, EncodedRows(prompts.patterns[0].template, selected, 40))
    np.testing.assert_allclose(forwards[order], backwards, atol=2e-2)


def test_label_vectors_survive_their_file():
    vectors = LabelVectors(np.arange(6.0).reshape(2, 3), np.array([7.0, 8.0]))
    assert (LabelVectors.from_array(vectors.to_array()).biases == vectors.biases).all()


def test_several_labels_a_row_are_fitted_like_scikit_learns_logistic_regressions():
    """Without words and offsets, every label is a logistic regression of its own."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(50, 6)), (rng.random((50, 3)) < 0.4).astype(np.int64)
    v = fit_logistic(features, targets, np.zeros((50, 3)), penalty=0.5)
    for label in range(3):
        expected = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-8).fit(features, targets[:, label])
        np.testing.assert_allclose(v[label], expected.coef_[0], atol=1e-3)


def test_label_vectors_of_label_sets_start_from_the_labels_frequencies():
    """With so large a penalty nothing is learned: the mean logit of each label is that of its frequency."""
    rng = np.random.default_rng(0)
    states, targets = rng.normal(size=(40, 8)), (rng.random((40, 3)) < [0.1, 0.3, 0.6]).astype(np.int64)
    centre = Centre.of([states], 5)
    vectors, penalty = fit_label_vectors(states, targets, rng.normal(size=(3, 5)), centre, 1e9)
    frequency = (targets.sum(axis=0) + 0.5) / 41
    np.testing.assert_allclose(vectors.scores(states).mean(axis=0), np.log(frequency / (1 - frequency)), atol=1e-4)
    assert penalty == 1e9
    assert fit_label_vectors(states, targets, rng.normal(size=(3, 5)), centre)[1] is not None
