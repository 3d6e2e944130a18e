"""Implements `clozify bench`: runs the cells that have no result yet, and writes the page."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from clozify import __version__
from clozify.bench.cell import BROKEN, DONE, ENCODERS, STOPPED, CellJob, CellOutcome
from clozify.bench.draws import write_data_set, write_draw
from clozify.bench.environments import Environment, choose_environment, is_ready, make_environment
from clozify.bench.plan import BenchOptions, BenchPlan, Cell, make_plan
from clozify.bench.results import CELLS, KIND, RUN, check_folder, check_output, read_results, read_run
from clozify.bench.summary import Summary, summarize
from clozify.bench.write import write_bench
from clozify.config.recipe import load_recipe
from clozify.errors import RunError
from clozify.executors.accelerate_launch import launched_processes
from clozify.executors.base import Executor
from clozify.executors.ray import RayExecutor
from clozify.executors.select import choose_executor
from clozify.models.language_model import load_model
from clozify.report.format import rough_duration
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.keys import model_key
from clozify.runs.plan import Plan, empty_rows
from clozify.runs.worker import Worker
from clozify.utils.libraries import quiet_transformers

PAGE_SECONDS = 30.0  # the page is written no more often while cells run


@dataclass(frozen=True)
class BenchResult:
    """What a bench did."""

    summary: Summary
    files: list[Path]
    done: int  # cells that ran now
    reused: int  # cells with a result from before
    failed: int
    left: int  # cells for which there was no time


def run_bench(options: BenchOptions) -> BenchResult:
    """Run the cells that have no result yet; writes and returns the results of all cells in the folder."""
    check_output(options.output)
    with _executor(options) as (device, executor):
        plan = make_plan(options, device)
        with RunFolder(options.output) as folder:
            _start_folder(folder, plan)
            remaining = [cell for cell in plan.cells if not folder.has_job(CELLS, cell.key, options.log)]
            count = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}"
            options.log(f"{count}, {len(plan.cells) - len(remaining)} done before")
            for note in plan.notes:
                options.log(f"note: {note}")
            environments = _environments(remaining, options)
            for cell in remaining:
                write_data_set(folder, cell.draw.data_set)
                write_draw(folder, cell.draw)
            encoder_key = _write_encoder(folder, plan, remaining)
            deadline = None if options.hours is None else time.time() + 3600 * options.hours
            jobs = [_job(cell, options, environments[cell.rival.NAME], encoder_key, deadline) for cell in remaining]
            try:
                outcomes = _run_jobs(jobs, executor, _worker(plan, folder, device))
            except KeyboardInterrupt:
                _write_page(folder.path)
                done = sum(folder.has_job(CELLS, cell.key) for cell in plan.cells)
                options.log(f"interrupted: {done} of {count} are done; the same command runs the others")
                raise
            summary, files = _write_page(folder.path)
    return BenchResult(
        summary=summary,
        files=files,
        done=outcomes[DONE],
        reused=len(plan.cells) - len(remaining),
        failed=outcomes[BROKEN],
        left=outcomes[STOPPED],
    )


@contextmanager
def _executor(options: BenchOptions) -> Iterator[tuple[str, Executor]]:
    """The kind of device that cells run on, and the executor."""
    if launched_processes() > 1:
        raise RunError("A bench is not started by Accelerate's launcher; start the command without it.")
    device, context = choose_executor(options.executor, options.address, options.devices, options.at_once)
    with context as executor:
        yield (executor.resources.device if isinstance(executor, RayExecutor) else device), executor


def _environments(cells: Sequence[Cell], options: BenchOptions) -> dict[str, Environment]:
    """The environment of every method of these cells; those that are missing are made now."""
    environments = {}
    for rival in {cell.rival.NAME: cell.rival for cell in cells}.values():
        named, failure = options.environments.get(rival.NAME), ""
        if rival.REQUIREMENTS and named is None and not is_ready(rival):
            try:
                make_environment(rival, options.log)
            except (RunError, OSError, subprocess.SubprocessError) as error:  # its cells fail, the others go on
                failure = str(error).rstrip(".")
                options.log(f"note: {failure}.")
        environments[rival.NAME] = replace(choose_environment(rival, named), failure=failure)
    return environments


def _start_folder(folder: RunFolder, plan: BenchPlan) -> None:
    """Check that the folder is a bench's, with the same rows under the same names; writes `run.json`."""
    check_folder(folder.path, plan.data_sets)
    content = read_run(folder.path)
    command = shlex.join(["clozify", *sys.argv[1:]]) if sys.argv[1:2] == [KIND] else "clozify.bench.run.run_bench(...)"
    content["commands"] = list(dict.fromkeys([*content["commands"], command]))
    content["cells"] |= {cell.spec.slot: cell.key for cell in plan.cells}
    folder.write_json(RUN, content | {"clozify": __version__})


