"""The tables and figures by name.

In: a name, and the tasks, training-set sizes and methods that are asked for. Out: an `Exhibit`, or one sentence on what
cannot be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clozify.errors import DataError, did_you_mean, quoted
from clozify.reproduce import figures, paper, tables
from clozify.reproduce.cells import METHODS
from clozify.reproduce.datasets import check_tasks
from clozify.reproduce.layout import Exhibit, TableRequest

EXHIBITS: dict[
    str, tuple[Callable[[TableRequest], Exhibit], tuple[str, ...]]
] = {  # with the tasks that it may be asked for
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


def exhibit(
    what: str,
    tasks: Sequence[str] | None = None,
    examples: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
) -> Exhibit:
    """A table or figure of the paper, with what is asked of it marked."""
    if what not in EXHIBITS:
        raise DataError(
            f"There is no '{what}' to reproduce{did_you_mean(what, EXHIBITS)}; there is {quoted(EXHIBITS)}."
        )
    build, known = EXHIBITS[what]
    chosen = None if tasks is None else check_tasks(tasks, known)
    if methods is not None and (wrong := [name for name in methods if name not in METHODS]):
        raise DataError(
            f"There is no method {quoted(wrong)}{did_you_mean(wrong[0], METHODS)}; there is {quoted(METHODS)}."
        )
    words = ("full", "joint") if what == "table3" else ()
    for size in examples or ():
        if not size.isdecimal() and size not in words:
            allowed = f"numbers{' and ' + quoted(words) if words else ''}"
            raise DataError(f"--examples takes {allowed} with commas between, as in 10,50; not '{size}'.")
    sizes = [int(size) for size in examples or () if size.isdecimal()]
    given = None if examples is None else [str(int(size)) if size.isdecimal() else size for size in examples]
    found = build(TableRequest(chosen, given, None if methods is None else list(methods), sizes))
    if not found.asked():
        raise DataError(f"Nothing of {what} is asked for: it has no cell with these tasks, examples and methods.")
    return found
