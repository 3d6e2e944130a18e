"""What the page, the Markdown, the JSON and the terminal show: a bench's results by data set and method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clozify.bench.draws import DATA, DATA_SET
from clozify.bench.plan import CellSpec
from clozify.bench.results import FAILED, LOG, CellResult
from clozify.bench.rivals import RIVALS
from clozify.bench.statistics import Estimate, Rank, estimate, frontier, paired_difference, ranks

REFERENCES = ("pet", "ipet", "supervised")  # what others are compared with: the first of these that was run
LOG_LINES = 12  # of a failed cell


@dataclass(frozen=True)
class Variant:
    """A method with a model and settings: a column of the tables."""

    method: str
    model: str
    recipe: str
    settings: tuple[str, ...]
    max_length: int
    options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: CellSpec) -> Variant:
        """The variant of a cell."""
        return cls(spec.method, spec.model, spec.recipe, spec.settings, spec.max_length, spec.options)


@dataclass(frozen=True)
class Block:
    """A data set with a number of rows a label."""

    data: str
    per_label: int


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
    is_best: bool = False


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
    unlabeled: bool
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
    """A method over all blocks in which every method has a result."""

    name: str
    accuracy: float  # mean
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
    methods = {variant.method for variant in variants}
    reference_method = next((name for name in REFERENCES if name in methods), variants[0].method if variants else "")
    reference = next((name for variant, name in names.items() if variant.method == reference_method), "")
    entries = [entry for block in blocks for entry in _entries(cells, block, names, reference)]
    points, complete = _points(entries, blocks, list(names.values()))
    return Summary(
        names=list(names.values()),
        reference=reference,
        blocks=blocks,
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


def variant_names(variants: Sequence[Variant]) -> list[str]:
    """The methods' titles; where a method has several variants, with what tells them apart."""
    names = []
    for variant in variants:
        siblings = [other for other in variants if other.method == variant.method]
        parts = []
        if len({other.model for other in siblings}) > 1:
            parts.append(variant.model.rstrip("/").rpartition("/")[2])
        if len({(other.recipe, other.settings) for other in siblings}) > 1:
            parts += [variant.recipe, *variant.settings]
        if len({other.max_length for other in siblings}) > 1:
            parts.append(f"{variant.max_length} tokens")
        if len({other.options for other in siblings}) > 1:
            parts += [value.rstrip("/").rpartition("/")[2] for _, value in variant.options]
        title = RIVALS[variant.method].TITLE
        names.append(f"{title} ({', '.join(dict.fromkeys(filter(None, parts)))})" if parts else title)
    return names


def _entries(results: Sequence[CellResult], block: Block, names: dict[Variant, str], reference: str) -> list[Entry]:
    """The entries of a block."""
    cells: dict[str, list[CellResult]] = {}
    for result in results:
        if (result.spec.data, result.spec.per_label) == (block.data, block.per_label):
            cells.setdefault(names[Variant.of(result.spec)], []).append(result)
    accuracies = {
        name: {cell.spec.draw: cell.accuracy for cell in of_method if cell.accuracy is not None}
        for name, of_method in cells.items()
    }
    means = {name: float(np.mean(list(values.values()))) for name, values in accuracies.items() if values}
    best = max(means.values(), default=None)
    entries = []
    for name in names.values():
        if name not in cells:
            continue
        done = [cell for cell in cells[name] if cell.measured is not None]
        measured = [cell.measured for cell in done if cell.measured is not None]
        difference = None if name == reference else paired_difference(accuracies[name], accuracies.get(reference, {}))
        gpu = [one.gpu_bytes for one in measured if one.gpu_bytes is not None]
        entries.append(
            Entry(
                name=name,
                method=cells[name][0].spec.method,
                block=block,
                accuracy=_estimate([cell.accuracy for cell in done]),
                macro_f1=_estimate([cell.macro_f1 for cell in done]),
                difference=difference,
                training_seconds=_mean([one.training_seconds for one in measured]),
                rows_per_second=_mean([cell.rows_per_second or 0.0 for cell in done]),
                memory_bytes=_mean([one.memory_bytes for one in measured]),
                gpu_bytes=_mean(gpu),
                size_bytes=_mean([one.size_bytes for one in measured]),
                failures=len(cells[name]) - len(done),
                is_best=name in means and means[name] == best,
            )
        )
    return entries


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    numbers = [value for value in values if value is not None]
    return estimate(numbers).clipped() if numbers else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _points(entries: Sequence[Entry], blocks: Sequence[Block], names: Sequence[str]) -> tuple[list[MethodPoint], int]:
    """The methods over all blocks in which every method has a result, and the number of these blocks.

    A method without any result is left out, so that it does not empty the table.
    """
    index = {(entry.block, entry.name): entry for entry in entries if entry.accuracy is not None}
    names = [name for name in names if any((block, name) in index for block in blocks)]
    complete = [block for block in blocks if all((block, name) in index for name in names)]
    if not complete or len(names) < 2:
        return [], len(complete)
    accuracies = np.array([[_accuracy(index[block, name]) for name in names] for block in complete])
    seconds = _geometric([[index[block, name].training_seconds for name in names] for block in complete])
    speeds = _geometric([[index[block, name].rows_per_second for name in names] for block in complete])
    means = accuracies.mean(axis=0).tolist()
    fast_training, fast_prediction = frontier(seconds, means), frontier([-speed for speed in speeds], means)
    lines = zip(names, means, seconds, speeds, ranks(accuracies), fast_training, fast_prediction, strict=True)
    return [MethodPoint(*line) for line in lines], len(complete)


def _accuracy(entry: Entry) -> float:
    assert entry.accuracy is not None
    return entry.accuracy.mean


def _geometric(values: Sequence[Sequence[float | None]]) -> list[float]:
    """The geometric mean of each column."""
    table = np.array([[max(value or 0.0, 1e-3) for value in row] for row in values])
    means: list[float] = np.exp(np.log(table).mean(axis=0)).tolist()
    return means


def _data_set_note(results: Sequence[CellResult], name: str, folder: Path) -> DataSetNote:
    one = next(result for result in results if result.spec.data == name)
    path = folder / DATA / one.spec.data_key / DATA_SET
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    source = "held out from the labelled rows" if content.get("held_out") else str(content.get("test_source", ""))
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
    uses = RIVALS[variant.method].UNLABELED
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
