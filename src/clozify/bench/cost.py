"""Estimates the time of a bench before it is spent.

The time of a cell is that of earlier cells of the same method and size in the folder; else it follows from a few steps
and rows of the encoder that are run on this machine, once for each data set, and from how often each method trains on a
row and scores one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from clozify.bench.draws import Draw
from clozify.bench.environments import environment_folder, is_ready
from clozify.bench.plan import BenchOptions, BenchPlan, Cell, make_plan, max_length_of
from clozify.bench.results import CELLS, RESULT, CellResult, check_folder, check_output, read_results
from clozify.bench.rivals.clozify_run import run_settings
from clozify.bench.rivals.finetune import BATCH_ROWS, training_steps
from clozify.executors.devices import choose_devices
from clozify.pipeline.cost import ClassifierTiming, MemberTiming, generation_costs, time_classifier, time_member
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from clozify.runs.plan import Plan

START_SECONDS = 10.0  # of a process: imports and loading
PAIR_ROWS, PAIRS_PER_ROW = 2, 40  # of SetFit: texts of a pair, and pairs a row at most
FASTFIT_EPOCHS = 40
DISTILLED_ROWS = 30_000  # the words of a vocabulary, which model2vec encodes


@dataclass(frozen=True)
class MethodCost:
    """The cells of a method that have no result yet."""

    name: str
    cells: int
    seconds: float
    basis: str  # what the estimate is from


@dataclass
class BenchCost:
    """The cost of a bench; the names are those of `--plan --json`."""

    cells: int
    done: int
    seconds: float  # with as many cells at a time as asked for
    at_once: int
    methods: list[MethodCost] = field(default_factory=list)
    environments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Timing:
    """Measured on one data set: a step and a row of a cloze model, and a step of a classifier."""

    member: MemberTiming
    classifier: ClassifierTiming
    batch_rows: int  # of the classifier's steps

    @property
    def trained_row(self) -> float:
        """Seconds of training on a row."""
        return self.classifier.step_seconds / self.batch_rows


def plan_cost(options: BenchOptions) -> BenchCost:
    """The cost of the cells that have no result yet; nothing is written."""
    folder = check_output(options.output)
    devices = choose_devices(options.devices, options.at_once)
    plan = make_plan(options, devices.kind)
    check_folder(folder, plan.data_sets)
    remaining = [cell for cell in plan.cells if not (folder / CELLS / cell.key / RESULT).is_file()]
    earlier = [result for result in read_results(folder) if not result.failure] if folder.is_dir() else []
    estimates = _Estimates(plan, earlier)
    lines = []
    for rival in plan.rivals:
        cells = [cell for cell in remaining if cell.rival is rival]
        if cells:
            times = [estimates.cell(cell) for cell in cells]
            basis = " and ".join(dict.fromkeys(basis for _, basis in times))
            lines.append(MethodCost(rival.TITLE, len(cells), sum(seconds for seconds, _ in times), basis))
    at_once = devices.count * devices.at_once
    notes = [
        *plan.notes,
        *["Cells that run at a time slow each other down; the estimate does not know how much."] * (at_once > 1),
    ]
    if any(rival.NEEDS for rival in plan.rivals):
        notes.append("The time of an NLI model's or an LLM's answers is not included.")
    return BenchCost(
        cells=len(plan.cells),
        done=len(plan.cells) - len(remaining),
        seconds=sum(line.seconds for line in lines) / at_once,
        at_once=at_once,
        methods=lines,
        environments=[
            f"{environment_folder(rival)} for {rival.TITLE} (pip install {' '.join(rival.REQUIREMENTS)})"
            for rival in {cell.rival.NAME: cell.rival for cell in remaining}.values()
            if rival.REQUIREMENTS and rival.NAME not in options.environments and not is_ready(rival)
        ],
        notes=notes,
    )


class _Estimates:
    """Seconds of cells; each data set is timed once, when it is first needed."""

    def __init__(self, plan: BenchPlan, earlier: list[CellResult]) -> None:
        self.plan, self.earlier = plan, earlier
        self._timings: dict[str, Timing] = {}

    def cell(self, cell: Cell) -> tuple[float, str]:
        """The seconds of a cell, and what they are from."""
        spec = cell.spec
        measured = [
            result.seconds
            for result in self.earlier
            if replace(result.spec, draw=spec.draw, seed=spec.seed) == spec and result.device == self.plan.device
        ]
        if measured:
            return float(np.mean(measured)), "earlier cells"
        if cell.rival.ENCODER == "none":
            return START_SECONDS, "its start alone"
        return START_SECONDS + self._seconds(cell), "timed steps"

    def _seconds(self, cell: Cell) -> float:
        draw, name = cell.draw, cell.rival.NAME
        timing = self.timing(draw)
        labeled, test = len(draw.labeled), len(draw.data_set.test)
        unlabeled = 0 if draw.unlabeled is None else len(draw.unlabeled)
        row = timing.member.row_seconds
        pairs = len(draw.data_set.data.task.pairs)
        simple: dict[str, Callable[[], float]] = {
            "embeddings": lambda: (labeled + test) * row,
            "zero-shot": lambda: (unlabeled + test) * pairs * row,
            "setfit": lambda: setfit_pairs(draw) * PAIR_ROWS * timing.trained_row + test * row,
            "model2vec": lambda: DISTILLED_ROWS * row / 4,
            "fastfit": lambda: FASTFIT_EPOCHS * labeled * timing.trained_row + test * row,
            "finetune": lambda: training_steps(labeled) * BATCH_ROWS * timing.trained_row + test * row,
        }
        if name in simple:
            return simple[name]()
        return self._clozify(cell, timing) + test * row

    def _clozify(self, cell: Cell, timing: Timing) -> float:
        """The seconds of a run: its members' steps and scores, and its classifiers' steps."""
        plan = self._plan(cell.draw, cell.rival.NAME)
        static_rows = 0 if plan.static_rows is None else len(plan.static_rows)
        unlabeled = 0 if plan.unlabeled is None else len(plan.unlabeled)
        if plan.method == "frozen":
            return (len(plan.labeled) + unlabeled) * len(plan.task.patterns) * timing.member.row_seconds
        supervised = plan.method == "supervised"
        generations = generation_costs(plan)
        member_steps = sum(generation.members * generation.steps for generation in generations)
        rows = sum(generation.rows_to_score(plan) for generation in generations)
        section = plan.recipe.supervised if supervised else plan.recipe.distill
        trained_rows = len(plan.labeled) if supervised else unlabeled
        classifiers = plan.recipe.repetitions if supervised or plan.is_distilled else 0
        classifier_steps = classifiers * section.steps(trained_rows)
        return (
            member_steps * timing.member.step_seconds
            + (rows + static_rows) * timing.member.row_seconds
            + classifier_steps * timing.classifier.step_seconds
        )

    def _plan(self, draw: Draw, method: str) -> Plan:
        options, static = self.plan.options, method == "pet-static"
        max_length = max_length_of(options, self.plan.device)
        return prepare(
            TrainInputs(
                draw.data_set.data.task,
                draw.labeled,
                None if method == "supervised" else draw.unlabeled,
                method="pet" if static else method,
                model=options.model,
                student="static" if static else None,
                recipe=options.recipe,
                settings=run_settings(max_length, draw.seed, options.settings),
                allow_overlap=True,
            ),
            self.plan.device,
        )

    def timing(self, draw: Draw) -> Timing:
        """A few steps and rows, measured."""
        name = draw.data_set.name
        if name not in self._timings:
            plan = self._plan(draw, "pet")
            context = RunContext(self.plan.device)
            rows = plan.labeled if plan.unlabeled is None else plan.unlabeled
            self._timings[name] = Timing(
                time_member(plan, context), time_classifier(plan, context, rows), plan.recipe.distill.rows_per_step
            )
        return self._timings[name]


def setfit_pairs(draw: Draw) -> int:
    """The pairs that SetFit trains on: as many of equal as of different labels, at most 40 a row."""
    counts = np.bincount(draw.labeled.labels).astype(np.int64)
    alike = int((counts * (counts - 1) // 2).sum())
    unlike = len(draw.labeled) * (len(draw.labeled) - 1) // 2 - alike
    return min(2 * max(alike, unlike), PAIRS_PER_ROW * len(draw.labeled))
