"""What PET takes on the machine at hand, the straightforward way, by clozify and next to SetFit, all in one run.

The sample data with `--per-label` rows of each label, the built-in encoder, the recipe `auto` without an estimate of
the accuracy, one after the other:

- clozify: `clozify.train` from rows to a classifier on disk, then `predict`;
- straightforward: the same members, steps, rows and lengths with Transformers alone, in float32: rows are padded to the
  recipe's length, all layers are trained, logits are computed over the vocabulary at every position, rows are scored in
  batches of 8. A few steps and rows are timed, and multiplied by their number in the run;
- SetFit 1.2 with the same encoder and labelled rows, in the environment that `clozify bench` makes for it; `--setfit`
  names a Python, or a folder with its packages, instead.

    python benchmarks/performance.py [--per-label 4] [--setfit PYTHON] [--model builtin]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from training import seconds_of

import clozify
from clozify.bench.cell import WORKER, machine_name
from clozify.bench.environments import choose_environment, is_ready, make_environment
from clozify.bench.rivals import RIVALS
from clozify.bench.rivals.worker import Job
from clozify.config.auto import Conditions, fit_recipe
from clozify.config.recipe import Recipe, load_recipe
from clozify.models.classifier import new_classifier
from clozify.models.cloze import ClozeModel
from clozify.models.loading import count_encoder_parameters
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import Batch, EncodedRows

SETTINGS = ("estimate.folds=0",)
SCORING_BATCH = 8  # rows, as in the authors' code
Scores = Callable[[Batch], Tensor]  # a batch's scores of the labels, (rows, labels)


@dataclass(frozen=True)
class Measured:
    """What one way takes."""

    training: float  # seconds
    rows_per_second: float  # of predictions
    accuracy: float | None = None  # on the test rows


@dataclass(frozen=True)
class Data:
    """The rows and the recipe of the run."""

    task: clozify.Task
    labeled: clozify.Rows
    unlabeled: clozify.Rows
    test: clozify.Rows
    recipe: Recipe

    @property
    def members(self) -> int:
        """How many members the run trains."""
        return min(len(self.task.pairs), self.recipe.max_pairs or len(self.task.pairs)) * self.recipe.repetitions


def load_data(per_label: int, model: str, device: str) -> Data:
    """The sample data, and the recipe that `clozify.train` takes for it."""
    task = clozify.load_task("debian")
    labeled = clozify.few_shot(clozify.read_rows("builtin:labeled", task), per_label * len(task.labels))
    test = clozify.read_rows("builtin:test", task)
    unlabeled = clozify.read_rows("builtin:unlabeled", task).excluding(labeled, test)
    conditions = Conditions(
        device=device,
        encoder_parameters=count_encoder_parameters(model),
        labels=len(task.labels),
        labeled=len(labeled),
        unlabeled=len(unlabeled),
        method="pet",
    )
    recipe = load_recipe(fit_recipe(load_recipe("auto", SETTINGS), conditions), SETTINGS)
    count = min(recipe.unlabeled_rows or len(unlabeled), len(unlabeled))
    return Data(task, labeled, unlabeled.select(np.arange(count)), test, recipe)


def measure_clozify(data: Data, model: str, folder: Path) -> Measured:
    """`clozify.train`, then predictions of the test rows."""
    began = time.perf_counter()
    result = clozify.train(
        data.task, data.labeled, folder, unlabeled=data.unlabeled, model=model, settings=list(SETTINGS)
    )
    training = time.perf_counter() - began
    texts = [dict(zip(data.task.fields, row, strict=True)) for row in _fields(data.test)]
    result.predict(texts[:16])
    began = time.perf_counter()
    predicted = result.predict(texts).labels
    seconds = time.perf_counter() - began
    truth = [data.task.labels[index] for index in data.test.labels]
    accuracy = float(np.mean([one == other for one, other in zip(predicted, truth, strict=True)]))
    return Measured(training, len(texts) / seconds, accuracy)


def _fields(rows: clozify.Rows) -> list[tuple[str, ...]]:
    return list(zip(*(rows.texts(field) for field in rows.task.fields), strict=True))


class Straightforward:
    """Training steps and scores with Transformers alone, of rows padded to one length."""

    def __init__(self, data: Data, device: str, pad_id: int, steps: int) -> None:
        self.data, self.device, self.pad_id, self.steps = data, device, pad_id, steps
        self.rng = np.random.default_rng(0)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """A model's inputs."""
        extra = ((0, 0), (0, max(0, self.data.recipe.max_seq_length - batch.input_ids.shape[1])))
        ids = np.pad(batch.input_ids, extra, constant_values=self.pad_id)
        arrays = {"input_ids": ids, "attention_mask": np.pad(batch.attention_mask, extra)}
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    def seconds_per_step(self, module: Any, rows: EncodedRows, batch_size: int, scores: Scores) -> float:
        """The time of a training step."""
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5)

        def train(steps: int) -> None:
            for _ in range(steps):
                batch = rows.batch(self.rng.permutation(len(rows))[:batch_size])
                labels = torch.from_numpy(self.rng.integers(0, len(self.data.task.labels), batch_size)).to(self.device)
                functional.cross_entropy(scores(batch).float(), labels).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        module.train()
        train(1)
        seconds = seconds_of(lambda: train(self.steps)) / self.steps
        module.eval()
        return seconds

    @torch.no_grad()
    def seconds_per_row(self, rows: EncodedRows, scores: Scores) -> float:
        """The time of a row's scores."""

        def score(batches: int) -> None:
            for start in range(0, batches * SCORING_BATCH, SCORING_BATCH):
                scores(rows.batch(np.arange(start, start + SCORING_BATCH))).cpu()

        score(1)
        return seconds_of(lambda: score(self.steps)) / (self.steps * SCORING_BATCH)


