"""The commands that run whole experiments: `demo` and `reproduce`."""

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
    progress_logger,
)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="The folder for the runs; finished runs in it are reused.")] = Path(
        "runs/demo"
    ),
    as_json: JsonOption = False,
) -> None:
    """Compare supervised training, PET and iPET on sample data, in minutes."""
    from clozify.cli.tables import show_demo, show_examples
    from clozify.demo import demo as run_demo
    from clozify.demo import demo_task

    if not as_json:
        show_examples(Console(), demo_task())
    result = run_demo(output, progress_logger())
    if as_json:
        print_json(result.to_json())
    else:
        show_demo(Console(), result)


@app.command()
def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="table1, table2, table3, table4, table7, table8, or figure3 to figure6 of the paper."
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(help="Only these tasks, with commas: yelp, agnews, yahoo, mnli, xstance; or 'sample'."),
    ] = None,
    examples: Annotated[str | None, typer.Option(help="Only these training set sizes, with commas.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods, with commas: supervised, pet, ipet, ...")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A folder, a hub name or 'builtin', instead of the paper's model.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with the original data files; default: download from the hub.")
    ] = None,
    recipe: RecipeOption = "paper",
    settings: SetOption = None,
    unlabeled_per_label: Annotated[int, typer.Option(min=1, help="Unlabelled rows per label.")] = 10_000,
    test_rows: Annotated[
        int | None, typer.Option(min=1, help="Test on this many rows, spread evenly over the test set.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The folder for the runs; the same command resumes.")] = Path(
        "runs/reproduce"
    ),
    devices: DevicesOption = "auto",
    at_once: AtOnceOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Estimate time and disk space from a short measurement, and stop.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Reproduce a table or figure of the paper, or some of its cells, next to the paper's values."""
    from clozify.reproduce.render import to_json
    from clozify.reproduce.run import ReproduceOptions, plan_cost
    from clozify.reproduce.run import reproduce as run_reproduce
    from clozify.reproduce.terminal import show_cost, show_table

    options = ReproduceOptions(
        table=table,
        output=output,
        tasks=_split_list(tasks),
        examples=_split_list(examples),
        methods=_split_list(methods),
        model=model,
        data=data,
        recipe=recipe,
        settings=settings or [],
        unlabeled_per_label=unlabeled_per_label,
        test_rows=test_rows,
        log=progress_logger(quiet),
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
    filled, files = run_reproduce(options)
    if as_json:
        print_json(to_json(filled) | {"files": [str(file) for file in files]})
    else:
        show_table(Console(), filled, files)


def _split_list(text: str | None) -> list[str] | None:
    return None if text is None else [item.strip() for item in text.split(",") if item.strip()]
