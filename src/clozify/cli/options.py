"""What the commands share: the application, options that several take, and how JSON is printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from clozify import __version__
from clozify.errors import TaskError

app = typer.Typer(
    name="clozify",
    help="Few-shot text classification by Pattern-Exploiting Training (PET).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TaskArgument = Annotated[str, typer.Argument(help="A task file (TOML), or the name of a shipped task.")]
ModelOption = Annotated[str, typer.Option(help="A masked language model: a folder, a hub name, or 'builtin'.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
MapOption = Annotated[
    list[str] | None, typer.Option("--map", help="FIELD=COLUMN, where the data calls a field otherwise.")
]
RecipeOption = Annotated[str, typer.Option(help="'paper', 'quick', 'original-code', or a recipe file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe, as in distill.max_steps=500.")
]
ExamplesOption = Annotated[
    int | None, typer.Option(min=0, help="Take so many labelled rows: the first of each label, as the paper does.")
]
DevicesOption = Annotated[str, typer.Option(help="'auto' (every GPU, else the CPU), 'cpu', or a number of GPUs.")]
AtOnceOption = Annotated[int | None, typer.Option(min=1, help="Models that are trained at a time on each device.")]
AtOnceOrAutoOption = Annotated[
    str | None,
    typer.Option("--at-once", help="Models that are trained at a time on each device; 'auto': as many as fit."),
]
ExecutorOption = Annotated[str, typer.Option(help="'local': on this machine; 'ray': on a Ray cluster.")]
AddressOption = Annotated[
    str | None, typer.Option(help="The cluster's address, or 'auto'; else one that is found or started here.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing on the way.")]
LengthOption = Annotated[int, typer.Option(min=8, help="The most tokens of a row; longer ones are shortened.")]


def mapping_of(pairs: list[str] | None) -> dict[str, str]:
    """`--map FIELD=COLUMN`, given any number of times."""
    for pair in pairs or []:
        if "=" not in pair:
            raise TaskError(f"--map takes FIELD=COLUMN, not '{pair}'.")
    return dict(pair.split("=", 1) for pair in pairs or [])


def print_json(content: Any) -> None:
    """For programs."""
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"clozify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def teller(quiet: bool = False) -> Callable[[str], None]:
    """A function that tells people a line, with the seconds since now, on the error stream."""
    began = time.monotonic()

    def say(line: str) -> None:
        if not quiet:
            typer.echo(f"[{time.monotonic() - began:6.0f} s] {line}", err=True)

    return say
