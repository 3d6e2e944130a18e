"""The GPU optimisations give PyTorch's results: each kernel, each feature switched off, and whole runs.

python -m pytest -m gpu tests/integration/test_gpu.py
"""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from accelerate import Accelerator
from torch import nn

from clozify.config.recipe import Mixtext, Uda, load_recipe
from clozify.config.task import Task, load_task
from clozify.data.rows import read_rows
from clozify.gpu import fallback
from clozify.gpu.cuda_graphs import CudaGraphRunner
from clozify.gpu.features import FEATURES, without
from clozify.gpu.fp8_scoring import MIN_CAPABILITY, round_to_fp8
from clozify.gpu.fused_linear import fused_linear_layers
from clozify.gpu.options import GpuOptions
from clozify.inference.training import train
from clozify.methods.mixtext import mixtext
from clozify.methods.uda import uda
from clozify.models.builtin import builtin_folder
from clozify.models.classifier import Classifier, new_classifier
from clozify.training.loop import TrainingSetup, seed_everything
from tests.tiny import make_model

pytestmark = pytest.mark.gpu

SETTINGS = [
    "repetitions=1",
    "estimate.folds=0",
    "finetune.max_steps=10",
    "finetune.gradient_accumulation_steps=1",
    "finetune.learning_rate=5e-5",
    "distill.max_steps=10",
    "distill.gradient_accumulation_steps=1",
    "distill.learning_rate=2e-4",
    "max_seq_length=32",
]
# Largest |difference| / |scores| between two runs. With these settings, against float32 on a CPU, bf16 differs by 0.013
# (members), 0.012 (labels) and 0.16 (classifiers); a learning rate that is 30% too low by 0.15, 0.20 and 0.42.
MAX_ERRORS = {"members": 0.05, "labels": 0.05, "classifiers": 0.3}
Scores = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the built-in model without dropout, whose masks would differ between implementations."""
    path = tmp_path_factory.mktemp("gpu")
    shutil.copytree(builtin_folder("builtin:mini"), path / "model")
    config = json.loads((path / "model" / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (path / "model" / "config.json").write_text(json.dumps(config))
    return path


def run_scores(run: Path) -> Scores:
    """A run's soft labels, and the mean of its members' and of its classifiers' scores."""
    arrays: dict[str, list[np.ndarray]] = {}
    for path in run.rglob("*.npy"):  # <members or classifiers>/<key>/<rows>.npy; the key depends on the settings
        arrays.setdefault(f"{path.parent.parent.name}/{path.name}", []).append(np.load(path))
    labels = pd.read_parquet(run / "labels.parquet")
    probabilities = labels[[name for name in labels if name.startswith("probability_")]].to_numpy()
    return {name: np.mean(values, axis=0, dtype=np.float64) for name, values in arrays.items()} | {
        "labels": probabilities
    }


def run_pet(folder: Path, name: str, *settings: str, devices: str = "auto", model: str | None = None) -> Scores:
    """Run PET with two patterns of the sample task, and return its scores."""
    task = load_task("debian")
    task = Task.model_validate(task.model_dump() | {"patterns": task.patterns[:2]})
    sizes = {"labeled": 21, "unlabeled": 24, "test": 24}
    rows = {part: read_rows(f"builtin:{part}", task).select(np.arange(size)) for part, size in sizes.items()}
    train(
        task,
        rows["labeled"],
        folder / name,
        devices=devices,
        at_once=1,
        unlabeled=rows["unlabeled"],
        test=rows["test"],
        model=model or str(folder / "model"),
        recipe="paper",
        settings=[*SETTINGS, *settings],
    )
    return run_scores(folder / name)


@pytest.fixture(scope="module")
def reference(folder):
    return run_pet(folder, "reference")


def relative_errors(actual: Scores, expected: Scores) -> dict[str, float]:
    """|difference| / |scores| of each array."""
    assert actual.keys() == expected.keys()
    return {
        name: float(np.linalg.norm(array - expected[name]) / np.linalg.norm(expected[name]))
        for name, array in actual.items()
    }


def too_large(errors: dict[str, float]) -> dict[str, float]:
    """The errors above their limits."""
    return {name: error for name, error in errors.items() if error > MAX_ERRORS[name.split("/")[0]]}


@pytest.fixture
def captures(monkeypatch):
    """Counts the CUDA graphs that are captured."""
    counted: list[int] = []
    capture = CudaGraphRunner._capture

    def count(self, *arguments):
        capture(self, *arguments)
        counted.append(len(self.captured))

    monkeypatch.setattr(CudaGraphRunner, "_capture", count)
    return counted


def test_the_limits_reveal_a_learning_rate_that_is_too_low(folder, reference):
    """Otherwise the comparisons below would show nothing."""
    slow = run_pet(folder, "slow", "finetune.learning_rate=3.5e-5", "distill.learning_rate=1.4e-4")
    errors = relative_errors(slow, reference)
    assert too_large(errors) == errors


