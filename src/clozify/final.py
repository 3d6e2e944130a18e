"""The final classifier, trained once a repetition: on soft labels (section 3.3) or on T alone (supervised baseline).

In: a run's plan and, for distillation, the pile's soft labels. Out: the first classifier's folder, the numbers of all.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.baselines.supervised import supervised
from clozify.classifier import Classifier, new_classifier
from clozify.data import Rows
from clozify.metrics import in_detail, softmax
from clozify.plan import Plan
from clozify.run import RunFolder, key_of
from clozify.steps.annotate import TOKENS_A_BATCH
from clozify.steps.distill import distill
from clozify.training import seed_everything


def train_classifiers(plan: Plan, folder: RunFolder, targets: NDArray[np.float32] | None) -> dict[str, Any]:
    """Train the classifier once a repetition; the first is kept. Its numbers: mean and standard deviation."""
    section = plan.recipe.distill if targets is not None else plan.recipe.supervised
    kind = "classifier" if targets is not None else "supervised"
    shared = {
        "student": plan.model_key(plan.student),
        "settings": section.model_dump(),
        "targets": None if targets is None else hashlib.sha256(targets.tobytes()).hexdigest(),
        "data": plan.data_key,
        "fields": plan.task.fields,
        "line_breaks": plan.task.line_breaks,
        "labels": plan.task.labels,
        "max_seq_length": plan.recipe.max_seq_length,
        "attention_dropout": plan.recipe.attention_dropout,
    }
    results = []
    for number, seed in enumerate(plan.seeds):
        kept = number == 0  # part of the key: with another first seed, another repetition's weights are wanted
        key = key_of(step=kind, seed=seed, kept=kept, **shared)
        place = folder.job("classifiers", key)
        name = f"{kind} {number + 1}/{len(plan.seeds)}  seed {seed}"
        if (place / "classifier.json").exists():
            plan.say(f"{name}  already there")
        else:
            started = time.monotonic()
            chance = seed_everything(seed)
            classifier = new_classifier(plan.student, plan.task, plan.recipe, plan.device)
            course = _fit(plan, classifier, targets, chance)
            with folder.writing("classifiers", key) as beside:
                if plan.test is not None:
                    np.save(beside / "test.npy", _classified(plan, classifier, plan.test))
                if kept:
                    classifier.save(beside / "model")
                seconds = time.monotonic() - started
                (beside / "classifier.json").write_text(
                    json.dumps({"seed": seed, "loss": course, "seconds": seconds}, indent=2)
                )
            plan.say(f"{name}  loss {course[-1] if course else float('nan'):.4f}  in {seconds:,.0f} s")
        if kept:
            folder.place_folder(place / "model", "classifier")
        if plan.test is not None:
            probabilities = softmax(np.load(place / "test.npy").astype(np.float64))
            results.append(in_detail(plan.test.labels, probabilities, plan.task.labels))
    if not results:
        return {}
    first = results[0]
    summary: dict[str, Any] = {}
    for metric in ("accuracy", "macro_f1", "calibration_error"):
        values = [result[metric] for result in results]
        summary[metric] = float(np.mean(values))
        summary[f"{metric}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        summary[f"{metric}_each"] = values
    return summary | {"labels": first["labels"], "confusion": first["confusion"]}


def _fit(
    plan: Plan,
    classifier: Classifier,
    targets: NDArray[np.float32] | None,
    chance: np.random.Generator,
) -> list[float]:
    if targets is None:
        return supervised(
            classifier,
            classifier.encode(plan.labeled),
            plan.labeled.labels,
            plan.recipe.supervised,
            chance,
            plan.accelerator,
        )
    assert plan.unlabeled is not None
    return distill(
        classifier, classifier.encode(plan.unlabeled), targets, plan.recipe.distill, chance, plan.accelerator
    )


def _classified(plan: Plan, classifier: Classifier, rows: Rows) -> NDArray[np.float32]:
    with torch.autocast(plan.device, dtype=torch.bfloat16, enabled=plan.device == "cuda"):
        return np.concatenate([part for _, part in classifier.annotate(rows, TOKENS_A_BATCH[plan.device])])
