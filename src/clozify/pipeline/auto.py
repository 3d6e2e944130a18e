"""What the recipe auto says before a run starts: what it chose, and about how long the run will take.

The time of one forward pass is measured, and all work is counted in forward passes of a row through the encoder; a
training step counts three, of which frozen layers whose states are kept take no part. `--plan` measures more closely.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from clozify.config.recipe import MemberTraining, StudentTraining
from clozify.pipeline.cost import generation_costs
from clozify.pipeline.run import Run
from clozify.prompts.encode import Batch
from clozify.runs.plan import Plan

TIMED_ROWS = 16


def announce(run: Run) -> None:
    """Log what the recipe auto chose, and about how long it will take on this machine."""
    plan, log = run.plan, run.context.log
    if not plan.choice:
        return
    log(plan.choice)
    seconds = count_forward_passes(plan) * _row_seconds(run)
    alternative = "" if run.context.device == "cpu" else "; --recipe paper is the paper's appendix B"
    if run.context.device == "cpu":
        alternative = "; --recipe paper is the paper's appendix B and takes hours on a CPU"
    if plan.method == "frozen":
        alternative = "; seconds where an earlier run in the folder has kept the states"
    minutes = max(1, round(seconds / 60))
    log(f"about {minutes:,} minute{'s' if minutes > 1 else ''} on this machine{alternative}")


def count_forward_passes(plan: Plan) -> float:
    """The run's work, in forward passes of one row through the encoder."""
    rows = {name: 0 if of is None else len(of) for name, of in (("D", plan.unlabeled), ("test", plan.test))}
    rows["T"] = len(plan.labeled)
    if plan.method == "frozen":
        return len(plan.task.patterns) * sum(rows.values())
    if plan.method == "supervised":
        return plan.recipe.repetitions * (_training_passes(plan.recipe.supervised, rows["T"]) + rows["test"])
    if plan.method not in ("pet", "ipet"):
        return 0.0
    passes = float(len(plan.task.pairs) * (rows["T"] + rows["test"]))  # before training
    settings = plan.recipe.member_settings(plan.with_lm)
    for generation in generation_costs(plan):
        passes += generation.members * _training_passes(settings, rows["T"]) + generation.rows_to_score(plan)
    if plan.is_distilled:
        passes += plan.recipe.repetitions * (_training_passes(plan.recipe.distill, rows["D"]) + rows["test"])
    return passes


def _training_passes(settings: MemberTraining | StudentTraining, rows: int) -> float:
    """A training's work on so many rows, in forward passes: the lower layers once a row, the others three a step."""
    return settings.frozen_layers * rows + 3 * (1 - settings.frozen_layers) * settings.steps(rows) * (
        settings.rows_per_step
    )


def _row_seconds(run: Run) -> float:
    """Seconds of a forward pass of one row as long as most rows are, in a batch."""
    model, length = run.worker.model, min(run.plan.recipe.max_seq_length, run.worker.model.max_length)
    ids = model.sample_ids(TIMED_ROWS * length).reshape(TIMED_ROWS, length)
    ones, zeros = np.ones_like(ids), np.zeros_like(ids)
    batch = Batch(np.arange(TIMED_ROWS), ids, ones, zeros, np.zeros(TIMED_ROWS, dtype=np.int64))
    with torch.inference_mode():
        model.states_at_mask(batch)  # initialises libraries
        started = time.monotonic()
        model.states_at_mask(batch)
        return (time.monotonic() - started) / TIMED_ROWS
