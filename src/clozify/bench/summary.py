"""What the page, the Markdown, the JSON and the terminal show: a bench's results by data set and method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from clozify.bench.draws import DATA, DATA_SET
from clozify.bench.results import FAILED, LOG, CellResult
from clozify.bench.rivals import RIVALS
from clozify.bench.statistics import Estimate, Rank, estimate, frontier, paired_difference, ranks
from clozify.bench.variants import Variant, variant_names

REFERENCES = ("pet", "ipet", "supervised")  # what others are compared with: the first of these that was run
LOG_LINES = 12  # of a failed cell


@dataclass(frozen=True)
class Block:
    """A data set with a number of rows a label."""

    data: str
    per_label: int


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block's draws."""

    block: Block
    labeled: int
    unlabeled: int  # of methods that use them
    draws: int
    notes: list[str]

    @property
    def text(self) -> str:
        """The rows of a draw, and what is unusual about them, in sentences."""
        each = f"{self.labeled:,} labelled and {self.unlabeled:,} unlabelled rows"
        each += "." if self.draws == 1 else f" in each of {self.draws} draws."
        return " ".join([each, *self.notes])


@dataclass(frozen=True)
class DrawResult:
    """A method on one draw."""

    draw: int
    seed: int
    accuracy: float
    macro_f1: float


@dataclass(frozen=True)
class Entry:
    """A method in a block: means over the draws."""

    name: str  # of the variant
    method: str
    block: Block
    accuracy: Estimate | None  # None where every draw failed
    macro_f1: Estimate | None
    difference: Estimate | None  # in accuracy, from the reference method; None for itself
    training_seconds: float | None
    rows_per_second: float | None
    memory_bytes: float | None
    gpu_bytes: float | None
    size_bytes: float | None
    failures: int
    results: list[DrawResult]
    common_accuracy: float | None  # the mean over the draws that all methods of the block have; ranks are by it
    missing_draws: int = 0  # draws of the block for which it has no result
    is_best: bool = False

    @property
    def draws_note(self) -> str:
        """`1 of 3 draws`, where it lacks the results of some; else empty."""
        if self.accuracy is None or not self.missing_draws:
            return ""
        return f"{self.accuracy.draws} of {self.accuracy.draws + self.missing_draws} draws"


@dataclass(frozen=True)
class DataSetNote:
    """A data set on the page."""

    name: str
    labels: int
    test_rows: int
    test: str  # where the test rows come from
    notes: list[str]


@dataclass(frozen=True)
class MethodNote:
    """What was run under a name."""

    name: str
    settings: str
    model: str
    recipe: str
    max_length: int
    unlabeled: str  # whether it used unlabelled rows
    versions: dict[str, str]


@dataclass(frozen=True)
class Failure:
    """Cells of a method that failed for one reason, with the end of the first one's log."""

    name: str  # of the method
    cells: list[str]
    reason: str
    log: str
    file: str  # of the log, in the bench's folder


@dataclass(frozen=True)
class MethodPoint:
    """A method over all blocks in which all methods have results of the same draws."""

    name: str
    accuracy: float  # mean, of these draws
    training_seconds: float  # geometric mean
    rows_per_second: float  # geometric mean
    rank: Rank
    on_training_frontier: bool
    on_speed_frontier: bool


@dataclass(frozen=True)
class Summary:
    """Everything that is shown of a bench."""

    names: list[str]  # of the methods that were run, in the order of the columns
    reference: str  # whose accuracy is subtracted from the others'
    blocks: list[Block]
    rows: list[BlockRows]  # of each block
    entries: list[Entry]
    points: list[MethodPoint]  # empty where no block is complete
    complete_blocks: int
    data_sets: list[DataSetNote]
    methods: list[MethodNote]
    machines: list[str]
    failures: list[Failure]
    commands: list[str]
    cells: int
    at_once: int  # the most cells at a time on a device

    @property
    def failed_cells(self) -> int:
        """How many cells failed."""
        return sum(len(failure.cells) for failure in self.failures)

    def entry(self, block: Block, name: str) -> Entry | None:
        """A method's entry in a block; None where it was not run there."""
        return self._index.get((block, name))

    @cached_property
    def _index(self) -> dict[tuple[Block, str], Entry]:
        return {(entry.block, entry.name): entry for entry in self.entries}

    def block_entries(self, block: Block) -> list[Entry]:
        """The methods of a block, in the order of the columns."""
        return [entry for name in self.names if (entry := self.entry(block, name)) is not None]

    def block_rows(self, block: Block) -> BlockRows:
        """The rows of a block's draws."""
        return next(rows for rows in self.rows if rows.block == block)

    def sizes(self, data: str) -> list[int]:
        """The numbers of rows a label of a data set."""
        return [block.per_label for block in self.blocks if block.data == data]


