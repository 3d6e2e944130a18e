"""The final classifier, trained once a repetition: on soft labels (section 3.3, step 3) or by a baseline's method.

How it is trained is a `ClassifierTraining`: `Distillation` and `SupervisedTraining` here, UDA and MixText in
`semi_supervised.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.recipe import Training
from clozify.data.decision import Decision
from clozify.data.label_matrix import indicators
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.methods.distill import confident_rows, distill
from clozify.methods.label_set_reliability import HeldOutLabelSets
from clozify.methods.reliability import HeldOutScores
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.methods.supervised import supervised
from clozify.metrics import Evaluation, detailed_metrics
from clozify.models.classifier import Classifier, new_classifier
from clozify.models.classifier_folder import TASK_FILE, rename_labels, write_thresholds
from clozify.models.loading import make_readable
from clozify.pipeline.cross_fitting import HeldOut, calibrate, calibrate_classifier, publish_reliability
from clozify.pipeline.folds import Fold, estimate_folds, make_folds
from clozify.pipeline.run import Run
from clozify.pipeline.scope import classifier_scope, held_out_scope
from clozify.pipeline.soft_labels import SoftLabels
from clozify.pipeline.thresholds import decide_by_folds, decide_without_folds
from clozify.pipeline.token_cache import is_small, tokenize_unlabeled
from clozify.prompts.encode import EncodedRows
from clozify.prompts.tokenizer import RaggedTokens
from clozify.runs.jobs import JobResult
from clozify.runs.keys import data_inputs, job_key, model_key
from clozify.runs.metrics import ClassifierMetrics
from clozify.runs.plan import Plan
from clozify.runs.records import HELD_OUT_SCOPE, HELD_OUT_SCORES, TEST_SCORES, UNLABELED_SCORES
from clozify.runs.reliability import Reliability
from clozify.runs.scope import load_scope, save_scope
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup, seed_everything
from clozify.utils.checked_files import open_npy, read_json
from clozify.utils.progress import progress

RECORD = "classifier.json"
CONFIDENCE_ROWS = 300  # unlabelled rows, evenly spaced, that a classifier is calibrated on
SCOPE = {"scope": 1}  # in the keys of classifiers with out-of-scope scores; raised with changes of the scores


class ClassifierTraining(Protocol):
    """A way to train the final classifier; it can be sent to other processes."""

    @property
    def name(self) -> str:
        """Its name in the log."""

    def settings(self, plan: Plan) -> Training:
        """Steps, batch size and learning rate."""

    def steps(self, plan: Plan) -> int:
        """The number of optimizer steps."""

    def key(self, plan: Plan) -> dict[str, Any]:
        """What the training depends on, besides the settings and what all classifiers depend on."""

    def fit(self, worker: Worker, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier; returns the losses."""


