"""The entries of a bench's tables: a method on a data set with a number of rows a label, as means over the draws."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clozify.bench.results import CellResult
from clozify.bench.statistics import Estimate, estimate, paired_difference
from clozify.bench.variants import Variant


@dataclass(frozen=True)
class Block:
    """A data set with a number of rows a label."""

    data: str
    per_label: int


@dataclass(frozen=True)
class DrawResult:
    """A method on one draw."""

    draw: int
    seed: int
    accuracy: float
    macro_f1: float
    training_seconds: float
    rows_per_second: float
    machine: str


@dataclass(frozen=True)
class CommonMeans:
    """Means over the draws that all methods of a block have."""

    accuracy: float
    training_seconds: float
    rows_per_second: float


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
    common: CommonMeans | None = None  # what methods are ranked by; None where there is no such draw
    missing_draws: int = 0  # draws of the block for which it has no result
    is_best: bool = False

    @property
    def draws_note(self) -> str:
        """`1 of 3 draws`, where it lacks the results of some; else empty."""
        if self.accuracy is None or not self.missing_draws:
            return ""
        return f"{self.accuracy.draws} of {self.accuracy.draws + self.missing_draws} draws"


def in_block(results: Sequence[CellResult], block: Block) -> list[CellResult]:
    """The cells of a block."""
    return [result for result in results if (result.spec.data, result.spec.per_label) == (block.data, block.per_label)]


def block_entries(
    results: Sequence[CellResult], block: Block, names: dict[Variant, str], reference: str
) -> list[Entry]:
    """The entries of a block."""
    cells: dict[str, list[CellResult]] = {}
    for result in in_block(results, block):
        cells.setdefault(names[Variant.of(result.spec)], []).append(result)
    draws = {cell.spec.draw for of_method in cells.values() for cell in of_method}
    entries = {name: _entry(name, block, cells[name]) for name in names.values() if name in cells}
    accuracies = {name: {one.draw: one.accuracy for one in entry.results} for name, entry in entries.items()}
    with_results = [set(of_method) for of_method in accuracies.values() if of_method]
    shared = set.intersection(*with_results) if with_results else set()
    means = {name: _common_means(entry, shared) for name, entry in entries.items()}
    common = {name: mean.accuracy for name, mean in means.items() if mean is not None}
    highest = max(common.values(), default=None)
    return [
        replace(
            entry,
            difference=None
            if name == reference
            else paired_difference(accuracies[name], accuracies.get(reference, {})),
            common=means[name],
            missing_draws=len(draws) - len(accuracies[name]),
            is_best=name in common and common[name] == highest,
        )
        for name, entry in entries.items()
    ]


def _common_means(entry: Entry, draws: Collection[int]) -> CommonMeans | None:
    """An entry's means over these draws; None without any."""
    results = [one for one in entry.results if one.draw in draws]
    if not results:
        return None
    columns = [(one.accuracy, one.training_seconds, one.rows_per_second) for one in results]
    return CommonMeans(*np.mean(columns, axis=0).tolist())


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
            DrawResult(
                cell.spec.draw,
                cell.spec.seed,
                cell.accuracy,
                cell.macro_f1,
                cell.measured.training_seconds,
                cell.rows_per_second or 0.0,
                cell.machine,
            )
            for cell in done
            if cell.measured is not None and cell.accuracy is not None and cell.macro_f1 is not None
        ],
    )


def _estimate(values: Sequence[float | None]) -> Estimate | None:
    numbers = [value for value in values if value is not None]
    return estimate(numbers).clipped() if numbers else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