def summarize(results: Sequence[CellResult], folder: Path, commands: Sequence[str]) -> Summary:
    """The results of all cells in a bench's folder, by data set, rows a label and method."""
    order = list(RIVALS)
    cells = [result for result in results if result.spec.method in order]
    variants = sorted({Variant.of(result.spec) for result in cells}, key=lambda v: (order.index(v.method), str(v)))
    names = dict(zip(variants, variant_names(variants), strict=True))
    data_names = list(dict.fromkeys(sorted(result.spec.data for result in cells)))
    blocks = [
        Block(name, size)
        for name in data_names
        for size in sorted({result.spec.per_label for result in cells if result.spec.data == name})
    ]
    reference = _reference(cells, names)
    entries = [entry for block in blocks for entry in _entries(cells, block, names, reference)]
    points, complete = _points(entries, blocks, list(names.values()))
    return Summary(
        names=list(names.values()),
        reference=reference,
        blocks=blocks,
        rows=[_block_rows(cells, block) for block in blocks],
        entries=entries,
        points=points,
        complete_blocks=complete,
        data_sets=[_data_set_note(cells, name, folder) for name in data_names],
        methods=[_method_note(cells, variant, name) for variant, name in names.items()],
        machines=list(dict.fromkeys(result.machine for result in cells)),
        failures=_failures([result for result in cells if result.failure], names, folder),
        commands=list(commands),
        cells=len(cells),
        at_once=max((result.at_once for result in cells), default=1),
    )


def _reference(results: Sequence[CellResult], names: dict[Variant, str]) -> str:
    """The method that others are compared with: the first of `REFERENCES` with a result, else the first with one."""
    done = {Variant.of(result.spec) for result in results if result.accuracy is not None}
    with_results = [variant for variant in names if variant in done]
    methods = {variant.method for variant in with_results}
    method = next((name for name in REFERENCES if name in methods), None)
    return next((names[variant] for variant in with_results if method in (None, variant.method)), "")


def _in_block(results: Sequence[CellResult], block: Block) -> list[CellResult]:
    return [result for result in results if (result.spec.data, result.spec.per_label) == (block.data, block.per_label)]


def _block_rows(results: Sequence[CellResult], block: Block) -> BlockRows:
    """The rows of a block's draws."""
    cells = _in_block(results, block)
    return BlockRows(
        block=block,
        labeled=max(cell.labeled_rows for cell in cells),
        unlabeled=max(cell.unlabeled_rows for cell in cells),
        draws=len({cell.spec.draw for cell in cells}),
        notes=list(dict.fromkeys(note for cell in cells for note in cell.notes)),
    )


def _entries(results: Sequence[CellResult], block: Block, names: dict[Variant, str], reference: str) -> list[Entry]:
    """The entries of a block."""
    cells: dict[str, list[CellResult]] = {}
    for result in _in_block(results, block):
        cells.setdefault(names[Variant.of(result.spec)], []).append(result)
    accuracies = {
        name: {cell.spec.draw: cell.accuracy for cell in of_method if cell.accuracy is not None}
        for name, of_method in cells.items()
    }
    draws = {cell.spec.draw for of_method in cells.values() for cell in of_method}
    with_results = [set(of_method) for of_method in accuracies.values() if of_method]
    common = sorted(set.intersection(*with_results)) if with_results else []
    means = {
        name: float(np.mean([of_method[draw] for draw in common]))
        for name, of_method in accuracies.items()
        if of_method and common
    }
    best = max(means.values(), default=None)
    return [
        replace(
            _entry(name, block, cells[name]),
            difference=None
            if name == reference
            else paired_difference(accuracies[name], accuracies.get(reference, {})),
            common_accuracy=means.get(name),
            missing_draws=len(draws) - len(accuracies[name]),
            is_best=name in means and means[name] == best,
        )
        for name in names.values()
        if name in cells
    ]


