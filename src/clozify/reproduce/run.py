"""A table or figure of the paper from beginning to end: the room behind `clozify reproduce`.

In: the name of a table or figure, what of it is asked for, where the data is, a model and a recipe. Out: the cells that
are asked for, run (those that were run before are taken from the folder), and `NAME.md`, `NAME.html` and, of a figure,
`NAME.svg` and `NAME.png` in the folder, with every cell that is there so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clozify.config.recipe import Recipe
from clozify.errors import DataError, RunError
from clozify.reproduce.cells import NAMES, Cell, Cells, NotRunError, check_model
from clozify.reproduce.cost import cost
from clozify.reproduce.data_locations import TITLES
from clozify.reproduce.datasets import PILE, Data
from clozify.reproduce.draw import check_matplotlib, draw
from clozify.reproduce.exhibits import exhibit
from clozify.reproduce.layout import Exhibit
from clozify.reproduce.render import html, markdown
from clozify.reproduce.results import Filled, fill
from clozify.utils.atomic import atomic_write


def prepare(
    what: str,
    output: str | Path,
    tasks: Sequence[str] | None = None,
    examples: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    model: str | None = None,
    data: str | Path | None = None,
    recipe: str | Path | Recipe = "paper",
    settings: Sequence[str] = (),
    pile: int = PILE,
    test_rows: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    devices: str = "auto",
    at_once: int | None = None,
) -> tuple[Exhibit, Cells]:
    """Check all that can be checked before anything is run; nothing is written.

    Without a `model` it is the paper's, or the built-in one where only the sample data is asked for.
    """
    shown = exhibit(what, tasks, examples, methods)
    if what.startswith("figure"):
        check_matplotlib()
    if Path(output).is_file():
        raise RunError(f"The results cannot go to '{output}': that is a file; name a folder.")
    only_sample = {cell.task for cell in shown.asked()} == {"sample"}
    chosen = model or ("builtin" if only_sample else shown.model)
    where = Data(None if data is None else Path(data), pile, test_rows)
    cells = Cells(Path(output), where, chosen, recipe, settings, say, devices, at_once)
    for cell in shown.asked():
        cells.recipe(cell)  # a setting that a table changes may not suit the recipe
    return shown, cells


def reproduce(
    what: str, output: str | Path, tasks: Sequence[str] | None = None, **more: Any
) -> tuple[Filled, list[Path]]:
    """Run what is asked for and write the table or figure: it, and its files. `more` is what `prepare` takes."""
    shown, cells = prepare(what, output, tasks, **more)
    why = _run(shown.asked(), cells, named=tasks is not None)
    filled = fill(shown, cells.find, why, _notes(shown, cells))
    return filled, write(filled, cells.output)


def costs(what: str, output: str | Path, tasks: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
    """What it will cost to run what is asked for; nothing is written."""
    shown, cells = prepare(what, output, tasks, **more)
    why = _check(shown.asked(), cells, named=tasks is not None)
    found = cost(cells, [cell for cell in shown.asked() if cell not in why])
    found["notes"] += [f"Not in the sum: {reason}" for reason in dict.fromkeys(why.values())]
    return found


def _check(asked: list[Cell], cells: Cells, named: bool) -> dict[Cell, str]:
    """Read the data of the cells that are left; returns which lack theirs. A task that was named must have it."""
    left = [cell for cell in asked if cells.find(cell) is None]
    absent: dict[str, str] = {}
    for task in dict.fromkeys(cell.task for cell in left):
        try:
            cells.data.load(task)
        except DataError as error:
            if named:
                raise
            absent[task] = " ".join(error.problems)
    if absent and not set(absent) < {cell.task for cell in asked}:
        raise DataError(list(dict.fromkeys(absent.values())))
    why = {cell: absent[cell.task] for cell in left if cell.task in absent}
    if set(left) - set(why):
        check_model(cells.model)
    return why


def _run(asked: list[Cell], cells: Cells, named: bool) -> dict[Cell, str]:
    """Run the cells; returns why some were not."""
    why = _check(asked, cells, named)
    for number, cell in enumerate(asked, start=1):
        if cell in why:
            continue
        known = "" if cells.find(cell) is None else "  already there"
        cells.say(f"cell {number}/{len(asked)}: {cell}{known}")
        try:
            cells.run(cell)
        except NotRunError as error:
            why[cell] = " ".join(error.problems)
            cells.say(f"not run: {why[cell]}")
    return why


def _notes(shown: Exhibit, cells: Cells) -> tuple[str, ...]:
    """What the numbers come from, and where the data is not the paper's."""
    recipe = cells.recipe(shown.asked()[0])
    changed = f" with {', '.join(cells.settings)}" if cells.settings else ""
    other = "" if cells.model == shown.model else f" (the paper's is {shown.model})"
    found = [f"Model: {cells.model}{other}. Recipe: {recipe.name}{changed}."]
    for cell in dict.fromkeys(cell for row in shown.rows for entry in row.entries for cell in entry.cells):
        result = cells.find(cell) or {}
        name = TITLES.get(cell.task, cell.task.replace("xstance-", "x-stance, "))
        found += [f"{name}: {note}" for note in result.get("notes", [])]
        if how := result.get("augmentation"):
            found.append(f"{NAMES[cell.method]}: augmented text by {how}.")
        if chosen := result.get("chosen"):
            found.append(f"{cell}: {result['steps']:,} steps, {chosen}.")
    return tuple(dict.fromkeys(found))


def write(filled: Filled, output: Path) -> list[Path]:
    """Write the exhibit's files, each whole or not at all."""
    name = filled.exhibit.name
    output.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes] = {}
    svg = None
    if name.startswith("figure"):
        svg, png = draw(filled)
        contents = {f"{name}.svg": svg.encode(), f"{name}.png": png}
    contents[f"{name}.md"] = markdown(filled, f"{name}.svg" if svg else None).encode()
    contents[f"{name}.html"] = html(filled, svg).encode()
    for file, content in contents.items():
        with atomic_write(output / file) as tmp_path:
            tmp_path.write_bytes(content)
    return [output / file for file in contents]
