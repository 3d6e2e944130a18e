"""How many models fit on a device at the same time: `--at-once auto`.

A trial job trains and scores a little on the longest rows, in one worker, and measures the peak of its memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from clozify.data.rows import Rows
from clozify.executors.base import Executor
from clozify.executors.select import single_worker_executor
from clozify.methods.score import TOKENS_PER_BATCH
from clozify.pipeline.cost import time_classifier, time_member
from clozify.pipeline.member_groups import max_group_size
from clozify.pipeline.semi_supervised import METHODS as SEMI_SUPERVISED
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import JobResult
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker

USABLE_FRACTION = 0.9  # of the free memory: training may need more than the trial
CUDA_CONTEXT = 1 << 30  # bytes that a process takes of a GPU besides its tensors
MAX_MODELS = 8  # on a device: more do not train faster, whatever its memory
THREADS_PER_MODEL = {"cpu": 4, "cuda": 1}  # fewer are not worth a process
SEARCHED_ROWS = 4_096  # unlabelled rows among which the longest are looked for
TRIAL_ROWS = 64  # the longest rows, for the trial
DEVICE_NAMES = {"cpu": "machine", "cuda": "GPU"}


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one model at its peak, and the device's resources, in bytes and threads."""

    device: str
    peak: int
    free: int  # when no model is loaded
    threads: int  # of the machine, for this device


class Concurrency(NamedTuple):
    """The number of models to train at the same time on each device, and a sentence that gives the reason."""

    models: int
    reason: str


def fit_models(memory: MemoryUse, models: int) -> Concurrency:
    """How many of the run's models fit on a device; memory for one more is left to the main process."""
    limits = {
        "the memory": int(USABLE_FRACTION * memory.free // memory.peak) - 1,
        f"the number of threads, {memory.threads}": memory.threads // THREADS_PER_MODEL[memory.device],
        "the number of models": models,
        "the largest number that is worth it": MAX_MODELS,
    }
    limit = min(limits, key=lambda name: limits[name])
    count = max(1, limits[limit])
    need = f"one takes {memory.peak / 2**30:.1f} of {memory.free / 2**30:.1f} GiB that are free"
    return Concurrency(count, f"at once: {count} on each {DEVICE_NAMES[memory.device]}; {need}, the limit is {limit}")


def fit_models_per_device(worker: Worker, executor: Executor) -> Concurrency:
    """The number of models to train at the same time on each device, by a trial in the executor's one process."""
    plan = worker.plan
    if plan.method in SEMI_SUPERVISED:
        return Concurrency(1, f"at once: 1; the memory of the method '{plan.method}' is not measured")
    if plan.method == "frozen":
        return Concurrency(1, "at once: 1; the method 'frozen' trains no models")
    models = plan.recipe.repetitions
    if plan.method != "supervised":  # members that share a batch are measured, and counted, as one
        models = -(-models * plan.member_pairs // max_group_size(plan, worker.context.device))
    executor.start(worker, 1)
    executor.submit(Trial())
    ((_, result),) = executor.as_completed()
    return fit_models(result.value, models)


def plan_at_once(plan: Plan, context: RunContext, devices: str | int = "auto") -> Concurrency:
    """The same on this machine before a run starts, in a temporary folder."""
    with TemporaryDirectory() as path, RunFolder(path) as folder, single_worker_executor(devices=devices) as executor:
        return fit_models_per_device(Worker(plan, folder, context), executor)


@dataclass(frozen=True)
class Trial:
    """The job that measures one model; its value is a `MemoryUse`."""

    name: str = "a trial of one model"

    def run(self, worker: Worker) -> JobResult:
        """Train and score as members and classifiers do, on the longest rows."""
        plan, context = worker.plan, worker.context
        trial_plan = replace(
            plan,
            labeled=_longest_rows(plan.labeled) if len(plan.labeled) else plan.labeled,
            unlabeled=None if plan.unlabeled is None else _longest_rows(plan.unlabeled),
        )
        if plan.method != "supervised":
            rows = -(-TOKENS_PER_BATCH[context.device] // plan.recipe.max_seq_length)  # that fill a batch
            time_member(trial_plan, context, rows)
        time_classifier(
            trial_plan, context, trial_plan.labeled if trial_plan.unlabeled is None else trial_plan.unlabeled
        )
        return JobResult("measured", _measure_memory(context.device))


def _longest_rows(rows: Rows) -> Rows:
    """The rows with the most text, among the first thousands."""
    stop = min(len(rows), SEARCHED_ROWS)
    columns = [rows.texts(name, 0, stop) for name in rows.task.fields]
    lengths = np.sum([[len(text) for text in column] for column in columns], axis=0)
    return rows.select(np.sort(np.argsort(-lengths, kind="stable")[:TRIAL_ROWS]))


def _measure_memory(device: str) -> MemoryUse:
    """The peak memory of this process, and what is free without it."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_reserved() + CUDA_CONTEXT
        reserved = torch.cuda.memory_reserved() + CUDA_CONTEXT
        return MemoryUse("cuda", peak, free + reserved, torch.get_num_threads())
    import psutil

    resident = psutil.Process().memory_info().rss
    status = Path("/proc/self/status")  # on Linux it has the peak
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8")) if status.exists() else None
    peak = int(match[1]) << 10 if match else resident
    return MemoryUse("cpu", peak, psutil.virtual_memory().available + resident, torch.get_num_threads())
