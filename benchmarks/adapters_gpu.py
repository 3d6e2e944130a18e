"""Twelve members on one device: whole, as LoRA adapters one after another, and as adapters in one batch.

AG's News with 50 labelled rows. Every way trains the same members (pattern, seed, training rows, order of rows) with
the same recipe, whose learning rate for adapters is another than for whole members. Prints for each the seconds of
training, the steps of all members per second, the peak of the GPU's memory (reserved by PyTorch, the model included),
and the accuracy of the members and of their ensemble (equal weights) on test rows. Every way first takes a few steps
that are not counted. CLOZIFY_AGNEWS_FOLDER names a folder with `train_first1000_per_class.csv`, `train_pool.csv` and
`test.csv` (headerless: class, title, description); the pool is read only for the auxiliary language modelling.

    CLOZIFY_AGNEWS_FOLDER=data/ag_news python benchmarks/adapters_gpu.py --model FOLDER
    CLOZIFY_AGNEWS_FOLDER=data/ag_news python benchmarks/adapters_gpu.py --model builtin:mini --steps 2 --test 50
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from clozify.config.recipe import load_recipe
from clozify.config.task import load_task
from clozify.data.few_shot import few_shot
from clozify.data.rows import read_rows
from clozify.methods.ensemble import combine_scores
from clozify.methods.finetune import finetune
from clozify.methods.finetune_group import GroupMember, finetune_group
from clozify.pipeline.member_jobs import MemberSpec, encode_member_rows, member_settings
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.pipeline.scoring import score_data_set
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup, seed_everything
from clozify.utils.progress import hide_progress

WARM_UP_STEPS = 4  # initialise libraries and compile kernels


@dataclass
class Measured:
    """What one way of training took and gave."""

    steps: int = 0  # of all members together
    seconds: float = 0.0
    peak: int = 0  # bytes
    scores: list[NDArray[np.float32]] = field(default_factory=list)  # of each member: (rows, labels)


def synchronize(device: str) -> None:
    """Wait for the GPU, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def timed(measured: Measured, device: str) -> Iterator[None]:
    """Add the block's time, and the peak of the GPU's memory."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    synchronize(device)
    started = time.perf_counter()
    yield
    synchronize(device)
    measured.seconds += time.perf_counter() - started
    if device == "cuda":
        measured.peak = max(measured.peak, torch.cuda.max_memory_reserved())


def setup_of(worker: Worker, rng: np.random.Generator, steps: int | None = None) -> TrainingSetup:
    """The settings of a training, with fewer steps for a warm-up."""
    settings = member_settings(worker.plan)
    if steps is not None:
        settings = settings.model_copy(update={"max_steps": min(steps, settings.max_steps)})
    return TrainingSetup(settings, rng, worker.context.accelerator, balance=worker.plan.recipe.balance)


def train_alone(worker: Worker, specs: Sequence[MemberSpec], measured: Measured, warm_up: int) -> None:
    """Train and score one member after another."""
    device = worker.context.device
    rows = encode_member_rows(worker, specs[0])
    finetune(worker.pretrained_model(0), *rows, setup_of(worker, seed_everything(0), warm_up))
    for spec in specs:
        rows = encode_member_rows(worker, spec)
        with timed(measured, device):
            setup = setup_of(worker, seed_everything(spec.seed))
            finetune(worker.pretrained_model(spec.seed), *rows, setup)
        measured.steps += setup.settings.steps(len(rows.labels))
        measured.scores.append(score(worker, spec))


def train_together(worker: Worker, specs: Sequence[MemberSpec], measured: Measured, warm_up: int, at_once: int) -> None:
    """Train groups of members in one batch each, and score with one member after another."""
    device = worker.context.device

    def members(group: Sequence[MemberSpec], steps: int | None = None) -> list[GroupMember]:
        setups = [setup_of(worker, np.random.default_rng(spec.seed), steps) for spec in group]
        pairs = zip(group, setups, strict=True)
        return [GroupMember(*encode_member_rows(worker, spec), spec.seed, setup) for spec, setup in pairs]

    finetune_group(worker.cloze_model, members(specs[:at_once], warm_up))
    for start in range(0, len(specs), at_once):
        group = specs[start : start + at_once]
        inputs = members(group)
        with timed(measured, device):
            trained = finetune_group(worker.cloze_model, inputs)
        for spec, member, adapter in zip(group, inputs, trained, strict=True):
            measured.steps += member.setup.settings.steps(len(member.labels))
            worker.pretrained_model(spec.seed).model.load_state_dict(adapter.weights, strict=False)
            measured.scores.append(score(worker, spec))


def score(worker: Worker, spec: MemberSpec) -> NDArray[np.float32]:
    """The test rows' scores by the worker's model: (rows, labels)."""
    scores: NDArray[np.float32] = score_data_set(worker, worker.prompts.for_pair(spec.pair), "test")[0]
    return scores


def make_plan(folder: Path, options: TrainInputs, test: int, device: str, adapter: str) -> Plan:
    """The plan of a way of training, with the first test rows."""
    task = load_task("agnews")
    settings = [*options.settings, f"adapter.method={adapter}"]
    unlabeled = (
        read_rows(folder / "train_pool.csv", task) if load_recipe(options.recipe, settings).language_modeling else None
    )
    rows = read_rows(folder / "test.csv", task)
    inputs = TrainInputs(
        task,
        few_shot(read_rows(folder / "train_first1000_per_class.csv", task), options.examples or 0),
        unlabeled,
        rows.select(np.unique(np.linspace(0, len(rows) - 1, min(test, len(rows))).astype(int))),
        model=options.model,
        recipe=options.recipe,
        settings=settings,
    )
    return prepare(inputs, device)


def report(name: str, measured: Measured, labels: NDArray[np.integer[Any]], device: str) -> None:
    """Print a way's row of the table."""
    accuracies = [100 * float((scores.argmax(axis=1) == labels).mean()) for scores in measured.scores]
    ensemble = combine_scores(measured.scores, [1.0] * len(measured.scores)).argmax(axis=1)
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else float("nan")
    peak = f"{measured.peak / 2**30:.2f} GiB" if device == "cuda" else "not measured"
    cells = [
        name,
        f"{measured.seconds:.1f}",
        f"{measured.steps / measured.seconds:.1f}",
        peak,
        f"{statistics.mean(accuracies):.1f} ± {spread:.1f}",
        f"{100 * float((ensemble == labels).mean()):.1f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main(
    model: Annotated[str, typer.Option(help="A model folder, or builtin:mini.")] = "builtin",
    members: Annotated[
        int, typer.Option(help="Members: the task's patterns in turn, each round with a new seed.")
    ] = 12,
    at_once: Annotated[int, typer.Option(help="Members in one batch.")] = 6,
    steps: Annotated[int, typer.Option(help="Steps of a member.")] = 100,
    examples: Annotated[int, typer.Option(help="Labelled rows.")] = 50,
    test: Annotated[int, typer.Option(help="Test rows.")] = 2000,
    recipe: Annotated[str, typer.Option(help="The recipe.")] = "auto",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe.")] = None,
) -> None:
    """Print a line for each way of training."""
    if not os.environ.get("CLOZIFY_AGNEWS_FOLDER"):
        sys.exit("Set CLOZIFY_AGNEWS_FOLDER to the folder with AG's News' files; see the top of this script.")
    folder, device = Path(os.environ["CLOZIFY_AGNEWS_FOLDER"]), "cuda" if torch.cuda.is_available() else "cpu"
    changes = [f"{section}.max_steps={steps}" for section in ("finetune", "finetune_without_lm")]
    options = TrainInputs(
        "agnews", examples=examples, model=model, recipe=recipe, settings=[*changes, *(settings or [])]
    )
    ways: dict[str, tuple[str, Callable[[Worker, Sequence[MemberSpec], Measured], None]]] = {
        "whole, one after another": ("none", partial(train_alone, warm_up=WARM_UP_STEPS)),
        "LoRA, one after another": ("lora", partial(train_alone, warm_up=WARM_UP_STEPS)),
        f"LoRA, {at_once} in one batch": ("lora", partial(train_together, warm_up=WARM_UP_STEPS, at_once=at_once)),
    }
    started = time.perf_counter()
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, {model}, recipe {recipe}, {steps} steps")
    print(
        f"| {members} members | training, s | steps/s | peak memory | accuracy of members | ensemble |\n"
        + "|---" * 6
        + "|"
    )
    for name, (adapter, train) in ways.items():
        plan = make_plan(folder, options, test, device, adapter)
        assert plan.test is not None
        pairs = len(plan.task.pairs)
        specs = [MemberSpec(index % pairs, 100 + index // pairs) for index in range(members)]
        measured = Measured()
        with tempfile.TemporaryDirectory() as path, RunFolder(path) as run_folder, hide_progress():
            worker = Worker(plan, run_folder, RunContext(device))
            train(worker, specs, measured)
            worker.release_model()
            gc.collect()  # frees the GPU's memory before the next way
        report(name, measured, plan.test.labels, device)
    print(f"all in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    typer.run(main)
