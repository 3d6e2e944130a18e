"""The Typer application, the options that several commands take, and output helpers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clozify import __version__
from clozify.errors import TaskError
from clozify.utils.progress import hide_progress

command_scope = ExitStack()  # left at the end of a command

app = typer.Typer(
    name="clozify",
    help="Few-shot text classification with Pattern-Exploiting Training (PET).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="A task file (TOML) or the name of a built-in task.")]
ModelOption = Annotated[
    str,
    typer.Option(help="A language model: a folder, a hub name, a GGUF file, 'builtin', or the smaller 'builtin:mini'."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MapOption = Annotated[
    list[str] | None,
    typer.Option("--map", help="FIELD=COLUMN: read a field of the task from this column; repeatable."),
]
LabelsFromOption = Annotated[
    str | None,
    typer.Option(
        help="Take the labels that the task lacks from this file: data with a label column, or text with one label a "
        "line. Their names are their words."
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(help="The most that an LLM behind an API may cost: 500requests, 200000tokens, or money as 1.50."),
]
RecipeOption = Annotated[str, typer.Option(help="'auto', 'paper', 'quick', 'original-code' or a recipe file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE: change a setting of the recipe (distill.max_steps=500); repeatable."),
]
ExamplesOption = Annotated[
    int | None, typer.Option(min=0, help="Use this many labelled rows: the first of each label, as in the paper.")
]
DevicesOption = Annotated[str, typer.Option(help="'auto' (all GPUs, else the CPU), 'cpu' or a number of GPUs.")]
AtOnceOption = Annotated[int | None, typer.Option(min=1, help="Models to train in parallel on each device.")]
AtOnceOrAutoOption = Annotated[
    str | None,
    typer.Option("--at-once", help="Models to train in parallel on each device; 'auto': as many as fit."),
]
ExecutorOption = Annotated[str, typer.Option(help="'local' (this machine) or 'ray' (a Ray cluster).")]
AddressOption = Annotated[
    str | None, typer.Option(help="The Ray cluster's address or 'auto'; default: find a cluster or start one.")
]
MethodOption = Annotated[
    str | None,
    typer.Option(help="Whose results, where the run was trained by several methods; default: the first one's."),
]
PrecisionOption = Annotated[
    str,
    typer.Option(help="A classifier's arithmetic on a CPU: 'float32', 'int8', or 'auto': int8 where it is faster."),
]
MinConfidenceOption = Annotated[
    float | None, typer.Option(help="Predict nothing for rows whose most probable label is less probable than this.")
]
MaxRiskOption = Annotated[
    float | None,
    typer.Option(help="Predict nothing for uncertain rows, so that at most this fraction of predictions is wrong."),
]
CoverageOption = Annotated[
    float | None, typer.Option(help="Predict nothing for uncertain rows, so that this fraction of rows is predicted.")
]
SetsOption = Annotated[
    float | None,
    typer.Option(help="Add a set of labels that contains the true one for this fraction of the rows, such as 0.9."),
]
REJECT_OPTION, DEFAULT_REJECTED = "--reject-out-of-scope", 0.05
RejectOption = Annotated[
    float | None,
    typer.Option(
        REJECT_OPTION,
        metavar="[FRACTION]",
        help="Predict nothing for rows unlike those of the training; FRACTION of the task's rows may be, default 0.05.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print no progress.")]
LengthOption = Annotated[int, typer.Option(min=8, help="The maximum number of tokens per row; longer rows are cut.")]


class OptionalFraction(TyperCommand):
    """A command whose option --reject-out-of-scope may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default value where the option has none."""
        filled: list[str] = []
        for argument, following in zip(args, [*args[1:], ""], strict=True):
            filled.append(argument)
            if argument == REJECT_OPTION and not _is_number(following):
                filled.append(str(DEFAULT_REJECTED))
        return super().parse_args(ctx, filled)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_mapping(pairs: list[str] | None) -> dict[str, str]:
    """The column mapping of `--map FIELD=COLUMN`."""
    for pair in pairs or []:
        if "=" not in pair:
            raise TaskError(f"--map takes FIELD=COLUMN, not '{pair}'.")
    return dict(pair.split("=", 1) for pair in pairs or [])


def print_json(content: Any, indent: int | None = 2) -> None:
    """Print JSON; what the output's encoding lacks is escaped, so that nothing is lost."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    if text.encode(encoding, "replace").decode(encoding) != text:
        text = json.dumps(content, indent=indent)
    typer.echo(text)


def progress_logger(quiet: bool = False) -> Callable[[str], None]:
    """A function that prints a line and the seconds since now to stderr; if `quiet`, the command shows no progress."""
    began = time.monotonic()
    if quiet:
        command_scope.enter_context(hide_progress())

    def log(line: str) -> None:
        if not quiet:
            typer.echo(f"[{time.monotonic() - began:6.0f} s] {line}", err=True)

    return log


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"clozify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
