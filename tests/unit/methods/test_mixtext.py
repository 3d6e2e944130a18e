"""MixText on hand-made tensors and a tiny model, each number against the formula written out."""

import math

import numpy as np
import pytest
import torch

from clozify.config.recipe import Mixtext
from clozify.methods import mixtext as module
from clozify.methods.mixtext import guess_labels, layers_to_mix, mixing, mixtext
from clozify.prompts.encode import concat_batches
from clozify.training.loop import TrainingSetup
from clozify.training.losses import entropy_above_margin, sharpen
from clozify.training.optim import make_optimizer, make_schedule
from tests.unit.methods.test_uda import classifier as classifier
from tests.unit.methods.test_uda import encoded


@pytest.mark.parametrize(
    ("layers", "expected"), [(12, [7, 9, 12]), (6, [4, 5, 6]), (24, [14, 18, 24]), (2, [2]), (1, [1])]
)
def test_layers_are_counted_of_twelve(layers, expected):
    assert layers_to_mix((7, 9, 12), layers) == expected


def test_sharpening_below_one_sharpens_and_above_one_flattens():
    """Appendix B's T = 5 would be taken for sharp; in the original code T divides the exponent."""
    p = torch.tensor([0.7, 0.2, 0.1])
    for temperature in (0.5, 5.0):
        raised = [x ** (1 / temperature) for x in p.tolist()]
        assert sharpen(p, temperature).tolist() == pytest.approx([x / sum(raised) for x in raised])
    assert sharpen(p, 0.5).max() > 0.7 > sharpen(p, 5.0).max()


def test_a_guess_is_the_weighted_mean_over_the_original_and_its_augmentations():
    scores = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, 0.0]])]
    p = [torch.softmax(part, -1)[0] for part in scores]
    mean = (p[0] + 0.5 * p[1] + 0.5 * p[2]) / 2
    result = guess_labels(scores, Mixtext(augmented_weight=0.5, temperature=0.5))[0]
    assert result.tolist() == pytest.approx((mean**2 / (mean**2).sum()).tolist())
    alone = guess_labels(scores, Mixtext(augmented_weight=0, temperature=1))[0]
    assert alone.tolist() == pytest.approx(p[0].tolist())


def test_only_entropy_beyond_the_margin_costs():
    scores = torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    assert entropy_above_margin(scores, 0.7).item() == pytest.approx((math.log(3) - 0.7) / 2)


TEXTS = ["a game for children", "data", "the mail server of the world and more", "a tool"]


def layer_by_layer(classifier, batch, layer, share, order):
    """BERT by hand: rows a and b one at a time up to the layer, mixed, then on with a's attention mask."""
    bert = classifier.model.bert

    def start(row):
        inputs = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids}
        states = bert.embeddings(**{name: torch.from_numpy(array[[row]]) for name, array in inputs.items()})
        mask = torch.from_numpy(batch.attention_mask[[row]])[:, None, None].bool()
        return states, mask

    result = []
    for a, b in enumerate(order):
        (states, mask), (others, mask_of_other) = start(a), start(b)
        for number, run in enumerate(bert.encoder.layer, start=1):
            states = run(states, mask)
            if number <= layer:
                others = run(others, mask_of_other)
            if number == layer:
                states = share * states + (1 - share) * others
        result.append(classifier.model.classifier(bert.pooler(states))[0])
    return torch.stack(result)


@pytest.mark.parametrize("layer", [1, 2])
def test_mixing_equals_running_both_rows_layer_by_layer(classifier, layer):
    batch, order = encoded(classifier, TEXTS).batch(np.arange(4)), [2, 0, 3, 1]
    with torch.no_grad():
        with mixing(classifier.model, layer, 0.6, torch.tensor(order)):
            result = classifier.scores(batch, one_pass=True)
        expected = layer_by_layer(classifier, batch, layer, 0.6, order)
        assert torch.allclose(result, expected, atol=1e-5)
        assert not torch.allclose(result, classifier.scores(batch), atol=1e-3)


