"""The commands that start a server: `serve` and `studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clozify.cli.options import (
    CoverageOption,
    MaxRiskOption,
    MethodOption,
    MinConfidenceOption,
    ModelOption,
    OptionalFraction,
    PrecisionOption,
    RejectOption,
    SetsOption,
    app,
)
from clozify.errors import require_package


@app.command(cls=OptionalFraction)
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, a classifier or an export.")],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8000,
    max_texts: Annotated[int, typer.Option(min=1, help="The maximum number of texts per request.")] = 256,
    max_body: Annotated[int, typer.Option(min=16, help="The maximum number of bytes per request.")] = 1_048_576,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="The maximum number of waiting requests; more get status 429.")
    ] = 128,
    timeout: Annotated[float, typer.Option(min=0.01, help="The maximum number of seconds per request.")] = 30.0,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send; default: $CLOZIFY_TOKEN, if set.")
    ] = None,
    method: MethodOption = None,
    precision: PrecisionOption = "auto",
    min_confidence: MinConfidenceOption = None,
    max_risk: MaxRiskOption = None,
    coverage: CoverageOption = None,
    sets: SetsOption = None,
    reject_out_of_scope: RejectOption = None,
) -> None:
    """Serve a finished run's predictions over HTTP."""
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require_package(package, "serve", "A server")
    from clozify.inference.abstaining import AbstainOptions
    from clozify.serving.model import ServedModel
    from clozify.serving.requests import Limits
    from clozify.serving.server import serve as run_server

    limits = Limits(max_texts, max_body, max_waiting, timeout)
    options = AbstainOptions(min_confidence, max_risk, coverage, sets, reject_out_of_scope)
    run_server(lambda: ServedModel(folder, method, precision, options), host, port, limits, token_file, typer.echo)


@app.command()
def studio(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The project's folder: task.toml, labeled.csv, uploads and runs are kept in it."
        ),
    ] = Path("clozify-studio"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    model: ModelOption = "builtin",
) -> None:
    """Open a local web page to write a task, label rows, train and try the classifier."""
    from clozify.studio.project import Project
    from clozify.studio.server import serve as run_studio

    def on_ready(address: str) -> None:
        typer.echo(f"The studio is at {address}\nStop it with Ctrl-C.")

    project = Project(folder, model)
    for notice in project.notices:
        typer.echo(f"note: {notice}", err=True)
    run_studio(project, port, on_ready, browser=not no_browser)