@pytest.mark.parametrize("feature", sorted(FEATURES - {"fp8_scoring"}))  # which is for wide models
def test_a_run_without_a_feature_gives_the_same_scores(folder, reference, captures, feature):
    with without(feature):
        actual = run_pet(folder, f"without-{feature}")
    errors = relative_errors(actual, reference)
    assert not too_large(errors), errors
    assert bool(captures) == (feature != "cuda_graphs")


def test_graphs_replay_exactly_what_eager_steps_compute(folder, reference):
    """The same kernels on the same numbers."""
    with without("cuda_graphs"):
        errors = relative_errors(run_pet(folder, "eager"), reference)
    assert max(errors.values()) < 1e-3, errors


def test_dropout_is_the_same_in_graphs_and_in_eager_steps(tmp_path):
    """A graph that repeats one dropout mask for ever trains a worse model."""
    graphs = run_pet(tmp_path, "graphs", model="builtin:mini")
    with without("cuda_graphs"):
        errors = relative_errors(run_pet(tmp_path, "eager", model="builtin:mini"), graphs)
    assert max(errors.values()) < 1e-3, errors


def test_custom_kernels_and_plain_pytorch_give_the_same_run(folder, reference, captures):
    actual = run_pet(folder, "torch", "kernels=torch")
    assert not captures
    errors = relative_errors(actual, reference)
    assert not too_large(errors), errors
    assert (actual["labels"].argmax(axis=1) == reference["labels"].argmax(axis=1)).mean() >= 0.9
    # of the ensemble: the classifier, after a few steps, hardly prefers one label, so its argmax is noise
    accuracies = [
        json.loads((folder / name / "metrics.json").read_text())["ensemble"]["accuracy"]
        for name in ("torch", "reference")
    ]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.1)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_float32_on_a_gpu_gives_the_scores_of_a_cpu(folder, kernels):
    on_gpu = run_pet(folder, f"float32-{kernels}", "precision=float32", f"kernels={kernels}")
    on_cpu = run_pet(folder, f"float32-cpu-{kernels}", "precision=float32", f"kernels={kernels}", devices="cpu")
    for name, expected in on_cpu.items():
        assert np.abs(on_gpu[name] - expected).max() < 1e-3, name


BASELINES = {
    "uda": (uda, Uda(max_steps=10, warmup_steps=1, learning_rate=1e-4, uda_confidence_thresh=0.0)),
    "mixtext": (
        mixtext,
        Mixtext(
            max_steps=10,
            learning_rate=1e-4,
            head_learning_rate=1e-3,
            lambda_u_hinge=0.1,
            per_gpu_train_batch_size=2,
            per_gpu_unlabeled_batch_size=2,
        ),
    ),
}
# Largest |difference| / |scores| between two trainings without dropout. On a CPU bf16 differs from float32 by 0.010
# (UDA) and 0.006 (MixText), a learning rate that is 30% too low by 0.70 and 1.36.
MAX_BASELINE_ERROR = 0.08


def train_baseline(
    method: str, model: str | Path, device: str = "cuda", *settings: str, max_length: int = 32
) -> dict[str, np.ndarray]:
    """Train the sample task by UDA or MixText; returns the classifier's weights, and its scores of the test rows."""
    task, (function, method_settings) = load_task("debian"), BASELINES[method]
    recipe = load_recipe("paper", [f"max_seq_length={max_length}", *settings])
    rng = seed_everything(0)
    classifier = new_classifier(model, task, recipe, "cpu")  # the same new head on every device
    options = GpuOptions.from_recipe(recipe)
    classifier = Classifier(
        classifier.model.to(device), classifier.tokenizer.hf_tokenizer, task, classifier.max_length, options
    )
    labeled, unlabeled = (read_rows(f"builtin:{part}", task).select(np.arange(40)) for part in ("labeled", "unlabeled"))
    versions = [unlabeled.select(np.roll(np.arange(40), shift)) for shift in (1, 2)]  # any texts will do
    setup = TrainingSetup(method_settings, rng, Accelerator(cpu=device == "cpu"))
    rows = classifier.encode(labeled), labeled.labels, classifier.encode(unlabeled)
    function(classifier, *rows, [classifier.encode(version) for version in versions], setup)
    scores = np.concatenate([scores for _, scores in classifier.score_rows(labeled, 2048)])
    weights = {name: tensor.cpu().numpy() for name, tensor in classifier.model.state_dict().items()}
    return weights | {"scores": scores}


@pytest.fixture(scope="module")
def models(folder, tmp_path_factory):
    """Models with dropout, the second without padding-free batches, and one without dropout."""
    mpnet = make_model("mpnet", tmp_path_factory.mktemp("mpnet"))
    return {"mini": "builtin:mini", "mpnet": mpnet, "without dropout": folder / "model"}


