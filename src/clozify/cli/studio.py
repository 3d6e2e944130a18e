"""The command `clozify studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clozify.cli.options import ModelOption, app


@app.command()
def studio(
    folder: Annotated[
        Path, typer.Argument(help="The project's folder: task.toml, labeled.csv, uploads and runs are kept in it.")
    ] = Path("clozify-studio"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    model: ModelOption = "builtin",
) -> None:
    """Open a local web page to write a task, label rows, train and try the classifier."""
    import webbrowser

    from clozify.studio.project import Project
    from clozify.studio.server import serve

    def on_ready(address: str) -> None:
        typer.echo(f"The studio is at {address}\nStop it with Ctrl-C.")
        if not no_browser:
            webbrowser.open(address)

    serve(Project(folder, model), port, on_ready)
