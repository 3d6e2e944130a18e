"""One step of fine-tuning equals the paper's equations written out naively, for every architecture."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clozify.config.recipe import Finetune, load_recipe
from clozify.methods.finetune import PairLoss, StepRows
from clozify.methods.masking import mask_tokens
from clozify.models.classifier import new_classifier
from clozify.models.cloze import load_model
from clozify.models.encoder import Encoder
from clozify.models.steps import StepInputs
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.utils.process_group import ProcessGroup, use_group
from tests.tiny import ARCHITECTURES


def naive_loss(model, question, batch, labels, masked, targets, alpha, micro_batches, helpers):
    """Row by row from full-vocabulary logits: -log q(l | x), and -log softmax at each masked token; then the means."""
    typed = model.model.config.model_type in ("bert", "albert", "electra")

    def logits(batch, row):
        length = int(batch.attention_mask[row].sum())
        inputs = {"input_ids": torch.from_numpy(batch.input_ids[row : row + 1, :length])}
        if typed:
            inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids[row : row + 1, :length])
        return model.model(**inputs).logits[0]

    words = question.words[0]
    ce = []
    for row, label in enumerate(labels):
        at_mask = logits(batch, row)[int(batch.mask_positions[row])]
        scores = torch.stack([at_mask[words.ids[np.flatnonzero(mean)]].mean() for mean in words.mean])
        ce.append(-torch.log(torch.exp(scores[label]) / torch.exp(scores).sum()))
    micro = []
    for number in range(micro_batches):
        losses = []
        for row in range(number * helpers, (number + 1) * helpers):
            of_row = logits(masked, row)
            losses += [
                -torch.log_softmax(of_row[targets.positions[at]], dim=-1)[targets.tokens[at]]
                for at in np.flatnonzero(targets.rows == row)
            ]
        micro.append(torch.stack(losses).mean() if losses else torch.zeros(()))
    return (1 - alpha) * torch.stack(ce).mean() + alpha * torch.stack(micro).mean()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradient_of_a_step_equal_the_paper_s_equations(architecture, tiny, rows):
    """A wrong weight or a leaked position trains a slightly other model, which no accuracy would show."""
    model = tiny(architecture)
    model.model.eval()  # dropout off
    questions = compile_task(model, rows.task)
    columns = questions.tokenize(model, rows, 0, len(rows))
    encoded = EncodedRows(questions.patterns[0].template, columns, 40)
    batch, labels = encoded.batch(np.array([0, 2, 3, 4])), np.array([0, 1, 2, 1])
    settings = Finetune(alpha=0.3)  # large, so that both parts show
    drawn = encoded.batch(np.array([2, 3, 4, 0, 1, 2, 3, 2, 0, 4, 3, 2]))
    masked, targets = mask_tokens(drawn, model.tokenizer, np.random.default_rng(1), settings.mlm_probability)
    losses, gradients = [], []
    step_rows = StepRows(batch, labels, masked, targets)
    pair_loss = PairLoss(model, questions.patterns[0].words[0], settings)
    ways = [
        "on a CPU",
        "in 3 processes",
        "in 20 processes",
        "on a GPU",
        *(["packed"] if model.supports_packing else []),
        "naive",
    ]
    assert model.supports_packing or architecture not in ("bert", "roberta", "xlm-roberta")
    assert not model.supports_packing or architecture != "modernbert"  # packing would lose its sliding window
    for way in ways:
        model.model.zero_grad()
        if way == "on a CPU":
            loss = pair_loss(step_rows)
        elif way.endswith("processes"):  # their losses, and so their gradients, are added
            loss, size = torch.zeros(()), int(way.split()[1])
            for rank in range(size):
                with use_group(ProcessGroup(rank, size)):  # of 20, some have no labelled row and some none at all
                    loss = loss + pair_loss(step_rows)
        elif way != "naive":  # padded to shapes that come again
            step = pair_loss.capturable_step(lambda: step_rows, packed=way == "packed")
            loss = step.loss({name: torch.from_numpy(array) for name, array in step.arrays().items()})
        else:
            loss = naive_loss(model, questions.patterns[0], batch, labels, masked, targets, 0.3, 4, 3)
        loss.backward()
        losses.append(loss.item())
        gradients.append({n: p.grad.clone() for n, p in model.model.named_parameters() if p.grad is not None})
    for loss, gradient in zip(losses[:-1], gradients[:-1], strict=True):
        assert loss == pytest.approx(losses[-1], abs=1e-5)
        assert gradient.keys() == gradients[-1].keys()
        for name, one in gradient.items():
            assert torch.allclose(one, gradients[-1][name], atol=1e-5, rtol=1e-3), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_classifier_scores_packed_rows_as_padded_ones(architecture, tiny_folder, rows):
    """A head that reads the wrong token trains on noise, on GPUs alone."""
    classifier = new_classifier(
        tiny_folder(architecture), rows.task, load_recipe("paper", ["max_seq_length=40"]), "cpu"
    )
    assert classifier.supports_packing or architecture not in ("bert", "roberta", "xlm-roberta")
    if not classifier.supports_packing:
        return
    encoded = classifier.encode(rows)
    batch = encoded.batch(np.arange(len(rows)))
    step = classifier.capturable_step(lambda: StepInputs({"rows": batch}, {}), lambda scores, _: scores("rows"), True)
    arrays = step.arrays()
    assert len(arrays["rows.input_ids"]) == 1
    with torch.inference_mode():
        results = step.loss({name: torch.from_numpy(array) for name, array in arrays.items()})
        assert torch.allclose(results, classifier.scores(batch), atol=1e-5)


class FromTheHost(TorchDispatchMode):
    """Remembers every operation that brings a tensor of the host to the device.

    A number that something is divided by is not brought there: it goes with the operation.
    """

    def __init__(self, monkeypatch):
        super().__init__()
        self.results = []
        make = torch.tensor

        def tensor(*arguments, **more):  # a device takes what it is made of from the host
            self.results.append("torch.tensor")
            return make(*arguments, **more)

        monkeypatch.setattr(torch, "tensor", tensor)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        touched = [part for part in tree_leaves((args, kwargs, result)) if isinstance(part, torch.Tensor)]
        if len({tensor.device.type for tensor in touched}) > 1 and operation != torch.ops.aten.div.Tensor:
            self.results.append(str(operation))
        return result


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_step_that_is_recorded_asks_nothing_of_the_host(architecture, tiny_folder, rows, monkeypatch):
    """A step that copies one number from the host cannot be recorded, and is several times slower on a GPU."""
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    model = load_model(tiny_folder(architecture), "cpu")
    questions = compile_task(model, rows.task)
    encoded = EncodedRows(questions.patterns[0].template, questions.tokenize(model, rows, 0, len(rows)), 40)
    batch, labels = encoded.batch(np.array([0, 2, 3, 4])), np.array([0, 1, 2, 1])
    masked, targets = mask_tokens(encoded.batch(np.arange(5)), model.tokenizer, np.random.default_rng(1), 0.15)
    step_rows = StepRows(batch, labels, masked, targets)
    pair_loss = PairLoss(model, questions.patterns[0].words[0], Finetune())
    steps = [(model.model, pair_loss.capturable_step(lambda: step_rows, model.supports_packing))]
    classifier = new_classifier(tiny_folder(architecture), rows.task, load_recipe("paper"), "cpu")
    of_classifier = classifier.encode(rows).batch(np.array([0, 2, 3, 4]))

    def loss(scores, inputs):
        return torch.nn.functional.cross_entropy(scores("rows"), inputs["labels"])

    of_step = StepInputs({"rows": of_classifier}, {"labels": labels})
    steps.append((classifier.model, classifier.capturable_step(lambda: of_step, loss, classifier.supports_packing)))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for 'meta'
    monkeypatch.setattr(Encoder, "to_device", lambda _, array: torch.from_numpy(array).to("meta"))
    for module, step in steps:
        inputs = {name: torch.from_numpy(array).to("meta") for name, array in step.arrays().items()}
        module.to("meta").train()
        step.loss(inputs)  # the first steps are not recorded
        with FromTheHost(monkeypatch) as host, torch.device("meta"):
            step.loss(inputs).backward()
        assert host.results == []
