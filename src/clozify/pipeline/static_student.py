"""`--student static`: the final classifier labels all unlabelled rows, and a static classifier is trained on them.

The classifier of section 3.3 labels rows faster than the ensemble would, so that many more rows than its own training
has can be labelled. Labels and classifier are two jobs: the second takes seconds.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import numpy as np

from clozify.data.decision import Decision
from clozify.data.label_matrix import indicators
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.methods.distill import soft_labels
from clozify.methods.static_student import agreement, fit_static, lost_accuracy
from clozify.metrics import detailed_metrics
from clozify.models.classifier import load_classifier
from clozify.models.classifier_folder import TASK_FILE, rename_labels, write_thresholds
from clozify.models.loading import make_readable
from clozify.models.static_classifier import StaticClassifier, load_static_classifier, save_weights
from clozify.pipeline.cross_fitting import HeldOut, calibrate, calibrate_classifier, write_classifier_reliability
from clozify.pipeline.final_classifier import RECORD, score_rows, summarize
from clozify.pipeline.run import Run
from clozify.runs.jobs import JobResult
from clozify.runs.keys import data_inputs, job_key
from clozify.runs.metrics import ClassifierMetrics
from clozify.runs.records import TEST_SCORES, UNLABELED_SCORES
from clozify.runs.reliability import Reliability
from clozify.runs.worker import Worker
from clozify.utils.checked_files import open_npy, read_json

LABELS, LABELS_RECORD = "static_labels", "labels.json"  # the kind of the jobs that label rows, and their record
VERSION = 1  # raised with every change that changes a static classifier
HELD_OUT = 10  # every tenth unlabelled row is held out to choose the penalty, where there are enough
MIN_ROWS = 100


def train_static(
    run: Run, classifier: ClassifierMetrics, decision: Decision, held_out: HeldOut | None
) -> tuple[ClassifierMetrics, Reliability | None]:
    """Train the static classifier and publish it as `classifier/`; returns its metrics.

    `classifier` are the metrics of the one that labels the rows; the other parameters are those of `train_classifier`.
    """
    plan, folder = run.plan, run.folder
    assert plan.static_rows is not None
    teacher = classifier.jobs[classifier.kept or 0]
    rows = {"rows": len(plan.static_rows), "texts": plan.static_rows.digest}
    numerics = GpuOptions.from_recipe(plan.recipe).numerics(run.context.device)
    labels = job_key("static labels", classifier=teacher, static_rows=rows, **numerics)
    if not folder.has_job(LABELS, labels, run.context.log):
        name = f"labels of {len(plan.static_rows):,} rows for the static classifier"
        run.run_jobs([LabelJob(name, labels, teacher)], "static")
    key = job_key("static", version=VERSION, labels=labels, data=data_inputs(plan), names=plan.key_names)
    if folder.has_job("classifiers", key, run.context.log):
        run.context.log("static classifier  already done")
    else:
        run.run_jobs([StaticJob("static classifier", key, labels)], "static")
    job = folder.job_path("classifiers", key)
    folder.publish_folder(job / "model", f"{run.prefix}classifier")
    published = run.results / "classifier"
    plan.task.save(published / TASK_FILE)
    rename_labels(published, plan.task.labels)
    write_thresholds(published, decision)
    record = read_json(job / RECORD)
    reliability = calibrate_classifier(run, held_out, open_npy(job / UNLABELED_SCORES), record["lost_accuracy"])
    if reliability is not None:
        save_weights(published, load_static_classifier(published).weights.divided_by(reliability.temperature))
        make_readable(published)
        write_classifier_reliability(published, reliability)
    metrics = ClassifierMetrics(jobs=[key], agreement=record["agreement"], unlabeled_rows=len(plan.static_rows))
    if plan.test is None:
        return metrics, reliability
    decision = calibrate(decision, reliability)
    probabilities = decision.probabilities(np.load(job / TEST_SCORES))
    evaluation = detailed_metrics(
        plan.test.targets, probabilities, plan.task.labels, plan.task.label_groups, decision.predict(probabilities)
    )
    return metrics.model_copy(update=summarize([evaluation], 0)), reliability


@dataclass(frozen=True)
class LabelJob:
    """Labels the rows of the static classifier by a trained one."""

    name: str
    key: str
    classifier: str  # the key of its job

    def run(self, worker: Worker) -> JobResult:
        """Write the classifier's scores of all rows."""
        worker.release_model()
        plan, device, started = worker.plan, worker.context.device, time.monotonic()
        assert plan.static_rows is not None
        with worker.folder.reading("classifiers", self.classifier) as path:
            in_int8 = GpuOptions.from_recipe(plan.recipe).scores_in_int8(device)
            classifier = load_classifier(path / "model", device, "auto" if in_int8 else "float32")
        scores = score_rows(classifier, plan.static_rows, device, "labelling rows")
        with worker.folder.writing(LABELS, self.key) as tmp_path:
            np.save(tmp_path / UNLABELED_SCORES, scores)
            seconds = time.monotonic() - started
            (tmp_path / LABELS_RECORD).write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
        return JobResult(f"{len(scores):,} rows  in {seconds:,.0f} s")


