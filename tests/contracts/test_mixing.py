"""TMix over every architecture: hidden states are mixed behind the layer that was asked for, and nowhere else."""

import numpy as np
import pytest
import torch

from clozify.config.recipe import load_recipe
from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.methods.mixtext import layer_list, mixing
from clozify.models.classifier import new_classifier
from tests.tiny import ARCHITECTURES

ORDER = torch.tensor([1, 2, 0])


@pytest.fixture
def made(tiny_folder, stars):
    def make(architecture):
        torch.manual_seed(0)
        recipe = load_recipe("paper", ["max_seq_length=24"])
        classifier = new_classifier(tiny_folder(architecture), stars, recipe, "cpu")
        from datasets import Dataset

        texts = ["a game", "utility for analysis of data and so on", "Mail! server?"]
        batch = classifier.encode(Rows(Dataset.from_dict({"text": texts}), stars)).batch(np.arange(3))
        classifier.scores(batch)  # tries the last layer, before layers are counted
        return classifier, batch

    return make


def states(classifier, batch):
    """What goes into every layer and out of the last."""
    seen = []
    hooks = [
        module.register_forward_hook(
            lambda _, inputs, output: seen.append((inputs[0], output[0] if isinstance(output, tuple) else output))
        )
        for module in layer_list(classifier.model)
    ]
    with torch.no_grad():
        scores = classifier.scores(batch, one_pass=True)
    for hook in hooks:
        hook.remove()
    return scores, seen


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_layer_behind_the_mixing_reads_mixed_states(architecture, made):
    """A hook on the wrong module would train an ordinary classifier under MixText's name."""
    classifier, batch = made(architecture)
    plain, before = states(classifier, batch)
    assert len(before) == classifier.model.config.num_hidden_layers == 2
    with mixing(classifier.model, 1, 0.7, ORDER):
        mixed, after = states(classifier, batch)
    expected = 0.7 * before[0][1] + 0.3 * before[0][1][ORDER]
    assert torch.allclose(after[1][0], expected, atol=1e-5)
    assert not torch.allclose(mixed, plain, atol=1e-4)
    assert torch.equal(states(classifier, batch)[0], plain)  # the hooks are gone


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layer", [1, 2])
def test_lambda_one_is_the_plain_forward_pass_and_so_is_a_row_with_itself(architecture, layer, made):
    classifier, batch = made(architecture)
    plain, _ = states(classifier, batch)
    for share, order in ((1.0, ORDER), (0.4, torch.arange(3))):
        with mixing(classifier.model, layer, share, order):
            result, _ = states(classifier, batch)
        assert torch.allclose(result, plain, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_reach_the_encoder_through_both_rows(architecture, made):
    classifier, batch = made(architecture)
    seen = []
    first = layer_list(classifier.model)[0]
    hook = first.register_forward_hook(
        lambda _, __, output: seen.append(output[0] if isinstance(output, tuple) else output)
    )
    with mixing(classifier.model, 1, 0.7, ORDER):
        scores = classifier.scores(batch, one_pass=True)
    hook.remove()
    (gradient,) = torch.autograd.grad(scores[0].sum(), seen[0])  # what came out before it was mixed
    touched = gradient.abs().sum(dim=(1, 2)) > 0
    assert touched.tolist() == [True, True, False]  # row 0 is mixed with row 1


def test_a_layer_that_the_model_does_not_have_is_an_error(made):
    classifier, batch = made("bert")
    with pytest.raises(ModelError, match="ran 2 layers; MixText cannot mix behind layer 3"):  # noqa: SIM117
        with mixing(classifier.model, 3, 0.7, ORDER):
            classifier.scores(batch, one_pass=True)
