"""Commands that look back on finished runs: report, suggest, push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clozify.cli.options import JsonOption, MapOption, app, mapping_of, print_json
from clozify.errors import RunError


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="A run's folder; of several, a comparison is written.")],
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; by default DIR/report.html, of several comparison.html.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Another run on the same rows, a supervised one say, to stand beside.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report as one HTML page, or compare several runs."""
    from pydantic_core import to_jsonable_python

    from clozify.report.terminal import show_comparison
    from clozify.report.write import write_comparison, write_report

    if len(runs) == 1:
        path, findings = write_report(runs[0], output, baseline)
        if as_json:
            print_json(to_jsonable_python(findings))
        else:
            typer.echo(f"The report is in {path}.")
        return
    if baseline is not None:
        raise RunError("--baseline goes with one run; name it as one of the runs instead.")
    page = output or Path("comparison.html")
    comparison = write_comparison(runs, page)
    if as_json:
        print_json(to_jsonable_python(comparison))
    else:
        show_comparison(Console(), comparison)
        typer.echo(f"The comparison is in {page}.")


@app.command()
def suggest(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    count: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    output: Annotated[Path, typer.Option(help="Where they go: .csv, .jsonl or .parquet, by the name's ending.")] = Path(
        "to-label.csv"
    ),
    unlabeled: Annotated[
        str | None, typer.Option(help="Another pile than the run's, or the run's where it has moved.")
    ] = None,
    with_labeled: Annotated[
        bool, typer.Option("--with-labeled", help="Put the rows that are labelled already first, with their labels.")
    ] = False,
    mapping: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the unlabelled rows that would teach most, to be labelled next."""
    from clozify.cli.tables import show_suggestions
    from clozify.inference.suggest import suggest as work

    found = work(run, count, output, unlabeled, with_labeled, mapping_of(mapping)).model_dump()
    if as_json:
        print_json(found)
    else:
        show_suggestions(Console(), found)


@app.command()
def push(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a classifier's.")],
    name: Annotated[str, typer.Argument(help="The model's name on the hub: NAME, or OWNER/NAME.")],
    private: Annotated[bool, typer.Option("--private", help="Let nobody else see it, if it is new.")] = False,
) -> None:
    """Upload a run's classifier and its model card to the Hugging Face hub."""
    from clozify.inference.push import push as work

    typer.echo(f"Pushed to {work(run, name, private)}.")
