"""The command that runs the paper's tables and figures again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clozify.cli.options import (
    AtOnceOption,
    DevicesOption,
    JsonOption,
    QuietOption,
    RecipeOption,
    SetOption,
    app,
    print_json,
    teller,
)


def _listed(text: str | None) -> list[str] | None:
    """`a,b` as a list."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


@app.command()
def reproduce(
    what: Annotated[str, typer.Argument(help="table1, table2, table3, table4, table7, table8, or figure3 to figure6.")],
    tasks: Annotated[
        str | None, typer.Option(help="Only these, with commas: yelp, agnews, yahoo, mnli, xstance; or 'sample'.")
    ] = None,
    examples: Annotated[str | None, typer.Option(help="Only these sizes of the training set, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas: supervised, pet, ipet, ...")] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of the paper's model: a folder, a hub name, or 'builtin'.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with the original files; without it, the data comes from the hub.")
    ] = None,
    recipe: RecipeOption = "paper",
    settings: SetOption = None,
    pile: Annotated[int, typer.Option(min=1, help="Unlabelled rows a label.")] = 10_000,
    test_rows: Annotated[
        int | None, typer.Option(min=1, help="Measure on so many test rows, evenly from the whole set.")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where all goes; given again, the command goes on where it was.")] = Path(
        "runs/reproduce"
    ),
    devices: DevicesOption = "auto",
    at_once: AtOnceOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it will cost, measured on the spot, and stop.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a table or figure of the paper, or some of its cells, and show it beside the paper's values."""
    from clozify.reproduce.run import ReproduceOptions, plan_cost
    from clozify.reproduce.run import reproduce as run_reproduce
    from clozify.reproduce.terminal import show_cost, show_table

    options = ReproduceOptions(
        table=what,
        output=output,
        tasks=_listed(tasks),
        examples=_listed(examples),
        methods=_listed(methods),
        model=model,
        data=data,
        recipe=recipe,
        settings=settings or [],
        unlabeled_per_label=pile,
        test_rows=test_rows,
        log=teller(quiet),
        devices=devices,
        at_once=at_once,
    )
    if plan:
        cost = plan_cost(options)
        if as_json:
            print_json(asdict(cost))
        else:
            show_cost(Console(), cost)
        return
    table, files = run_reproduce(options)
    if as_json:
        from clozify.reproduce.render import to_json

        print_json(to_json(table) | {"files": [str(file) for file in files]})
    else:
        show_table(Console(), table, files)