def _entry(name: str, block: Block, cells: Sequence[CellResult]) -> Entry:
    """The entry of a method in a block, without what follows from other methods."""
    done = sorted((cell for cell in cells if cell.measured is not None), key=lambda cell: cell.spec.draw)
    measured = [cell.measured for cell in done if cell.measured is not None]
    gpu = [one.gpu_bytes for one in measured if one.gpu_bytes is not None]
    return Entry(
        name=name,
        method=cells[0].spec.method,
        block=block,
        accuracy=_estimate([cell.accuracy for cell in done]),
        macro_f1=_estimate([cell.macro_f1 for cell in done]),
        difference=None,
        training_seconds=_mean([one.training_seconds for one in measured]),
        rows_per_second=_mean([cell.rows_per_second or 0.0 for cell in done]),
        memory_bytes=_mean([one.memory_bytes for one in measured]),
        gpu_bytes=_mean(gpu),
        size_bytes=_mean([one.size_bytes for one in measured]),
        failures=len(cells) - len(done),
        results=[
            DrawResult(cell.spec.draw, cell.spec.seed, cell.accuracy, cell.macro_f1)
            for cell in done
            if cell.accuracy is not None and cell.macro_f1 is not None
        ],
        common_accuracy=None,
    )


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    numbers = [value for value in values if value is not None]
    return estimate(numbers).clipped() if numbers else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _points(entries: Sequence[Entry], blocks: Sequence[Block], names: Sequence[str]) -> tuple[list[MethodPoint], int]:
    """The methods over all blocks in which all have results of the same draws, and the number of these blocks.

    A method without any result is left out, so that it does not empty the table.
    """
    index = {(entry.block, entry.name): entry for entry in entries if entry.common_accuracy is not None}
    names = [name for name in names if any((block, name) in index for block in blocks)]
    complete = [block for block in blocks if all((block, name) in index for name in names)]
    if not complete or len(names) < 2:
        return [], len(complete)
    accuracies = np.array([[index[block, name].common_accuracy for name in names] for block in complete], dtype=float)
    seconds = _geometric([[index[block, name].training_seconds for name in names] for block in complete])
    speeds = _geometric([[index[block, name].rows_per_second for name in names] for block in complete])
    means = accuracies.mean(axis=0).tolist()
    fast_training, fast_prediction = frontier(seconds, means), frontier([-speed for speed in speeds], means)
    lines = zip(names, means, seconds, speeds, ranks(accuracies), fast_training, fast_prediction, strict=True)
    return [MethodPoint(*line) for line in lines], len(complete)


def _geometric(values: Sequence[Sequence[float | None]]) -> list[float]:
    """The geometric mean of each column."""
    table = np.array([[max(value or 0.0, 1e-3) for value in row] for row in values])
    means: list[float] = np.exp(np.log(table).mean(axis=0)).tolist()
    return means


def _data_set_note(results: Sequence[CellResult], name: str, folder: Path) -> DataSetNote:
    one = next(result for result in results if result.spec.data == name)
    path = folder / DATA / one.spec.data_key / DATA_SET
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    source = "Held out from the labelled rows." if content.get("held_out") else str(content.get("test_source", ""))
    return DataSetNote(name, one.labels, one.test_rows, source, list(content.get("notes", [])))


def _method_note(results: Sequence[CellResult], variant: Variant, name: str) -> MethodNote:
    cells = [result for result in results if Variant.of(result.spec) == variant]
    versions: dict[str, str] = {}
    for cell in cells:
        versions |= cell.measured.versions if cell.measured is not None else {}
    options = ", ".join(
        f"{option} {value}" for option, value in variant.options if option.partition("-")[0] != "setfit"
    )
    settings = "; ".join(filter(None, [cells[0].settings, *variant.settings, options]))
    uses = "not used"
    if RIVALS[variant.method].UNLABELED:
        uses = "used" if any(cell.unlabeled_rows for cell in cells) else "there were none"
    return MethodNote(name, settings, variant.model, variant.recipe, variant.max_length, uses, versions)


def _failures(results: Sequence[CellResult], names: dict[Variant, str], folder: Path) -> list[Failure]:
    """The failed cells, by method and reason."""
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for result in results:
        groups.setdefault((names[Variant.of(result.spec)], result.failure), []).append(result)
    failures = []
    for (name, reason), of_group in groups.items():
        specs = [result.spec for result in of_group]
        path = folder / FAILED / of_group[0].key / LOG
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        log = "\n".join(text.rstrip().splitlines()[-LOG_LINES:])
        cells = [f"{spec.data}, {spec.per_label} a label, draw {spec.draw}" for spec in specs]
        failures.append(Failure(name, cells, reason, log, str(path.relative_to(folder))))
    return failures
