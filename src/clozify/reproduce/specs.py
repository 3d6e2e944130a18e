"""Specifications of tables and figures: rows of entries, each with the experiments that its value comes from.

`tables.py` and `figures.py` build a `TableSpec` from a `TableRequest`. A specification is always complete: entries that
were not requested are shown with the paper's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clozify.errors import DataError
from clozify.reproduce import paper
from clozify.reproduce.experiments import Experiment
from clozify.reproduce.paper import Value


@dataclass(frozen=True)
class Entry:
    """One value of a table, or one point of a figure."""

    experiments: tuple[Experiment, ...] = ()  # none: the paper's value is only quoted
    measure: str = "classifier"
    test_set: str = "test"  # 'm' and 'mm' for MNLI, a language for x-stance
    paper: Value | str | None = None
    combine: Literal["mean", "difference"] = "mean"  # of several experiments
    requested: bool = False


@dataclass(frozen=True)
class RowSpec:
    """A row of a table, or a line of a figure."""

    group: str
    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class TableSpec:
    """A table, or a figure as a table of its points."""

    name: str
    caption: str
    model: str  # the paper's
    columns: tuple[str, ...]
    rows: tuple[RowSpec, ...]
    row_headers: tuple[str, str] = ("", "")  # of the groups and the names
    metric: str = "accuracy"
    notes: tuple[str, ...] = ()

    def experiments(self) -> list[Experiment]:
        """All experiments, each once, in the order of the rows."""
        return list(dict.fromkeys(e for row in self.rows for entry in row.entries for e in entry.experiments))

    def requested_experiments(self) -> list[Experiment]:
        """The experiments to run, each once, in the order of the rows."""
        entries = [entry for row in self.rows for entry in row.entries if entry.requested]
        return list(dict.fromkeys(experiment for entry in entries for experiment in entry.experiments))


@dataclass(frozen=True)
class TableRequest:
    """The tasks, training-set sizes and methods of a table to run; None is all of the paper's."""

    tasks: list[str] | None = None
    examples: list[str] | None = None
    methods: list[str] | None = None
    sizes: list[int] = field(default_factory=list)  # the numbers among `examples`

    def all_tasks(self, paper_tasks: Sequence[str] = paper.ENGLISH) -> list[str]:
        """The paper's tasks, then other requested ones."""
        return [*paper_tasks, *(task for task in self.tasks or [] if task not in paper_tasks)]

    def all_sizes(self, paper_sizes: Sequence[int]) -> list[int]:
        """The paper's training-set sizes and other requested ones, sorted."""
        return sorted({*paper_sizes, *self.sizes})

    def includes(self, experiments: Sequence[Experiment], size: int | str) -> bool:
        """Whether an entry is requested."""
        return all(
            (self.tasks is None or experiment.task.partition("-")[0] in self.tasks)
            and (self.examples is None or str(size) in self.examples)
            and (self.methods is None or experiment.method in (*self.methods, "words"))
            for experiment in experiments
        )

    def entry(self, *experiments: Experiment, size: int | str | None = None, **fields: Any) -> Entry:
        """An entry of these experiments, marked if it is requested; `fields` are other fields of `Entry`."""
        requested = self.includes(experiments, experiments[0].examples if size is None else size)
        entry = Entry(experiments, test_set=main_test_set(experiments[0].task), requested=requested)
        return replace(entry, **fields)

    def single_size(self, default: int) -> int:
        """The training-set size of a table that has one."""
        if len(self.sizes) > 1:
            raise DataError(f"This takes one number of examples (the paper's is {default}), not {len(self.sizes)}.")
        return self.sizes[0] if self.sizes else default

    def single_task(self) -> str:
        """The task of a table that has one."""
        if self.tasks is not None and len(self.tasks) > 1:
            raise DataError(f"This takes one task (the paper's is yelp), not {len(self.tasks)}.")
        return self.tasks[0] if self.tasks else "yelp"


def main_test_set(task: str) -> str:
    """The test set that a task is reported on outside table 1: the matched one for MNLI."""
    return "m" if task == "mnli" else "test"
