import math

import numpy as np
import pytest
import torch

from clozify.config.recipe import Training
from clozify.methods.distill import soft_labels
from clozify.methods.ensemble import combine_scores
from clozify.methods.masking import mask_tokens
from clozify.training.loop import balanced_batches, cycle_batches
from clozify.training.losses import contrastive_loss, cross_entropy, distillation_loss, joint_loss, masked_lm_loss


def log_softmax(row):
    total = sum(math.exp(s) for s in row)
    return [math.log(math.exp(s) / total) for s in row]


def test_cross_entropy_is_the_mean_of_minus_log_q_of_the_true_label():
    scores = torch.tensor([[1.0, 2.0, 0.5], [0.1, -1.0, 3.0]])
    expected = -(log_softmax([1.0, 2.0, 0.5])[1] + log_softmax([0.1, -1.0, 3.0])[0]) / 2
    assert cross_entropy(scores, torch.tensor([1, 0])).item() == pytest.approx(expected, abs=1e-6)


def test_the_language_modelling_loss_is_a_mean_within_each_micro_batch_and_then_over_them():
    """One mean over all tokens would let long rows count more than the paper's micro-batches do."""
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    tokens, counts = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([3, 3, 3, 2, 2])
    each = [-log_softmax(row)[t] for row, t in zip(scores.tolist(), tokens.tolist(), strict=True)]
    expected = (sum(each[:3]) / 3 + 0 + sum(each[3:]) / 2 + 0) / 4
    assert masked_lm_loss(scores, tokens, counts, 4).item() == pytest.approx(expected, abs=1e-5)


def test_a_step_without_a_masked_token_has_no_language_modelling_loss():
    """0 / 0 would make the whole step's loss no number."""
    empty = torch.empty(0, dtype=torch.long)
    assert masked_lm_loss(torch.empty(0, 7), empty, empty, 4).item() == 0


def test_the_joint_loss_weighs_language_modelling_by_alpha():
    assert joint_loss(torch.tensor(2.0), torch.tensor(10.0), 0.1).item() == pytest.approx(0.9 * 2 + 0.1 * 10)


def test_distillation_is_the_cross_entropy_with_the_soft_labels():
    scores, targets = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.3, 0.7]])
    log_q = log_softmax([0.5, 1.0])
    assert distillation_loss(scores, targets, 2.0).item() == pytest.approx(-(0.3 * log_q[0] + 0.7 * log_q[1]), abs=1e-6)


def test_members_are_averaged_with_their_weights_before_the_softmax():
    scores = [np.array([[1.0, 2.0]], np.float32), np.array([[3.0, -1.0]], np.float32)]
    assert np.allclose(combine_scores(scores, [0.5, 0.25]), [[(0.5 * 1 + 0.25 * 3) / 0.75, (0.5 * 2 - 0.25) / 0.75]])
    q = soft_labels(np.array([[1.0, 2.0]]), 2.0)
    assert np.allclose(q, [[math.exp(0.5) / (math.exp(0.5) + math.e), math.e / (math.exp(0.5) + math.e)]])


def test_weights_that_are_all_zero_count_as_equal():
    """A division by zero in the authors' code."""
    scores = [np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 0.0]], np.float32)]
    assert np.allclose(combine_scores(scores, [0.0, 0.0]), [[2.0, 1.0]])


def test_batches_go_through_the_rows_again_and_again_in_new_orders():
    """Ten rows and batches of sixteen: every step is whole, and no row is seen twice before all were seen once."""
    draw = cycle_batches(10, 16, np.random.default_rng(0))
    seen = np.concatenate([next(draw) for _ in range(5)])
    assert len(seen) == 80
    for start in range(0, 80, 10):
        assert sorted(seen[start : start + 10]) == list(range(10))


def test_epochs_count_rows_and_steps_are_exact():
    assert Training(num_train_epochs=3).steps(100) == 19  # 300 rows in sixteens, the last one not full
    assert Training().steps(3) == 250


@pytest.fixture
def batch(tiny):
    from clozify.config.pattern import Pattern
    from clozify.prompts.encode import EncodedRows, compile_pattern

    tokenizer = tiny("bert").tokenizer
    template = compile_pattern(Pattern("It was {mask}. {text}"), tokenizer)
    texts = ["a game for children " * n for n in range(1, 9)]
    columns = {c: c.tokenize(tokenizer, texts) for c in template.fields}
    return tokenizer, EncodedRows(template, columns, 60).batch(np.arange(8))


def test_the_cloze_slot_padding_and_special_tokens_are_never_predicted(batch):
    tokenizer, rows = batch
    rng = np.random.default_rng(0)
    drawn = 0
    for _ in range(50):
        _, targets = mask_tokens(rows, tokenizer, rng, 0.15)
        assert (rows.attention_mask[targets.rows, targets.positions] == 1).all()
        assert not tokenizer.is_special[targets.tokens].any()
        assert (targets.positions != rows.mask_positions[targets.rows]).all()
        assert (targets.tokens == rows.input_ids[targets.rows, targets.positions]).all()
        drawn += len(targets.rows)
    text = int((rows.attention_mask.astype(bool) & ~tokenizer.is_special[rows.input_ids]).sum())
    assert drawn / (50 * text) == pytest.approx(0.15, abs=0.02)


def test_eight_in_ten_chosen_tokens_are_masked_and_one_stays(batch):
    tokenizer, rows = batch
    rng = np.random.default_rng(0)
    fates = []
    for _ in range(80):
        masked, targets = mask_tokens(rows, tokenizer, rng, 0.15)
        now = masked.input_ids[targets.rows, targets.positions]
        fates += np.where(now == tokenizer.mask_id, 0, np.where(now == targets.tokens, 2, 1)).tolist()
    shares = np.bincount(fates) / len(fates)
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)


def test_the_authors_targets_include_padding_and_the_cloze_slot(batch):
    tokenizer, rows = batch
    rng = np.random.default_rng(0)
    result = [mask_tokens(rows, tokenizer, rng, 0.15, "all")[1] for _ in range(30)]
    assert any((rows.attention_mask[t.rows, t.positions] == 0).any() for t in result)
    assert any((t.positions == rows.mask_positions[t.rows]).any() for t in result)


def test_the_contrastive_loss_equals_its_formula_row_by_row():
    states = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels = [0, 1, 0, 0, 2]  # rows 1 and 4 have no other of their label
    z = [row / row.norm() for row in states]
    expected = []
    for i in (0, 2, 3):
        others = [a for a in range(5) if a != i]
        log_p = dict(zip(others, log_softmax([float(z[i] @ z[a]) / 0.1 for a in others]), strict=True))
        same = [a for a in others if labels[a] == labels[i]]
        expected.append(-sum(log_p[a] for a in same) / len(same))
    assert contrastive_loss(states, torch.tensor(labels)).item() == pytest.approx(sum(expected) / 3, abs=1e-5)


def test_rows_without_another_of_their_label_have_no_contrastive_loss():
    states = torch.randn(3, 4, requires_grad=True)
    loss = contrastive_loss(states, torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(states.grad).all()


def test_balanced_batches_hold_every_label_equally_often():
    labels = np.array([0] * 20 + [1] * 2 + [3] * 5)
    batches = balanced_batches(labels, 6, np.random.default_rng(0))
    rows = np.concatenate([next(batches) for _ in range(20)])
    assert np.bincount(labels[rows]).tolist() == [40, 40, 0, 40]
    assert set(rows) == set(range(27))