@pytest.mark.parametrize("hinge", [0.0, 0.3])
def test_a_step_mixes_states_and_labels_by_the_same_lambda_and_order(classifier, monkeypatch, hinge):
    """Labels mixed in another order than states would teach noise, and the loss would still fall."""
    labeled, labels = encoded(classifier, TEXTS[:3]), np.array([0, 1, 2], dtype=np.int16)
    unlabeled = encoded(classifier, ["server data", "a game of mail", "python"])
    versions = [encoded(classifier, ["data of a server", "mail", "for python"])]
    settings = Mixtext(max_steps=4, per_gpu_train_batch_size=2, per_gpu_unlabeled_batch_size=2, lambda_u=0.5)
    settings = settings.model_copy(update={"lambda_u_hinge": hinge, "margin": 0.1})
    seen = {}
    monkeypatch.setattr(module, "train", lambda model, loss, *_, **__: seen.update(loss=loss) or [])
    monkeypatch.setattr(module, "cycle_batches", lambda rows, count, rng: iter([rng.permutation(rows)[:count]]))
    mixtext(classifier, labeled, labels, unlabeled, versions, TrainingSetup(settings, np.random.default_rng(5), None))
    result = seen["loss"](1).item()

    again = np.random.default_rng(5)
    chosen, others = again.permutation(3)[:2], again.permutation(3)[:2]
    share = again.beta(16, 16)
    share = max(share, 1 - share)
    order = again.permutation(6)
    with torch.no_grad():
        p = [torch.softmax(classifier.scores(of.batch(others)), -1) for of in (unlabeled, *versions)]
        guess = ((p[0] + p[1]) / 2) ** (1 / 5)
        guess = guess / guess.sum(-1, keepdim=True)
        targets = torch.cat([torch.eye(3)[labels[chosen]], guess, guess])
        batch = concat_batches(
            [labeled.batch(chosen), versions[0].batch(others), unlabeled.batch(others)], classifier.tokenizer.pad_id
        )
        logs = torch.log_softmax(layer_by_layer(classifier, batch, 2, share, order.tolist()), -1)
    expected = 0.0
    for row in range(6):
        target = share * targets[row] + (1 - share) * targets[order[row]]
        if row < 2:
            expected += -(target * logs[row]).sum().item() / 2
        else:
            expected += 1 / 4 * 0.5 * (target * (target.log() - logs[row])).nan_to_num().sum().item() / 4
    for of_row in p[0]:  # the originals, which are not mixed
        expected += 1 / 4 * hinge * max(0.0, -(of_row * of_row.log()).sum().item() - 0.1) / 2
    assert result == pytest.approx(expected, rel=1e-4)


def test_the_classification_layer_has_a_learning_rate_of_its_own(classifier, monkeypatch):
    """At the encoder's rate a fresh head would hardly move."""
    seen = {}
    monkeypatch.setattr(module, "train", lambda model, loss, setup, rows, rates, bf16: seen.update(rates=rates) or [])
    one = encoded(classifier, ["a"])
    setup = TrainingSetup(Mixtext(), np.random.default_rng(0), None)
    mixtext(classifier, one, np.zeros(1, np.int16), one, [one], setup)
    model = classifier.model
    optimizer = make_optimizer(model, Mixtext(weight_decay=0.5), seen["rates"])
    rate = {id(p): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]}
    assert len(rate) == len(list(model.parameters()))
    assert {rate[id(p)][0] for p in model.bert.parameters()} == {5e-6}
    assert (rate[id(model.classifier.weight)], rate[id(model.classifier.bias)]) == ((5e-4, 0.5), (5e-4, 0.0))


def test_learning_rates_stay_as_they_are_unless_asked_to_fall():
    assert Mixtext().decay_steps(10) is None
    assert Mixtext(learning_rate_decay=True).decay_steps(10) == 5000
    settings = Mixtext(warmup_steps=2)
    schedule = make_schedule(make_optimizer(torch.nn.Linear(1, 1), settings), settings, 10)
    assert [schedule.lr_lambdas[0](step) for step in (0, 1, 2, 10**6)] == [0, 0.5, 1, 1]
