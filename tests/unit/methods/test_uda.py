"""UDA on hand-made tensors and a tiny model, each number against the formula written out."""

import math

import numpy as np
import pytest
import torch

from clozify.config.recipe import Uda, load_recipe
from clozify.methods import uda as module
from clozify.methods.uda import annealing_threshold, consistency, uda
from clozify.models.classifier import new_classifier
from clozify.training.loop import TrainingSetup
from clozify.training.losses import annealed_cross_entropy

ORIGINAL = torch.tensor([[2.0, 0.5, 0.0], [0.1, 0.0, 0.05], [-1.0, 3.0, 0.0], [0.0, 0.4, 1.9]])
AUGMENTED = torch.tensor([[1.0, 0.7, 0.2], [0.0, 2.0, 0.0], [0.5, 0.5, 0.4], [0.3, 0.0, 0.1]])


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("linear", (0, 0.5, 1)),
        ("exponential", (math.exp(-5), math.exp(-2.5), 1)),
        ("log", (0, 1 - math.exp(-2.5), 1 - math.exp(-5))),
        ("none", (1, 1, 1)),
    ],
)
def test_the_threshold_rises_from_chance_to_one_by_its_schedule(schedule, shares):
    """A schedule that starts above chance would let the few labelled rows be learned by heart at once."""
    for progress, share in zip((0, 0.5, 1), shares, strict=True):
        assert annealing_threshold(schedule, progress, 4) == pytest.approx(share * 0.75 + 0.25)


def test_rows_beyond_the_threshold_do_not_count_in_the_mean_either():
    scores, labels = torch.tensor([[3.0, 0.0], [0.0, 0.5], [0.2, 0.0]]), torch.tensor([0, 1, 1])
    p = [math.exp(3) / (math.exp(3) + 1), math.exp(0.5) / (math.exp(0.5) + 1), 1 / (math.exp(0.2) + 1)]
    assert p[0] > 0.7 > p[1] > p[2]
    assert annealed_cross_entropy(scores, labels, 0.7).item() == pytest.approx(-(math.log(p[1]) + math.log(p[2])) / 2)
    assert annealed_cross_entropy(scores, labels, 0.1).item() == 0  # none counts, and nothing is divided by 0
    weighted = annealed_cross_entropy(scores, labels, 1.0, torch.tensor([2.0, 0.5])).item()
    assert weighted == pytest.approx(-(2 * math.log(p[0]) + 0.5 * math.log(p[1]) + 0.5 * math.log(p[2])) / 3)


def naive_consistency(settings):
    total, confident = 0.0, 0
    for original, augmented in zip(ORIGINAL.tolist(), AUGMENTED.tolist(), strict=True):
        plain = [math.exp(s) for s in original]
        if max(plain) / sum(plain) <= settings.uda_confidence_thresh:
            continue
        confident += 1
        on, off = (settings.uda_softmax_temp, 1) if settings.sharpened == "original" else (1, settings.uda_softmax_temp)
        p, q = [math.exp(s / on) for s in original], [math.exp(s / off) for s in augmented]
        total += sum(a / sum(p) * math.log((a / sum(p)) / (b / sum(q))) for a, b in zip(p, q, strict=True))
    return total / (confident if settings.mean_over == "confident" else len(ORIGINAL))


@pytest.mark.parametrize("sharpened", ["original", "augmented"])
@pytest.mark.parametrize("mean_over", ["all", "confident"])
def test_consistency_is_the_masked_divergence_written_out(sharpened, mean_over):
    settings = Uda(sharpened=sharpened, mean_over=mean_over, uda_confidence_thresh=0.5, uda_softmax_temp=0.4)
    assert consistency(ORIGINAL, AUGMENTED, settings).item() == pytest.approx(naive_consistency(settings), rel=1e-5)


def test_the_prediction_on_the_original_gets_no_gradients():
    """Else the model could agree with itself by making every prediction vague."""
    original, augmented = ORIGINAL.clone().requires_grad_(), AUGMENTED.clone().requires_grad_()
    consistency(original, augmented, Uda()).backward()
    assert original.grad is None
    assert augmented.grad[0].abs().sum() > 0
    assert augmented.grad[1].abs().sum() == 0  # below the threshold


@pytest.fixture
def classifier(tiny_folder, stars):
    torch.manual_seed(1)
    made = new_classifier(tiny_folder("bert"), stars, load_recipe("paper", ["max_seq_length=24"]), "cpu")
    for part in made.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    made.model.train()
    return made


def encoded(classifier, texts):
    from datasets import Dataset

    from clozify.data.rows import Rows

    return classifier.encode(Rows(Dataset.from_dict({"text": texts}), classifier.task))


def test_a_step_is_both_losses_over_the_rows_it_drew(classifier, monkeypatch):
    """Rows put together in one order and read in another would tie a row to another's augmentation without a word."""
    labeled, labels = encoded(classifier, ["a fine game", "a slow tool", "mail"]), np.array([0, 1, 2], dtype=np.int16)
    texts = [f"{word} and {word}" for word in "game tool mail server data python".split()]
    unlabeled = encoded(classifier, texts)
    versions = [encoded(classifier, [f"{text} {mark}" for text in texts]) for mark in ("for all", "in the world of it")]
    settings = Uda(uda_confidence_thresh=0.0, max_steps=4, per_gpu_train_batch_size=2, per_gpu_unlabeled_batch_size=5)
    seen = {}
    monkeypatch.setattr(module, "train", lambda model, loss, *_, **__: seen.update(loss=loss) or [])
    monkeypatch.setattr(module, "cycle_batches", lambda rows, count, rng: iter([rng.permutation(rows)[:count]]))
    rng = np.random.default_rng(3)
    uda(classifier, labeled, labels, unlabeled, versions, TrainingSetup(settings, rng, None))
    result = seen["loss"](2).item()

    again = np.random.default_rng(3)
    chosen, others = again.permutation(3)[:2], again.permutation(6)[:5]
    which = again.integers(2, size=5)

    def score(of, row):
        with torch.no_grad():
            return classifier.scores(of.batch(np.array([row])))[0]

    most = math.exp((2 / 4 - 1) * 5) * (2 / 3) + 1 / 3
    losses = [-torch.log_softmax(score(labeled, row), -1)[labels[row]].item() for row in chosen]
    kept = [loss for loss in losses if math.exp(-loss) <= most]
    kl = 0.0
    for row, version in zip(others, which, strict=True):
        p = torch.softmax(score(unlabeled, row) / 0.85, -1)
        kl += (p * (p.log() - torch.log_softmax(score(versions[version], row), -1))).sum().item()
    assert result == pytest.approx(sum(kept) / max(1, len(kept)) + kl / 5, rel=1e-4)


def test_the_warm_up_is_a_share_of_the_steps_that_are_tried():
    """A fixed number would be all of a short training and nothing of a long one."""
    assert Uda().with_warmup_steps(10).warmup_steps == 1000
    assert Uda().with_steps(500).with_warmup_steps(10).warmup_steps == 50
    assert Uda(warmup_steps=7).with_warmup_steps(10).warmup_steps == 7