def measure_straightforward(data: Data, model_name: str, device: str, steps: int) -> Measured:
    """The same members and the same classifier with Transformers alone, from the time of a few steps."""
    recipe, model = data.recipe, clozify.load_model(model_name, device)
    assert isinstance(model, ClozeModel)
    ways, prompts = Straightforward(data, device, model.tokenizer.pad_id, steps), compile_task(model, data.task)
    pattern, tokens = prompts.patterns[0], prompts.tokenize(model, data.unlabeled, 0, len(data.unlabeled))
    encoded = EncodedRows(pattern.template, tokens, recipe.max_seq_length)
    words = torch.as_tensor(np.asarray(pattern.words[0].ids).reshape(len(data.task.labels), -1)[:, 0], device=device)

    def label_scores(batch: Batch) -> Tensor:
        logits: Tensor = model.model(**ways.inputs(batch)).logits  # (rows, length, vocabulary)
        return logits[torch.arange(len(logits)), torch.from_numpy(batch.mask_positions)][:, words]

    settings = recipe.member_settings(False)
    member_steps = settings.steps(len(data.labeled))
    member = member_steps * ways.seconds_per_step(model.model, encoded, settings.rows_per_step, label_scores)
    member += len(data.unlabeled) * ways.seconds_per_row(encoded, label_scores)
    classifier = new_classifier(model_name, data.task, recipe, device)
    rows = classifier.encode(data.unlabeled)

    def classifier_scores(batch: Batch) -> Tensor:
        logits: Tensor = classifier.model(**ways.inputs(batch)).logits
        return logits

    step = ways.seconds_per_step(classifier.model, rows, recipe.distill.rows_per_step, classifier_scores)
    training = data.members * member + recipe.distill.steps(len(data.unlabeled)) * step
    return Measured(training, 1 / ways.seconds_per_row(rows, classifier_scores))


def measure_setfit(data: Data, model: str, device: str, named: str | None, folder: Path) -> Measured:
    """SetFit as `clozify bench` runs it."""
    rival = RIVALS["setfit"]
    if named is None and not is_ready(rival):
        make_environment(rival, print)
    environment = choose_environment(rival, named)
    clozify.load_model(model).save(folder / "encoder")
    (folder / "results").mkdir()
    files = {"labeled": data.labeled, "test": data.test}
    for name, rows in files.items():
        lines = [dict(zip(data.task.fields, row, strict=True)) for row in _fields(rows)]
        if name == "labeled":
            labels: NDArray[Any] = rows.labels
            lines = [line | {data.task.label: data.task.labels[i]} for line, i in zip(lines, labels, strict=True)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    job = Job(
        module=str(Path(getattr(rival, "__file__", "")).resolve()),
        fields=data.task.fields,
        labels=data.task.labels,
        label=data.task.label,
        labeled=str(folder / "labeled.jsonl"),
        unlabeled=None,
        test=str(folder / "test.jsonl"),
        task="",
        model=model,
        encoder=str(folder / "encoder"),
        device=device,
        seed=0,
        max_length=data.recipe.max_seq_length,
        output=str(folder / "results"),
        work=str(folder),
    )
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    command = [environment.python, "-P", str(WORKER), str(folder / "job.json"), str(os.getpid())]
    output = subprocess.run(command, env=environment.variables(), capture_output=True, text=True, check=False)
    if output.returncode:
        sys.exit(f"SetFit failed:\n{output.stderr[-2000:]}")
    measured = json.loads((folder / "results" / "measured.json").read_text(encoding="utf-8"))
    accuracy = float((np.load(folder / "results" / "predictions.npy") == data.test.labels).mean())
    return Measured(measured["training_seconds"], len(data.test) / measured["prediction_seconds"], accuracy)


def main(
    per_label: Annotated[int, typer.Option(help="Labelled rows of each label.")] = 4,
    model: Annotated[str, typer.Option(help="The encoder: a masked language model.")] = "builtin",
    setfit: Annotated[str | None, typer.Option(help="A Python with SetFit, or a folder with its packages.")] = None,
    steps: Annotated[int, typer.Option(help="Timed steps of the straightforward way.")] = 5,
) -> None:
    """Print the seconds of training and the predictions a second of each way."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = load_data(per_label, model, device)
    print(
        f"{machine_name(device)}, torch {torch.__version__}; {model}, {len(data.labeled)} labelled and "
        f"{len(data.unlabeled)} unlabelled rows, {data.members} members, {data.recipe.max_seq_length} tokens"
    )
    print("| | training | | predictions | | accuracy |\n|---|---|---|---|---|---|")
    reference: Measured | None = None
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], Measured]] = {
            "PET by clozify": lambda: measure_clozify(data, model, Path(folder) / "run"),
            "PET, straightforward (from a few steps)": lambda: measure_straightforward(data, model, device, steps),
            "SetFit": lambda: measure_setfit(data, model, device, setfit, Path(folder)),
        }
        for name, measure in ways.items():
            measured = measure()
            reference = reference or measured
            ratios = measured.training / reference.training, measured.rows_per_second / reference.rows_per_second
            accuracy = "" if measured.accuracy is None else f"{100 * measured.accuracy:.1f}"
            print(
                f"| {name} | {measured.training:,.0f} s | {ratios[0]:.1f}x | {measured.rows_per_second:,.0f} rows/s | "
                f"{ratios[1]:.2f}x | {accuracy} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
