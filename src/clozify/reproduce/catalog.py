"""The tables and figures by name, and the checks of a request for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clozify.errors import DataError, did_you_mean, quoted
from clozify.reproduce import figures, paper, tables
from clozify.reproduce.datasets import check_tasks
from clozify.reproduce.experiments import METHODS
from clozify.reproduce.specs import TableRequest, TableSpec

TABLES: dict[str, tuple[Callable[[TableRequest], TableSpec], tuple[str, ...]]] = {  # name -> builder, tasks
    "table1": (tables.table1, (*paper.ENGLISH, "sample")),
    "table2": (tables.table2, (*paper.ENGLISH, "sample")),
    "table3": (tables.table3, ("xstance",)),
    "table4": (tables.table4, (*paper.ENGLISH, "sample")),
    "table7": (tables.table7, (*paper.ENGLISH, "sample")),
    "table8": (tables.table8, (*paper.ENGLISH, "sample")),
    "figure3": (figures.figure3, (*paper.ENGLISH, "sample")),
    "figure4": (figures.figure4, (*paper.ENGLISH, "sample")),
    "figure5": (figures.figure5, (*paper.ENGLISH, "sample")),
    "figure6": (figures.figure6, (*paper.ENGLISH, "sample")),
}


def build_table(
    name: str,
    tasks: Sequence[str] | None = None,
    examples: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
) -> TableSpec:
    """A table or figure of the paper, with the requested entries marked."""
    if name not in TABLES:
        raise DataError(
            f"There is no '{name}' to reproduce{did_you_mean(name, TABLES)}; choose one of {quoted(TABLES)}."
        )
    build, allowed_tasks = TABLES[name]
    checked_tasks = None if tasks is None else check_tasks(tasks, allowed_tasks)
    if methods is not None and (unknown := [method for method in methods if method not in METHODS]):
        raise DataError(
            f"There is no method {quoted(unknown)}{did_you_mean(unknown[0], METHODS)}; choose from {quoted(METHODS)}."
        )
    names = ("full", "joint") if name == "table3" else ()
    for size in examples or ():
        if not size.isdecimal() and size not in names:
            allowed = f"numbers{' and ' + quoted(names) if names else ''}"
            raise DataError(f"--examples takes {allowed}, separated by commas, such as 10,50; not '{size}'.")
    sizes = [int(size) for size in examples or () if size.isdecimal()]
    normalized = None if examples is None else [str(int(size)) if size.isdecimal() else size for size in examples]
    spec = build(TableRequest(checked_tasks, normalized, None if methods is None else list(methods), sizes))
    if not spec.requested_experiments():
        raise DataError(f"Nothing to run: {name} has no cell with these tasks, examples and methods.")
    return spec