@dataclass(frozen=True)
class StaticJob:
    """Trains a static classifier on labelled rows and scores the test rows with it."""

    name: str
    key: str
    labels: str  # the key of the job that labelled the rows

    def run(self, worker: Worker) -> JobResult:
        """Train the classifier and write its scores and its weights."""
        plan, started = worker.plan, time.monotonic()
        assert plan.static_rows is not None
        with worker.folder.reading(LABELS, self.labels) as path:
            scores = open_npy(path / UNLABELED_SCORES).astype(np.float64)
            labelling_seconds = float(read_json(path / LABELS_RECORD)["seconds"])
        targets = np.concatenate([soft_labels(scores, 1.0, plan.task.multilabel), indicators(plan.labeled)])
        held_out = np.arange(0, len(scores), HELD_OUT) if len(scores) >= MIN_ROWS else np.zeros(0, dtype=np.int64)
        sources = [plan.static_rows, plan.labeled]
        texts = {field: [text for rows in sources for text in rows.texts(field)] for field in plan.task.fields}
        fit = fit_static(texts, targets, held_out, plan.task.multilabel)
        fidelity = None
        if len(held_out):
            fidelity = agreement(fit.held_out_scores, targets[held_out], plan.task.multilabel)
        classifier = StaticClassifier(fit.weights, plan.task)
        with worker.folder.writing("classifiers", self.key) as tmp_path:
            classifier.save(tmp_path / "model")
            make_readable(tmp_path / "model")
            classifier = load_static_classifier(tmp_path / "model")  # as it is kept, in float16
            np.save(
                tmp_path / UNLABELED_SCORES, fit.held_out_scores if len(held_out) else _score(classifier, sources[0])
            )
            if plan.test is not None:
                np.save(tmp_path / TEST_SCORES, _score(classifier, plan.test))
            seconds = time.monotonic() - started
            record = {
                "agreement": fidelity,
                "lost_accuracy": lost_accuracy(fit.held_out_scores, targets[held_out]) if len(held_out) else 0.0,
                "inverse_penalty": fit.inverse_penalty,
                "seconds": labelling_seconds + seconds,
                "training_seconds": seconds,
            }
            (tmp_path / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        agrees = "" if fidelity is None else f"agrees with the classifier on {fidelity:.1%} of held-out rows  "
        return JobResult(f"{agrees}{len(fit.weights.keys):,} words and pairs  in {seconds:,.1f} s")


def _score(classifier: StaticClassifier, rows: Rows) -> np.ndarray:
    """The classifier's scores, (rows, labels)."""
    return np.concatenate([chunk for _, chunk in classifier.score_rows(rows)])
