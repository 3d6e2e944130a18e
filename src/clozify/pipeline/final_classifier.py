"""The final classifier, trained once a repetition: on soft labels (section 3.3), on T alone, or by UDA or MixText.

In: a run and, for distillation, the pile's soft labels. Out: the first classifier's folder, the numbers of all.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.recipe import Training
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.methods.distill import distill
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.methods.supervised import supervised
from clozify.metrics import detailed_metrics
from clozify.models.classifier import TASK_FILE, Classifier, new_classifier
from clozify.pipeline.run import Run
from clozify.pipeline.semi_supervised_training import SemiSupervised
from clozify.pipeline.soft_labels import SoftLabels
from clozify.pipeline.token_cache import is_small, pile_tokens
from clozify.prompts.encode import EncodedRows
from clozify.runs.jobs import JobResult
from clozify.runs.keys import data_key, job_key, model_key
from clozify.runs.worker import Worker
from clozify.training.loop import Monitor, TrainingSetup, seed_everything


def train_classifiers(run: Run, targets: SoftLabels | None, other: SemiSupervised | None = None) -> dict[str, Any]:
    """Train the classifier once a repetition; the first is kept. Its numbers: mean and standard deviation.

    On `targets`, soft labels of the pile; or by an `other` method; or, with neither, on T alone.
    """
    plan, folder = run.plan, run.folder
    section = other.settings if other else plan.recipe.distill if targets is not None else plan.recipe.supervised
    kind = other.kind if other else "classifier" if targets is not None else "supervised"
    shared = {
        "student": model_key(plan.student),
        "settings": section.model_dump(),
        "targets": None if targets is None else targets.digest,
        "data": data_key(plan),
        "fields": plan.task.fields,
        "line_breaks": plan.task.line_breaks,
        "labels": plan.task.labels,
        "max_seq_length": plan.recipe.max_seq_length,
        **GpuOptions.from_recipe(plan.recipe).numerics(run.context.device),
        "attention_dropout": plan.recipe.attention_dropout,
        "balance": plan.recipe.balance if targets is None else None,
    } | (other.key if other else {})
    places: list[Path] = []
    works: list[ClassifierJob] = []
    (seeds,) = plan.seeds()
    for number, seed in enumerate(seeds):
        # part of the key: with another first seed, another repetition's weights are wanted
        kept = number == 0 or plan.dev is not None
        key = job_key(kind, seed=seed, kept=kept, **shared)
        places.append(folder.job_path("classifiers", key))
        name = f"{kind} {number + 1}/{len(seeds)}  seed {seed}"
        if (places[-1] / "classifier.json").exists():
            run.context.log(f"{name}  already there")
        else:
            works.append(ClassifierJob(name, key, seed, kept, targets, other))
    run.run_jobs(works, "classifiers")
    results: list[dict[str, Any]] = []
    if plan.test is not None:
        for place in places:
            probabilities = softmax(np.load(place / "test.npy").astype(np.float64), axis=-1)
            results.append(detailed_metrics(plan.test.labels, probabilities, plan.task.labels).model_dump())
    chosen, dev = _chosen(places)
    folder.publish_folder(places[chosen] / "model", "classifier")
    (folder.path / "classifier" / TASK_FILE).unlink()  # a link into the job's folder; the task may have new aliases
    plan.task.save(folder.path / "classifier" / TASK_FILE)
    summary: dict[str, Any] = {"dev_each": dev, "kept": chosen} if dev else {}
    summary["jobs"] = [place.name for place in places]
    if not results:
        return summary
    first = results[chosen]
    for metric in ("accuracy", "macro_f1", "calibration_error"):
        values = [result[metric] for result in results]
        summary[metric] = float(np.mean(values))
        summary[f"{metric}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        summary[f"{metric}_each"] = values
    return summary | {"labels": first["labels"], "confusion": first["confusion"]}


@dataclass(frozen=True)
class ClassifierJob:
    """The work of training one classifier, measuring it and perhaps keeping it."""

    name: str
    key: str
    seed: int
    kept: bool  # its weights
    targets: SoftLabels | None  # where they are in the run's folder
    other: SemiSupervised | None = None  # a method with a training of its own

    def run(self, worker: Worker) -> JobResult:
        """Train it from the pretrained encoder; returns what to say of it."""
        worker.release_model()  # the masked language model has done its part
        plan, started = worker.plan, time.monotonic()
        rng = seed_everything(self.seed)
        classifier = new_classifier(plan.student, plan.task, plan.recipe, worker.context.device)
        course, looks = _fit(worker, classifier, self.targets, self.other, rng, self.name)
        with worker.folder.writing("classifiers", self.key) as beside:
            if plan.test is not None:
                np.save(beside / "test.npy", _classified(worker.context.device, classifier, plan.test))
            if self.kept:
                classifier.save(beside / "model")
            seconds = time.monotonic() - started
            (beside / "classifier.json").write_text(
                json.dumps({"seed": self.seed, "loss": course, "dev": looks, "seconds": seconds}, indent=2)
            )
        on_dev_rows = f"  dev {100 * max(looks):.1f}" if looks else ""
        return JobResult(f"loss {course[-1] if course else float('nan'):.4f}{on_dev_rows}  in {seconds:,.0f} s")


def _chosen(places: list[Path]) -> tuple[int, list[float]]:
    """Which repetition is kept, and what each reached on the development rows: the best there, else the first."""
    looks = [json.loads((place / "classifier.json").read_text())["dev"] for place in places]
    best = [max(of_one) for of_one in looks if of_one]
    return (int(np.argmax(best)), best) if len(best) == len(places) else (0, [])


def _pile_of(worker: Worker, classifier: Classifier) -> EncodedRows:
    """The pile as the classifier reads it."""
    plan = worker.plan
    assert plan.unlabeled is not None
    if is_small(plan.unlabeled):
        return classifier.encode(plan.unlabeled)
    columns = pile_tokens(worker, classifier.tokenizer, plan.student, classifier.template.fields)
    return EncodedRows(classifier.template, columns, classifier.max_length)


def _fit(
    worker: Worker,
    classifier: Classifier,
    targets: SoftLabels | None,
    other: SemiSupervised | None,
    rng: np.random.Generator,
    name: str,
) -> tuple[list[float], list[float]]:
    """The course of the loss, and what was reached on the development rows."""
    plan = worker.plan

    def on_dev() -> NDArray[np.float32]:
        assert plan.dev is not None
        return _classified(worker.context.device, classifier, plan.dev)

    recipe = plan.recipe

    def setup(settings: Training, monitor: Monitor) -> TrainingSetup:
        return TrainingSetup(settings, rng, worker.context.accelerator, monitor, recipe.balance)

    if other is not None:
        with worker.monitor(name, other.settings.steps(len(plan.labeled)), on_dev) as (monitor, looks):
            course = other.fit(plan, classifier, setup(other.settings, monitor))
        return course, looks
    if targets is None:
        labeled = classifier.encode(plan.labeled)
        with worker.monitor(name, recipe.supervised.steps(len(labeled)), on_dev) as (monitor, looks):
            course = supervised(classifier, labeled, plan.labeled.labels, setup(recipe.supervised, monitor))
        return course, looks
    pile, soft = _pile_of(worker, classifier), targets.load(worker.folder)
    with worker.monitor(name, recipe.distill.steps(len(pile)), on_dev) as (monitor, looks):
        course = distill(classifier, pile, soft, setup(recipe.distill, monitor))
    return course, looks


def _classified(device: str, classifier: Classifier, rows: Rows) -> NDArray[np.float32]:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=classifier.trains_in_bf16):
        return np.concatenate([part for _, part in classifier.score_rows(rows, TOKENS_PER_BATCH[device])])