def _write_encoder(folder: RunFolder, plan: BenchPlan, remaining: Sequence[Cell]) -> str | None:
    """Write the encoder as an ordinary folder of Transformers, where a method asks for one; returns its key."""
    if not any(cell.rival.ENCODER == "folder" for cell in remaining):
        return None
    key = model_key(plan.options.model).rpartition("/")[2]
    if not folder.has_job(ENCODERS, key):
        with folder.writing(ENCODERS, key) as path, quiet_transformers():
            load_model(plan.options.model).save(path)
    return key


def _job(
    cell: Cell, options: BenchOptions, environment: Environment, encoder_key: str | None, deadline: float | None
) -> CellJob:
    return CellJob(
        key=cell.key,
        spec=cell.spec,
        name=cell.name,
        draw_key=cell.draw.key,
        labeled_rows=len(cell.draw.labeled),
        notes=cell.draw.notes,
        unlabeled_rows=0 if cell.draw.unlabeled is None else len(cell.draw.unlabeled),
        environment=environment,
        encoder_key=encoder_key if cell.rival.ENCODER == "folder" else None,
        deadline=deadline,
        timeout=None if options.cell_minutes is None else 60 * options.cell_minutes,
        at_once=options.at_once,
    )


def _worker(plan: BenchPlan, folder: RunFolder, device: str) -> Worker:
    """The state that the executor's workers get; cells take only its folder and its device."""
    options, task = plan.options, plan.data_sets[0].data.task
    run_plan = Plan(
        task=task,
        recipe=load_recipe(options.recipe, options.settings),
        method=KIND,
        model=options.model,
        student=options.model,
        labeled=empty_rows(task),
    )
    return Worker(run_plan, folder, RunContext(device, log=options.log))


class TimeLeft:
    """Estimates the time of the cells that are left, from the cells of the same methods that have run."""

    def __init__(self, methods: Sequence[str]) -> None:
        self.began, self.left = time.monotonic(), Counter(methods)
        self.seconds: dict[str, list[float]] = {}

    def add(self, method: str, seconds: float) -> None:
        """Count a cell that has ended."""
        self.left[method] -= 1
        self.seconds.setdefault(method, []).append(seconds)

    @property
    def estimate(self) -> float | None:
        """Seconds, with as many cells at a time as so far; None where a method has not run yet."""
        left = {method: count for method, count in self.left.items() if count}
        if not left.keys() <= self.seconds.keys():
            return None
        spent = sum(map(sum, self.seconds.values()))
        total = sum(count * float(np.mean(self.seconds[method])) for method, count in left.items())
        return total * (time.monotonic() - self.began) / spent if spent else None


def _run_jobs(jobs: Sequence[CellJob], executor: Executor, worker: Worker) -> Counter[str]:
    """Run the cells; returns how many were done, failed and stopped."""
    outcomes: Counter[str] = Counter()
    if not jobs:
        return outcomes
    executor.start(worker, len(jobs))
    for job in jobs:
        executor.submit(job)
    time_left, written = TimeLeft([job.spec.method for job in jobs]), time.monotonic()
    for number, (finished, result) in enumerate(executor.as_completed(), start=1):
        outcome: CellOutcome = result.value
        outcomes[outcome.state] += 1
        if outcome.state == STOPPED:
            continue
        assert isinstance(finished, CellJob)
        time_left.add(finished.spec.method, outcome.seconds)
        estimate = time_left.estimate if number < len(jobs) else None
        left = "" if estimate is None else f", about {rough_duration(estimate)} left"
        worker.context.log(f"cell {number}/{len(jobs)}  {finished.name}  {result.summary}{left}")
        if time.monotonic() - written > PAGE_SECONDS:
            _write_page(worker.folder.path)
            written = time.monotonic()
    return outcomes


def _write_page(folder: Path) -> tuple[Summary, list[Path]]:
    """The summary of a bench's folder and its files, which are written once a cell has run."""
    summary = summarize(read_results(folder), folder, read_run(folder)["commands"])
    return summary, write_bench(summary, folder) if summary.cells else []
