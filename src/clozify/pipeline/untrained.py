"""The pairs before any training: the ensemble weights w(p) (section 3.3) and M^0 of zero-shot iPET (section 3.4)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows, chunk_rows
from clozify.methods import ensemble
from clozify.methods.calibration import calibrate, mean_probabilities
from clozify.methods.multilabel import predict_highest, zero_points_of
from clozify.metrics import BasicMetrics, average_precision, basic_metrics, mean_micro_f1
from clozify.pipeline.run import Run
from clozify.pipeline.scoring import score_data_set, write_scores
from clozify.runs.jobs import JobResult
from clozify.runs.keys import hash_key, job_key, prompt_inputs
from clozify.runs.metrics import Record, UnsupervisedMetrics
from clozify.runs.records import TEST_SCORES, UNLABELED_SCORES, Member
from clozify.runs.worker import Worker
from clozify.utils.checked_files import read_record

RECORD = "untrained.json"


class UntrainedRecord(Record):
    """The pairs' metrics before any training."""

    accuracy_on_labeled: list[float] | None = None  # one per pair; None without labelled rows
    zero_points: list[list[float]] | None = None  # of each pair's labels, with several labels a row
    test: UnsupervisedMetrics | None = None
    seconds: float


def evaluate_untrained(run: Run) -> tuple[UntrainedRecord, str]:
    """Every pair's accuracy before training, on T and on the test rows, and the key of the job."""
    plan, folder = run.plan, run.folder
    pairs = [
        [pair.pattern.text, pair.verbalizer.model_dump() | {"words": plan.key_words(pair.verbalizer)}]
        for pair in plan.task.pairs
    ]
    truth = None if plan.test is None else hash_key(labels=plan.test.targets.tolist())
    key = job_key("untrained", pairs=pairs, truth=truth, **prompt_inputs(plan, run.context.device))
    path = folder.job_path("untrained", key) / RECORD
    if not folder.has_job("untrained", key, run.context.log):
        run.context.log("scoring the labelled and test rows before training")
        record = _evaluate(run.worker)
        with folder.writing("untrained", key) as tmp_path:
            (tmp_path / RECORD).write_text(json.dumps(record.to_json(), indent=2), encoding="utf-8")
    return read_record(path, UntrainedRecord), key


def _evaluate(worker: Worker) -> UntrainedRecord:
    plan, started = worker.plan, time.monotonic()
    accuracies, on_test, zero_points = None, None, None
    if len(plan.labeled):
        scores = score_data_set(worker, worker.prompts, "labeled")  # (pairs, rows, labels)
        if plan.task.multilabel:
            zero_points = zero_points_of(scores, plan.labeled.label_matrix)  # (pairs, labels)
            logits = scores - zero_points[:, None]
            accuracies = [average_precision(plan.labeled.label_matrix, pair_logits) for pair_logits in logits]
        else:
            accuracies = [metrics.accuracy for metrics in _evaluate_pairs(plan.labeled, scores)]
    if plan.test is not None and len(plan.test):
        scores = score_data_set(worker, worker.prompts, "test")
        if zero_points is None:
            pairs = _evaluate_pairs(plan.test, scores)
        else:  # as many labels a row as T has
            labels_a_row = float(plan.labeled.label_matrix.sum(axis=1).mean())
            pairs = _evaluate_pairs(plan.test, scores - zero_points[:, None], labels_a_row)
        on_test = summarize_pairs(pairs)
    return UntrainedRecord(
        accuracy_on_labeled=accuracies,
        zero_points=None if zero_points is None else zero_points.tolist(),
        test=on_test,
        seconds=time.monotonic() - started,
    )


def summarize_pairs(pairs: list[BasicMetrics]) -> UnsupervisedMetrics:
    """Mean and best of the pairs' metrics on the test rows."""
    return UnsupervisedMetrics(
        accuracy=float(np.mean([pair.accuracy for pair in pairs])),
        macro_f1=float(np.mean([pair.macro_f1 for pair in pairs])),
        micro_f1=mean_micro_f1(pairs),
        best=max(pair.main for pair in pairs),
        pairs=pairs,
    )


