"""What a table or figure is made of: rows of entries, each with the cells that its number comes from.

In: what is asked for (tasks, training-set sizes, methods). Out: the parts that `tables.py` and `figures.py` put
together to an `Exhibit`. An exhibit is always whole: what is not asked for stands there too, with the paper's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from clozify.errors import DataError
from clozify.reproduce import paper
from clozify.reproduce.cells import Cell
from clozify.reproduce.data_locations import TITLES
from clozify.reproduce.paper import Value


@dataclass(frozen=True)
class Entry:
    """One place of an exhibit."""

    cells: tuple[Cell, ...] = ()  # none: a value that is only quoted
    measure: str = "classifier"
    part: str = ""  # of the test set; the first if empty
    paper: Value | str | None = None
    how: Literal["mean", "difference"] = "mean"  # what is done with several cells
    asked: bool = False


@dataclass(frozen=True)
class Row:
    """A line of a table, or of a figure."""

    group: str
    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure."""

    name: str
    caption: str
    model: str  # the paper's
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    heads: tuple[str, str] = ("", "")  # over the groups and the names
    metric: str = "accuracy"
    remarks: tuple[str, ...] = ()

    def asked(self) -> list[Cell]:
        """The cells to run, each once, in the order of the rows."""
        entries = [entry for row in self.rows for entry in row.entries if entry.asked]
        return list(dict.fromkeys(cell for entry in entries for cell in entry.cells))


@dataclass(frozen=True)
class TableRequest:
    """What of an exhibit is wanted; None is all that the paper has."""

    tasks: list[str] | None = None
    examples: list[str] | None = None
    methods: list[str] | None = None
    sizes: list[int] = field(default_factory=list)

    def columns(self, known: Sequence[str] = paper.ENGLISH) -> list[str]:
        """The paper's tasks and those that are asked for beside."""
        return [*known, *(task for task in self.tasks or [] if task not in known)]

    def rows(self, known: Sequence[int]) -> list[int]:
        """The paper's training-set sizes and those that are asked for beside, by size."""
        return sorted({*known, *self.sizes})

    def wants(self, cells: Sequence[Cell], size: int | str) -> bool:
        """Whether an entry is to be run."""
        return all(
            (self.tasks is None or cell.task.partition("-")[0] in self.tasks)
            and (self.examples is None or str(size) in self.examples)
            and (self.methods is None or cell.method in self.methods or cell.method == "words")
            for cell in cells
        )

    def entry(self, *cells: Cell, size: int | str | None = None, **more: object) -> Entry:
        """An entry of these cells."""
        wanted = self.wants(cells, cells[0].examples if size is None else size)
        return replace(Entry(cells, asked=wanted), **more)  # type: ignore[arg-type]


def part_of(task: str) -> str:
    """The part of the test set that a task is reported on: of MNLI, outside table 1, the matched one."""
    return "m" if task == "mnli" else "test"


def title_of(task: str) -> str:
    """A task's name in the paper."""
    return TITLES[task]


def one_size(request: TableRequest, default: int) -> int:
    """The only size of the training set."""
    if len(request.sizes) > 1:
        raise DataError(f"This takes one number of examples (the paper's is {default}), not {len(request.sizes)}.")
    return request.sizes[0] if request.sizes else default


def one_task(request: TableRequest) -> str:
    """The only task."""
    if request.tasks is not None and len(request.tasks) > 1:
        raise DataError(f"This takes one task (the paper's is yelp), not {len(request.tasks)}.")
    return request.tasks[0] if request.tasks else "yelp"
