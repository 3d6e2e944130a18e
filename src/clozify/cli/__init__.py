"""The command line: a thin door to the rooms behind it. Bad input ends with one sentence and exit status 2."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text

from clozify.cli import inspect as inspect  # the commands enter the application when they are imported
from clozify.cli import report as report
from clozify.cli import reproduce as reproduce
from clozify.cli import serving as serving
from clozify.cli import studio as studio
from clozify.cli import training as training
from clozify.cli.options import app
from clozify.errors import ClozifyError


def main() -> None:
    """Run the command line; what a user can mend is told in sentences, with exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of a traceback
    try:
        app()
        return
    except ClozifyError as error:
        problems = error.problems
    except BrokenPipeError:
        raise
    except OSError as error:  # no space, no permission, a name too long
        where = f" '{error.filename}'" if error.filename else ""
        problems = [f"The system refused{where}: {error.strerror or error}."]
    console = Console(stderr=True, soft_wrap=True)
    for problem in problems:
        console.print(Text.assemble(("error: ", "bold red"), problem))
    sys.exit(2)
