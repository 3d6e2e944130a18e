"""What the recipe auto says before a run starts: what it chose, and about how long the run will take.

The time of one forward pass is measured, and all work is counted in forward passes of a row through the encoder; a
training step counts three, of which frozen layers whose states are kept take no part. `--plan` measures more closely.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from clozify.config.recipe import PartialTraining
from clozify.executors.local import LocalExecutor
from clozify.pipeline.cost import generation_costs
from clozify.pipeline.folds import estimate_folds, estimate_pairs, make_folds
from clozify.pipeline.run import Run
from clozify.prompts.encode import Batch, EncodedRows
from clozify.runs.plan import Plan

TIMED_ROWS = 16
MEASURED_ROWS = 200  # rows whose length is measured
INT8_WORK = 0.4  # of float32's
OVERHEAD = 1.25  # the optimizer, reading and writing


def announce(run: Run) -> None:
    """Log what the recipe auto chose and, where this process does the work, about how long it will take."""
    plan, log = run.plan, run.context.log
    if not plan.choice:
        return
    log(plan.choice)
    if not isinstance(run.executor, LocalExecutor):
        return  # other processes or machines do the work
    seconds = OVERHEAD * count_forward_passes(plan) * _row_seconds(run)
    alternative = "; --recipe paper is the paper's appendix B"
    if run.context.device == "cpu":
        alternative += ", which takes hours on a CPU"
    if plan.method == "frozen":
        alternative = "; seconds where an earlier run in the folder has kept the states"
    minutes = max(1, round(seconds / 60))
    log(f"about {minutes:,} minute{'s' if minutes > 1 else ''} on this machine{alternative}")


def count_forward_passes(plan: Plan) -> float:
    """The run's work, in forward passes of one row through the encoder in float32."""
    labeled, unlabeled, test = (0 if rows is None else len(rows) for rows in (plan.labeled, plan.unlabeled, plan.test))
    recipe, scoring = plan.recipe, INT8_WORK if plan.recipe.scoring == "int8" else 1.0
    if plan.method == "frozen":
        static_rows = 0 if plan.static_rows is None else len(plan.static_rows)
        return scoring * (len(plan.task.patterns) * (labeled + unlabeled + test) + static_rows)
    if plan.method == "supervised":
        trainings = recipe.repetitions + len(make_folds(plan)) + len(estimate_folds(plan))
        return trainings * _training_passes(recipe.supervised, labeled, scoring) + recipe.repetitions * scoring * test
    if plan.method not in ("pet", "ipet"):
        return 0.0
    passes = scoring * len(plan.task.pairs) * (labeled + test)  # before training
    member = _training_passes(recipe.member_settings(plan.with_lm), labeled, scoring)
    fold_members = len(make_folds(plan)) + len(estimate_folds(plan)) * estimate_pairs(plan)
    passes += fold_members * (member + scoring * labeled)
    for generation in generation_costs(plan):
        passes += generation.members * member + scoring * generation.rows_to_score(plan)
    if plan.is_distilled:
        passes += recipe.repetitions * (_training_passes(recipe.distill, unlabeled, scoring) + scoring * test)
    if plan.static_rows is not None:
        passes += scoring * len(plan.static_rows)
    return passes


def _training_passes(settings: PartialTraining, rows: int, scoring: float) -> float:
    """A training's work: the frozen layers once for each of the rows, the others three times for each row of a step."""
    trained = 1 - settings.frozen_layers
    return scoring * settings.frozen_layers * rows + 3 * trained * settings.steps(rows) * settings.rows_per_step


def _row_seconds(run: Run) -> float:
    """Seconds of a forward pass of one row of mean length, in a batch."""
    model, length = run.worker.model, _mean_length(run)
    ids = model.sample_ids(TIMED_ROWS * length).reshape(TIMED_ROWS, length)
    ones, zeros = np.ones_like(ids), np.zeros_like(ids)
    batch = Batch(np.arange(TIMED_ROWS), ids, ones, zeros, np.zeros(TIMED_ROWS, dtype=np.int64))
    with torch.inference_mode():
        model.states_at_mask(batch)  # initialises libraries
        started = time.monotonic()
        model.states_at_mask(batch)
        return (time.monotonic() - started) / TIMED_ROWS


def _mean_length(run: Run) -> int:
    """The mean number of tokens of the first rows in the first pattern."""
    plan, worker = run.plan, run.worker
    rows = plan.labeled if len(plan.labeled) else plan.unlabeled
    assert rows is not None  # a run has labelled or unlabelled rows
    length = min(plan.recipe.max_seq_length, worker.model.max_length)
    tokens = worker.prompts.tokenize(worker.model, rows, 0, min(len(rows), MEASURED_ROWS))
    return round(float(EncodedRows(worker.prompts.patterns[0].template, tokens, length).lengths.mean()))