@dataclass(frozen=True)
class Distillation:
    """Training on the soft labels of the unlabelled rows."""

    soft_labels: SoftLabels
    confident_rows: float | None = None  # the fraction of each label's rows to train on; None: all rows
    name: str = "classifier"

    def settings(self, plan: Plan) -> Training:
        """The recipe's section `distill`."""
        return plan.recipe.distill

    def steps(self, plan: Plan) -> int:
        """The number of optimizer steps."""
        assert plan.unlabeled is not None
        return plan.recipe.distill.steps(len(plan.unlabeled))

    def key(self, plan: Plan) -> dict[str, Any]:  # noqa: ARG002
        """The soft labels, and which of them are used."""
        selected = {} if self.confident_rows is None else {"confident_rows": self.confident_rows}
        return {"targets": self.soft_labels.digest, **selected}

    def fit(self, worker: Worker, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier; returns the losses."""
        plan = worker.plan
        assert plan.unlabeled is not None
        targets = self.soft_labels.load(worker.folder)
        rows = None if self.confident_rows is None else confident_rows(targets, self.confident_rows)
        tokens = tokenize_unlabeled(worker, classifier.tokenizer, classifier.template.fields)
        if plan.recipe.distill.labeled_rows and is_small(plan.unlabeled):
            if rows is not None:
                rows = np.concatenate([rows, len(targets) + np.arange(len(plan.labeled))])
            targets = np.concatenate([targets, indicators(plan.labeled)])
            for field, of_unlabeled in tokens.items():
                of_labeled = field.tokenize(classifier.tokenizer, plan.labeled.texts(field.slot.field))
                tokens[field] = RaggedTokens.concat(of_unlabeled, of_labeled)
        encoded = EncodedRows(classifier.template, tokens, classifier.max_length)
        return distill(classifier, encoded, targets, setup, rows)


@dataclass(frozen=True)
class SupervisedTraining:
    """Training on T alone, the paper's supervised baseline."""

    name: str = "supervised"
    fold: Fold | None = None  # which is left out

    def settings(self, plan: Plan) -> Training:
        """The recipe's section `supervised`."""
        return plan.recipe.supervised

    def steps(self, plan: Plan) -> int:
        """The number of optimizer steps."""
        return plan.recipe.supervised.steps(len(plan.labeled))

    def key(self, plan: Plan) -> dict[str, Any]:
        """Whether the loss is weighted so that every label counts the same, and which rows are left out."""
        fold = {} if self.fold is None else {"fold": [self.fold.index, self.fold.count, plan.recipe.seed], **SCOPE}
        return {"balance": plan.recipe.balance, **fold}

    def fit(self, worker: Worker, classifier: Classifier, setup: TrainingSetup) -> list[float]:
        """Train the classifier; returns the losses."""
        labeled = worker.plan.labeled
        if self.fold is not None:
            labeled = labeled.select(self.fold.training(worker.plan))
        return supervised(classifier, classifier.encode(labeled), labeled.targets, setup)


def choose_supervised_thresholds(run: Run) -> tuple[Decision, HeldOutLabelSets | None]:
    """How the supervised classifier's scores become labels; with several a row, by thresholds from folds of T.

    Also returns the scores of the folds, with several labels a row.
    """
    if not (folds := make_folds(run.plan)):
        return decide_without_folds(run), None
    paths = _train_without_folds(run, folds, "thresholds")
    decision, held_out = decide_by_folds(run, folds, paths)
    if held_out is not None:
        held_out = replace(held_out, out_of_scope=_read_held_out(run.plan, folds, paths, HELD_OUT_SCOPE))
    return decision, held_out


def cross_fit_supervised(run: Run) -> HeldOutScores | None:
    """Scores of T by supervised classifiers that were trained without a fold; None where nothing is estimated."""
    plan = run.plan
    if not (folds := estimate_folds(plan)):
        return None
    paths = _train_without_folds(run, folds, "estimate")
    scores, out_of_scope = (_read_held_out(plan, folds, paths, name) for name in (HELD_OUT_SCORES, HELD_OUT_SCOPE))
    return HeldOutScores(scores, plan.labeled.labels, len(folds), out_of_scope)


def _read_held_out(plan: Plan, folds: Sequence[Fold], paths: Sequence[Path], name: str) -> NDArray[np.float64]:
    """A file of each fold's job, which has an entry for every row of the fold, in the order of T: (rows, ...)."""
    of_folds = [open_npy(path / name) for path in paths]
    values = np.zeros((len(plan.labeled), *of_folds[0].shape[1:]))
    for fold, of_fold in zip(folds, of_folds, strict=True):
        values[fold.held_out(plan)] = of_fold
    return values


def _train_without_folds(run: Run, folds: Sequence[Fold], group: str) -> list[Path]:
    """The folders of supervised classifiers, each trained without a fold, which it scores."""
    (seeds,) = run.plan.seeds()
    paths, jobs = list[Path](), list[ClassifierJob]()
    for fold in folds:
        training = SupervisedTraining(fold=fold)
        key = _key(run, training, seeds[0], keep_weights=False)
        paths.append(run.folder.job_path("classifiers", key))
        name = f"{group}, classifier {fold.index + 1}/{fold.count}  seed {seeds[0]}"
        if run.folder.has_job("classifiers", key, run.context.log):
            run.context.log(f"{name}  already done")
        else:
            jobs.append(ClassifierJob(name, key, seeds[0], False, training, fold))
    run.run_jobs(jobs, group)
    return paths


def train_classifier(
    run: Run, training: ClassifierTraining, decision: Decision, held_out: HeldOut | None = None
) -> tuple[ClassifierMetrics, Reliability | None]:
    """Train the classifier once a repetition and publish one of them as `classifier/`; returns the metrics of all.

    `decision` says how its scores become labels; with scores of held-out labelled rows it is calibrated, too.
    """
    plan, folder = run.plan, run.folder
    paths, jobs = list[Path](), list[ClassifierJob]()
    (seeds,) = plan.seeds()
    for number, seed in enumerate(seeds, start=1):
        keep_weights = number == 1 or plan.dev is not None
        key = _key(run, training, seed, keep_weights)
        paths.append(folder.job_path("classifiers", key))
        name = f"{training.name} {number}/{len(seeds)}  seed {seed}"
        if folder.has_job("classifiers", key, run.context.log):
            run.context.log(f"{name}  already done")
        else:
            jobs.append(ClassifierJob(name, key, seed, keep_weights, training))
    run.run_jobs(jobs, "classifiers")
    dev_scores = _best_dev_scores(paths)
    kept = int(np.argmax(dev_scores)) if dev_scores else 0
    folder.publish_folder(paths[kept] / "model", f"{run.prefix}classifier")
    plan.task.save(run.results / "classifier" / TASK_FILE)  # not the job's: the task may have new aliases
    if plan.key_labels:
        rename_labels(run.results / "classifier", plan.task.labels)
    write_thresholds(run.results / "classifier", decision)
    reliability = _calibrate(run, held_out, paths[kept])
    decision = calibrate(decision, reliability)
    metrics = ClassifierMetrics(jobs=[path.name for path in paths])
    if dev_scores:
        metrics = metrics.model_copy(update={"dev_each": dev_scores, "kept": kept})
    if plan.test is None:
        return metrics, reliability
    evaluations = []
    for path in paths:
        task, probabilities = plan.task, decision.probabilities(np.load(path / TEST_SCORES))
        predicted = decision.predict(probabilities)
        evaluations.append(
            detailed_metrics(plan.test.targets, probabilities, task.labels, task.label_groups, predicted)
        )
    return metrics.model_copy(update=summarize(evaluations, kept)), reliability


def _calibrate(run: Run, held_out: HeldOut | None, job: Path) -> Reliability | None:
    """Calibrate the published classifier, of a job, by held-out rows; None without them."""
    path = job / UNLABELED_SCORES
    reliability = calibrate_classifier(run, held_out, open_npy(path) if path.is_file() else None)
    if reliability is not None:
        publish_reliability(run.results / "classifier", read_json(job / RECORD).get("output_layer"), reliability)
    if held_out is not None and held_out.out_of_scope is not None:
        scope = load_scope(run.results / "classifier")
        if scope is not None and not len(scope.in_scope):  # there were no unlabelled rows
            save_scope(run.results / "classifier", scope.with_in_scope(held_out.out_of_scope))
    return reliability


def _key(run: Run, training: ClassifierTraining, seed: int, keep_weights: bool) -> str:
    plan = run.plan
    return job_key(
        training.name,
        seed=seed,
        keep_weights=keep_weights,  # with another first seed, the weights of another repetition are kept
        student=model_key(plan.student),
        settings=training.settings(plan).model_dump(),
        data=data_inputs(plan),
        fields=plan.task.fields,
        line_breaks=plan.task.line_breaks,
        labels=plan.key_names,
        max_seq_length=plan.recipe.max_seq_length,
        attention_dropout=plan.recipe.attention_dropout,
        **GpuOptions.from_recipe(plan.recipe).numerics(run.context.device),
        **({"confidence_rows": CONFIDENCE_ROWS} if _is_calibrated(plan) else {}),
        **(SCOPE if keep_weights else {}),
        **training.key(plan),
    )


def _is_calibrated(plan: Plan) -> bool:
    """Whether the classifier scores unlabelled rows, to be calibrated on them."""
    return bool(estimate_folds(plan)) and plan.unlabeled is not None


def _best_dev_scores(paths: list[Path]) -> list[float]:
    """The best metric on the development rows of each repetition; empty where there is none of some repetition."""
    dev_scores = [read_json(path / RECORD)["dev"] for path in paths]
    return [max(scores) for scores in dev_scores] if all(dev_scores) else []


def summarize(evaluations: list[Evaluation], kept: int) -> dict[str, Any]:
    """Mean and standard deviation over the repetitions, and the details of the kept one."""
    details = ("labels", "confusion", "confused", "groups")
    summary: dict[str, Any] = {name: getattr(evaluations[kept], name) for name in details}
    micro = ["micro_f1"] if evaluations[kept].micro_f1 is not None else []
    for metric in ["accuracy", "macro_f1", *micro, "calibration_error"]:
        values = [getattr(evaluation, metric) for evaluation in evaluations]
        summary[metric] = float(np.mean(values))
        summary[f"{metric}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        summary[f"{metric}_each"] = values
    return summary


@dataclass(frozen=True)
class ClassifierJob:
    """Trains one classifier and scores the test rows with it."""

    name: str
    key: str
    seed: int
    keep_weights: bool
    training: ClassifierTraining
    fold: Fold | None = None  # of the labelled rows, which is then scored instead of the test rows

    def run(self, worker: Worker) -> JobResult:
        """Train a new classifier on the pretrained encoder and write its scores and its weights."""
        worker.release_model()
        plan, device, started = worker.plan, worker.context.device, time.monotonic()
        rng = seed_everything(self.seed)
        classifier = new_classifier(plan.student, plan.task, plan.recipe, device)

        def score_dev() -> NDArray[np.float32]:
            assert plan.dev is not None
            return score_rows(classifier, plan.dev, device)

        with worker.monitor(self.name, self.training.steps(plan), score_dev) as (monitor, dev_scores):
            settings, accelerator = self.training.settings(plan), worker.context.accelerator
            setup = TrainingSetup(settings, rng, accelerator, monitor, plan.recipe.balance)
            losses = self.training.fit(worker, classifier, setup)
        with worker.folder.writing("classifiers", self.key) as tmp_path:
            if self.fold is not None:
                held_out = plan.labeled.select(self.fold.held_out(plan))
                np.save(tmp_path / HELD_OUT_SCORES, score_rows(classifier, held_out, device))
                np.save(tmp_path / HELD_OUT_SCOPE, held_out_scope(classifier, plan, self.fold))
            elif plan.test is not None:
                np.save(tmp_path / TEST_SCORES, score_rows(classifier, plan.test, device))
            if self.keep_weights:
                if _is_calibrated(plan) and plan.unlabeled is not None:
                    chosen = np.linspace(0, len(plan.unlabeled) - 1, min(CONFIDENCE_ROWS, len(plan.unlabeled)))
                    sample = plan.unlabeled.select(np.unique(chosen.astype(np.int64)))
                    np.save(tmp_path / UNLABELED_SCORES, score_rows(classifier, sample, device))
                classifier.save(tmp_path / "model")
                save_scope(tmp_path / "model", classifier_scope(classifier, plan))
                make_readable(tmp_path / "model")
            seconds = time.monotonic() - started
            record = {
                "seed": self.seed,
                "loss": losses,
                "dev": dev_scores,
                "seconds": seconds,
                "output_layer": classifier.output_layer,
            }
            (tmp_path / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        on_dev = f"  dev {100 * max(dev_scores):.1f}" if dev_scores else ""
        return JobResult(f"loss {losses[-1] if losses else float('nan'):.4f}{on_dev}  in {seconds:,.0f} s")


def score_rows(classifier: Classifier, rows: Rows, device: str, title: str | None = None) -> NDArray[np.float32]:
    """The classifier's scores, (rows, labels); with a title, its progress is shown."""
    shown = nullcontext(lambda count: None) if title is None else progress(title, len(rows))
    with shown as advance, torch.autocast(device, dtype=torch.bfloat16, enabled=classifier.trains_in_bf16):
        return np.concatenate([chunk for _, chunk in classifier.score_rows(rows, TOKENS_PER_BATCH[device], advance)])