def _evaluate_pairs(rows: Rows, scores: NDArray[Any], labels_a_row: float | None = None) -> list[BasicMetrics]:
    """Each pair's metrics; scores are (pairs, rows, labels)."""
    predictions = scores.argmax(axis=-1) if labels_a_row is None else predict_highest(scores, labels_a_row)
    return [basic_metrics(rows.targets, prediction, scores.shape[-1]) for prediction in predictions]


def pair_weights(run: Run, untrained: UntrainedRecord) -> list[float]:
    """w(p) of every pair; a warning if all are 0, which counts as equal weights."""
    weights = ensemble.pair_weights(untrained.accuracy_on_labeled, len(run.plan.task.pairs), run.plan.recipe.weighting)
    if not any(weights):
        run.context.warn("Every pair's accuracy on the labelled rows is 0 before training: all members weigh the same.")
    return weights


def untrained_members(run: Run, pairs: Sequence[int]) -> list[Member]:
    """Pairs as members, M^0 of zero-shot iPET: each scores the unlabelled rows once, for all seeds.

    With `ipet.calibrate` their scores are calibrated on the unlabelled rows.
    """
    plan, folder = run.plan, run.folder
    inputs = scores_inputs(run) | ({"calibrate": True} if plan.recipe.ipet.calibrate else {})
    scored, jobs = dict[int, Path](), []
    for index in pairs:
        pair = plan.task.pairs[index]
        key = job_key("untrained on D", pattern=pair.pattern.text, words=plan.key_words(pair.verbalizer), **inputs)
        scored[index] = folder.job_path("untrained", key)
        name = f"untrained {index + 1}/{len(plan.task.pairs)}  {pair.name}"
        if folder.has_job("untrained", key, run.context.log):
            run.context.log(f"{name}  already done")
        else:
            jobs.append(UntrainedJob(name, key, index, run.model))
    run.run_jobs(jobs, "the untrained pairs")
    seeds = plan.seeds(len(plan.task.pairs))
    return [Member(pair, seed, path, scored_unlabeled=True) for pair, path in scored.items() for seed in seeds[pair]]


def scores_inputs(run: Run) -> dict[str, object]:
    """What every job that scores the unlabelled rows depends on."""
    return prompt_inputs(run.plan, run.context.device) | {"scores_dtype": run.plan.recipe.scores_dtype}


@dataclass(frozen=True)
class UntrainedJob:
    """Scores the unlabelled and the test rows with a pair before any training."""

    name: str
    key: str
    pair: int
    model: str | None = None  # another language model than the run's own

    def run(self, worker: Worker) -> JobResult:
        """Write the scores."""
        worker = worker.for_model(self.model)
        started = time.monotonic()
        worker.pretrained_model(0)
        with worker.folder.writing("untrained", self.key) as tmp_path:
            write_scores(worker, worker.prompts.for_pair(self.pair), tmp_path, score_unlabeled=True)
            if worker.plan.recipe.ipet.calibrate:
                calibrate_files(tmp_path)
        return JobResult(f"scored the unlabelled rows in {time.monotonic() - started:,.0f} s")


def calibrate_files(folder: Path) -> None:
    """Calibrate the scores in a folder, those of the test rows as well, by the unlabelled rows' mean probabilities."""
    unlabeled = np.load(folder / UNLABELED_SCORES, mmap_mode="r+")
    prior = mean_probabilities(unlabeled)
    size = chunk_rows(unlabeled.shape[1])
    for start in range(0, len(unlabeled), size):
        rows = slice(start, start + size)
        unlabeled[rows] = calibrate(unlabeled[rows], prior)
    unlabeled.flush()
    if (folder / TEST_SCORES).exists():
        test = np.load(folder / TEST_SCORES)
        np.save(folder / TEST_SCORES, calibrate(test, prior).astype(test.dtype))
