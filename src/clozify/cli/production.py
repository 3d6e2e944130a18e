"""The commands about a run in use: `explain` and `drift`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import clozify
from clozify.cli.finished_runs import RunArgument, text_rows
from clozify.cli.options import JsonOption, MapOption, MethodOption, PrecisionOption, app, parse_mapping, print_json
from clozify.errors import DataError

DRIFT_STATUS = 3  # the exit status of `clozify drift` where there is drift


@app.command()
def explain(
    run: RunArgument,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text to explain instead of --data, for tasks with one field; repeatable."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Rows to explain.")] = None,
    label: Annotated[str | None, typer.Option(help="Explain this label instead of the predicted one.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Explain so many rows of --data, the first ones.")] = 10,
    parts: Annotated[
        int,
        typer.Option(min=1, help="Leave out at most so many words of a row in turn; of more, several at once."),
    ] = 64,
    method: MethodOption = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
) -> None:
    """Show which words of a row moved its label."""
    from clozify.cli.production_tables import show_explanations

    if (data is None) == (not text):
        raise DataError("explain takes rows, either as --data FILE or as --text TEXT; write one of the two.")
    finished = clozify.load_run(run, method, precision)
    source = data if data is not None else text_rows(text or [], finished.task)
    limit = rows if data is not None else None
    result = clozify.explain(finished, source, label, parse_mapping(mapping), limit, parts)
    typer.echo(f"Explained for {result.model}.", err=True)
    if as_json:
        print_json(result.model_dump())
    else:
        show_explanations(Console(), result)


@app.command()
def drift(
    run: RunArgument,
    data: Annotated[str, typer.Option(help="The new rows.")],
    reference: Annotated[
        str | None, typer.Option(help="Rows to compare with; default: the run's unlabelled rows.")
    ] = None,
    level: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="How often there may be an alarm without a difference.")
    ] = 0.01,
    min_effect: Annotated[
        float, typer.Option(min=0, max=1, help="The smallest difference that counts, however significant.")
    ] = 0.05,
    rows: Annotated[int, typer.Option(min=1, help="Compare at most so many random rows of each set.")] = 2_000,
    method: MethodOption = None,
    mapping: MapOption = None,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
) -> None:
    """Compare new rows with those that a run was made for; exits with status 3 if they differ."""
    from clozify.cli.production_tables import show_drift

    finished = clozify.load_run(run, method, precision)
    result = clozify.drift(finished, data, reference, parse_mapping(mapping), level, min_effect, rows)
    if as_json:
        print_json(result.model_dump())
    else:
        show_drift(Console(), result)
    if result.drift:
        raise typer.Exit(DRIFT_STATUS)