@pytest.mark.parametrize("model", ["mini", "mpnet"])
@pytest.mark.parametrize("method", BASELINES)
def test_graphs_of_the_baselines_replay_what_eager_steps_compute(models, captures, method, model):
    """With a threshold, a ramp or a layer recorded as a constant, the first step would be repeated for ever.

    Rows are not cut to one length: of a batch without padding, Transformers leaves out the mask in eager steps alone,
    and another attention kernel draws other dropout masks. The backward pass of attention adds up the gradients of long
    rows in any order, from which differences of up to 0.008 were seen.
    """
    graphs = train_baseline(method, models[model], max_length=256)
    assert captures
    count = len(captures)
    with without("cuda_graphs"):
        eager = train_baseline(method, models[model], max_length=256)
    assert len(captures) == count
    errors = relative_errors(eager, graphs)
    assert max(errors.values()) < 0.03, errors


@pytest.mark.parametrize("method", BASELINES)
def test_the_baselines_scores_are_those_of_a_cpu_whatever_is_switched_off(models, captures, method):
    expected = train_baseline(method, models["without dropout"], "cpu")["scores"]
    errors = {}
    for feature in (None, "packing", "master_weights", "cuda_graphs"):
        with without(*[feature] if feature else []):
            actual = train_baseline(method, models["without dropout"])["scores"]
        errors[feature] = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
    captures.clear()
    actual = train_baseline(method, models["without dropout"], "cuda", "kernels=torch")["scores"]
    errors["kernels=torch"] = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
    assert not captures
    assert max(errors.values()) < MAX_BASELINE_ERROR, errors


def test_steps_without_masked_tokens_train(folder):
    """With short rows it happens that the auxiliary task masks nothing."""
    actual = run_pet(folder, "unmasked", "finetune.mlm_probability=1e-9")
    assert all(np.isfinite(array).all() for array in actual.values())


def test_a_run_whose_graphs_cannot_be_captured_goes_on_eagerly_and_warns_once(folder, reference, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(fallback, "_warned", set())
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        errors = relative_errors(run_pet(folder, "no-graphs"), reference)
    messages = [str(warning.message) for warning in caught if "CUDA graphs" in str(warning.message)]
    assert len(messages) == 1, messages
    assert "no graphs today" in messages[0]
    assert not too_large(errors), errors


def test_the_layernorm_kernels_match_pytorch():
    from tests.unit.gpu.test_fused_layernorm import compare_dropout, compare_model, compare_with_formula

    for dropout in (0.0, 0.25):
        for rows, size in ((11, 24), (3, 32), (700, 1024)):
            compare_with_formula(dropout, torch.float32, 1e-4, rows, size, "cuda")
            compare_with_formula(dropout, torch.bfloat16, 0.03, rows, size, "cuda")
    compare_dropout("cuda")
    compare_model("cuda")


def test_attention_for_short_rows_computes_the_formula():
    from tests.unit.gpu.test_short_attention import compare_with_formula

    for dropout in (0.0, 0.2):
        compare_with_formula(dropout, 0.03, torch.bfloat16, "cuda")


def test_the_fp8_kernels_match_pytorch():
    from tests.unit.gpu.test_fp8_scoring import compare_kernels, compare_rounding

    compare_kernels("cuda")
    compare_rounding("cuda")


def test_a_wide_encoder_in_fp8_gives_nearly_the_same_states():
    """On a GPU without fp8 it is left as it is, with a warning."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, vocab_size=99
    )
    plain = transformers.RobertaModel(config).to("cuda", torch.bfloat16).eval()
    fp8 = copy.deepcopy(plain)
    round_to_fp8(fp8)
    ids = torch.arange(60, device="cuda").view(4, 15) + 5
    with torch.inference_mode():
        expected, states = plain(input_ids=ids)[0], fp8(input_ids=ids)[0]
    has_fp8 = torch.cuda.get_device_capability() >= MIN_CAPABILITY
    assert bool((states != expected).any()) == has_fp8
    assert (states - expected).norm() < 0.15 * expected.norm()


def test_the_adamw_kernel_matches_pytorch():
    from tests.unit.gpu.test_master_weights import compare_kernel

    compare_kernel("cuda")


def test_fused_linear_layers_match_pytorch():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x):
            return self.query(x) * self.key(x) + self.value(x)

    torch.manual_seed(0)
    module = Attention().to("cuda", torch.bfloat16)
    x = torch.randn(300, 64, device="cuda", dtype=torch.bfloat16)
    exact = [p.detach().double().requires_grad_() for p in module.parameters()]
    q, k, v = ((x.double() @ weight.T + bias) for weight, bias in zip(exact[::2], exact[1::2], strict=True))
    expected = torch.autograd.grad((q * k + v).sin().sum(), exact)
    with fused_linear_layers(module):
        actual = torch.autograd.grad(module(x).double().sin().sum(), list(module.parameters()))
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() < 0.05 * other.norm()
