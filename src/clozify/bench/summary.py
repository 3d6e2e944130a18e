"""What the page, the Markdown, the JSON and the terminal show: a bench's results by data set and method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clozify.bench.draws import DATA, DATA_SET
from clozify.bench.entries import Block, Entry, block_entries, in_block
from clozify.bench.points import MethodPoint, method_points
from clozify.bench.results import FAILED, LOG, CellResult
from clozify.bench.rivals import RIVALS
from clozify.bench.variants import Variant, variant_names

REFERENCES = ("pet", "ipet", "supervised")  # what others are compared with: the first of these that was run
LOG_LINES = 12  # of a failed cell


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block's draws."""

    block: Block
    labeled: int
    unlabeled: int | None  # None where no method uses them
    draws: int
    notes: list[str]

    @property
    def text(self) -> str:
        """The rows of a draw, and what is unusual about them, in sentences."""
        unlabeled = "" if self.unlabeled is None else f" and {self.unlabeled:,} unlabelled"
        each = f"{self.labeled:,} labelled{unlabeled} rows"
        each += "." if self.draws == 1 else f" in each of {self.draws} draws."
        return " ".join([each, *self.notes])


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
    versions: dict[str, str]  # of a package; several where cells ran with several


@dataclass(frozen=True)
class Failure:
    """Cells of a method that failed for one reason, with the end of the first one's log."""

    name: str  # of the method
    cells: list[str]
    reason: str
    log: str
    file: str  # of the log, in the bench's folder


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

    @property
    def rank_sizes(self) -> list[int]:
        """The numbers of rows a label that have a mean rank of their own; empty where there is one number."""
        sizes = sorted(self.points[0].rank_by_size) if self.points else []
        return sizes if len(sizes) > 1 else []

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
    entries = [entry for block in blocks for entry in block_entries(cells, block, names, reference)]
    points, complete = method_points(entries, blocks, list(names.values()))
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
        machines=sorted({result.machine for result in _with_times(cells)}),
        failures=_failures([result for result in cells if result.failure], names, folder),
        commands=list(commands),
        cells=len(cells),
        at_once=max((result.at_once for result in cells), default=1),
    )


def _with_times(results: Sequence[CellResult]) -> Sequence[CellResult]:
    """The results that have times, or all where every cell failed."""
    return [result for result in results if result.measured is not None] or results


def _reference(results: Sequence[CellResult], names: dict[Variant, str]) -> str:
    """The method that others are compared with: the first of `REFERENCES` with a result, else the first with one."""
    done = {Variant.of(result.spec) for result in results if result.accuracy is not None}
    with_results = [variant for variant in names if variant in done]
    methods = {variant.method for variant in with_results}
    method = next((name for name in REFERENCES if name in methods), None)
    return next((names[variant] for variant in with_results if method in (None, variant.method)), "")


def _block_rows(results: Sequence[CellResult], block: Block) -> BlockRows:
    """The rows of a block's draws."""
    cells = in_block(results, block)
    uses_unlabeled = any(RIVALS[cell.spec.method].UNLABELED for cell in cells)
    return BlockRows(
        block=block,
        labeled=max(cell.labeled_rows for cell in cells),
        unlabeled=max(cell.unlabeled_rows for cell in cells) if uses_unlabeled else None,
        draws=len({cell.spec.draw for cell in cells}),
        notes=list(dict.fromkeys(note for cell in cells for note in cell.notes)),
    )


def _data_set_note(results: Sequence[CellResult], name: str, folder: Path) -> DataSetNote:
    one = next(result for result in results if result.spec.data == name)
    path = folder / DATA / one.spec.data_key / DATA_SET
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    source = "Held out from the labelled rows." if content.get("held_out") else str(content.get("test_source", ""))
    return DataSetNote(name, one.labels, one.test_rows, source, list(content.get("notes", [])))


def _method_note(results: Sequence[CellResult], variant: Variant, name: str) -> MethodNote:
    cells = [result for result in results if Variant.of(result.spec) == variant]
    versions: dict[str, list[str]] = {}
    for cell in cells:
        for package, number in (cell.measured.versions if cell.measured is not None else {}).items():
            versions[package] = list(dict.fromkeys([*versions.get(package, []), number]))
    options = ", ".join(
        f"{option} {value}" for option, value in variant.options if option.partition("-")[0] != "setfit"
    )
    settings = "; ".join(filter(None, [cells[0].settings, *variant.settings, options]))
    uses = "not used"
    if RIVALS[variant.method].UNLABELED:
        uses = "used" if any(cell.unlabeled_rows for cell in cells) else "there were none"
    joined = {package: " and ".join(numbers) for package, numbers in versions.items()}
    return MethodNote(name, settings, variant.model, variant.recipe, variant.max_length, uses, joined)


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
