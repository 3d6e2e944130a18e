"""How many models fit on a device at a time, from what one of them takes: `--at-once auto`.

In: a run's bench, with an executor of one worker. Out: a number, and the reason in a sentence. The worker really trains
and labels a little, on the longest rows, and tells what memory it took at most and what is free.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from clozify.data.rows import Rows
from clozify.executors.base import Executor
from clozify.executors.select import single_worker_executor
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.pipeline.cost import classifier_seconds, member_seconds
from clozify.pipeline.semi_supervised import METHODS as SEMI_SUPERVISED
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import JobResult
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker

SHARE = 0.9  # of the free memory; the rest is for what was not met in the trial
CONTEXT = 1 << 30  # what a process takes of a GPU beside its tensors
MOST = 8  # models at a time: a GPU is full by then, whatever its memory
THREADS = {"cpu": 4, "cuda": 1}  # a model needs so many to be worth a process of its own
LOOKED_AT = 4_096  # rows of the pile among which the longest are sought
LONGEST = 64  # so many of them are trained and labelled with


@dataclass(frozen=True)
class Measured:
    """What one model took of its device, in bytes, and what there is."""

    device: str
    need: int  # at most
    free: int  # with nobody at work
    threads: int  # of the machine, for this device


def fitting(found: Measured, models: int) -> tuple[int, str]:
    """How many of so many models are trained at a time, and why; one share is left to the run's own process."""
    limits = {
        "the memory": int(SHARE * found.free // found.need) - 1,
        f"the number of threads, {found.threads}": found.threads // THREADS[found.device],
        "the number of models": models,
        "the most that pays": MOST,
    }
    reason = min(limits, key=lambda name: limits[name])
    count = max(1, limits[reason])
    took = f"one takes {found.need / 2**30:.1f} of {found.free / 2**30:.1f} GiB that are free"
    return count, f"at once: {count} on each {_DEVICE[found.device]}; {took}, and what decides is {reason}"


_DEVICE = {"cpu": "machine", "cuda": "GPU"}


def fit_models_per_device(worker: Worker, executor: Executor) -> tuple[int, str]:
    """How many models are trained at a time on each device, by a trial in the executor's one process."""
    plan = worker.plan
    if plan.method in SEMI_SUPERVISED:
        return 1, f"at once: 1; what a model of the method '{plan.method}' takes is not measured"
    models = plan.recipe.repetitions * (1 if plan.method == "supervised" else len(plan.task.pairs))
    executor.start(worker, 1)
    executor.submit(Trial())
    ((_, result),) = executor.as_completed()
    return fitting(result.value, models)


def plan_at_once(plan: Plan, context: RunContext, devices: str | int = "auto") -> tuple[int, str]:
    """The same for this machine before there is a run; nothing is left behind."""
    with TemporaryDirectory() as path, RunFolder(path) as folder, single_worker_executor(devices=devices) as executor:
        return fit_models_per_device(Worker(plan, folder, context), executor)


@dataclass(frozen=True)
class Trial:
    """The work of training and labelling a little; its value is the memory that it took."""

    name: str = "a trial of one model"

    def run(self, worker: Worker) -> JobResult:
        """Do what members and classifiers do, on the longest rows."""
        plan, context = worker.plan, worker.context
        few = replace(
            plan,
            labeled=_longest(plan.labeled) if len(plan.labeled) else plan.labeled,
            unlabeled=None if plan.unlabeled is None else _longest(plan.unlabeled),
        )
        if plan.method != "supervised":
            member_seconds(few, context, rows=-(-TOKENS_PER_BATCH[context.device] // plan.recipe.max_seq_length))
        classifier_seconds(few, context, few.labeled if few.unlabeled is None else few.unlabeled)
        return JobResult("measured", _measured(context.device))


def _longest(rows: Rows) -> Rows:
    """A few rows with the most text, among the first thousands."""
    stop = min(len(rows), LOOKED_AT)
    columns: Sequence[list[str]] = [rows.texts(name, 0, stop) for name in rows.task.fields]
    lengths = np.sum([[len(text) for text in column] for column in columns], axis=0)
    return rows.select(np.sort(np.argsort(-lengths, kind="stable")[:LONGEST]))


def _measured(device: str) -> Measured:
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        taken = torch.cuda.max_memory_reserved()
        own = torch.cuda.memory_reserved() + CONTEXT
        return Measured("cuda", taken + CONTEXT, free + own, torch.get_num_threads())
    import psutil

    now = psutil.Process().memory_info().rss
    status = Path("/proc/self/status")  # where there is one it knows the most that was taken
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    most = int(peak[1]) << 10 if peak else now
    return Measured("cpu", most, psutil.virtual_memory().available + now, torch.get_num_threads())
