"""The command that opens the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clozify.cli.options import ModelOption, app


@app.command()
def studio(
    folder: Annotated[
        Path, typer.Argument(help="The project's folder: uploads, task.toml, labeled.csv and runs stay there.")
    ] = Path("clozify-studio"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    model: ModelOption = "builtin",
) -> None:
    """Open a page on this machine: write a task, see answers, label rows, train, try the classifier."""
    import webbrowser

    from clozify.studio.server import serve
    from clozify.studio.session import Session

    def told(address: str) -> None:
        typer.echo(f"The studio is at {address}\nStop it with Ctrl-C.")
        if not no_browser:
            webbrowser.open(address)

    serve(Session(folder, model), port, told)
