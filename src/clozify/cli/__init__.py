"""The command line. A `ClozifyError` is printed as one sentence per problem, with exit status 2."""

from __future__ import annotations

import io
import sys
import warnings
from importlib import import_module

from rich.console import Console
from rich.text import Text

from clozify.cli.options import app
from clozify.errors import ClozifyError

for _module in ("tasks", "training", "finished_runs", "servers", "experiments"):  # the order of `clozify --help`
    import_module(f"clozify.cli.{_module}")


def main() -> None:
    """Run the command line; errors of the user or the system end with a sentence and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of a traceback
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
        return
    except ClozifyError as error:
        problems = error.problems
    except BrokenPipeError:
        raise
    except OSError as error:  # no space, no permission, a name too long
        file = f" for '{error.filename}'" if error.filename else ""
        problems = [f"The system reports an error{file}: {str(error.strerror or error).rstrip('.')}."]
    console = Console(stderr=True, soft_wrap=True)
    for problem in problems:
        console.print(Text.assemble(("error: ", "bold red"), problem))
    sys.exit(2)
