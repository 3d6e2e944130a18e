"""The command `audit`: what is wrong with a task's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import clozify
from clozify.cli.options import (
    JsonOption,
    LabelsFromOption,
    MapOption,
    QuietOption,
    RecipeOption,
    SetOption,
    TaskArgument,
    app,
    parse_mapping,
    print_json,
    progress_logger,
)


@app.command()
def audit(
    task: TaskArgument,
    labeled: Annotated[str, typer.Option(help="The labelled rows.")],
    unlabeled: Annotated[str | None, typer.Option(help="The unlabelled rows.")] = None,
    test: Annotated[str | None, typer.Option(help="The test rows.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the labelled rows to this new file, those with findings first, to correct and to pass to "
            "--labeled: .csv, .jsonl or .parquet."
        ),
    ] = None,
    test_output: Annotated[Path | None, typer.Option(help="The same for the test rows.")] = None,
    model: Annotated[
        str, typer.Option(help="A masked language model: a folder, a hub name, 'builtin', or 'builtin:mini'.")
    ] = "builtin",
    recipe: RecipeOption = "auto",
    settings: SetOption = None,
    labels_from: LabelsFromOption = None,
    mapping: MapOption = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Search at most so many labelled rows, and test rows, for wrong labels.")
    ] = 2000,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Look for wrong labels, duplicates, leaks and other faults in a task's data."""
    progress_logger(quiet)
    column_mapping = parse_mapping(mapping)
    result = clozify.audit(
        clozify.load_task(task, labels_from, column_mapping),
        labeled,
        unlabeled,
        test,
        model,
        output,
        test_output,
        column_mapping,
        recipe,
        settings or (),
        max_rows,
    )
    if as_json:
        print_json(result.to_json())
        return

    from clozify.cli.audit_tables import show_audit

    show_audit(Console(), result)
