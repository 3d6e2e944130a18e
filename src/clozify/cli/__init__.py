"""The command line. A `ClozifyError` is printed as one sentence per problem, with exit status 2."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
import warnings
from importlib import import_module
from types import FrameType

from rich.console import Console
from rich.text import Text

from clozify.cli.options import app, command_scope
from clozify.errors import ClozifyError
from clozify.utils.threads import openmp_environment

CLEANUP_SECONDS = 3.0

# the order of `clozify --help`
for _module in ("tasks", "audit", "training", "finished_runs", "production", "servers", "experiments", "bench"):
    import_module(f"clozify.cli.{_module}")


def _interrupt_once() -> None:
    """Let the first Ctrl-C end the command, and ignore more of them while it cleans up; after some seconds, exit."""
    times: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            signal.default_int_handler(number, frame)
        if times[-1] - times[0] > CLEANUP_SECONDS:
            os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def _use_utf8_mode() -> None:
    """Restart in Python's UTF-8 mode under another locale: tokenizers and safetensors take UTF-8 paths alone."""
    if sys.getfilesystemencoding().replace("-", "").lower() != "utf8":
        environment = {"PYTHONUTF8": "1", "PYTHONIOENCODING": sys.stdout.encoding or "utf-8"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | environment)


def _check_arguments(arguments: list[str]) -> None:
    """Refuse empty values, such as those of an unset variable: an empty path would be the current folder."""
    for option, argument in zip(["", *arguments], arguments, strict=False):
        name = option if not argument else argument.removesuffix("=")
        is_empty = not argument or re.fullmatch("--[a-z0-9-]+=", argument)
        if is_empty and name != "--text":
            after = f" of {name}" if name.startswith("--") else ""
            raise ClozifyError(f"The value{after} is empty; write one, or leave it out.")


def main() -> None:
    """Run the command line; errors of the user or the system end with a sentence and exit status 2."""
    _use_utf8_mode()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of a traceback
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    _interrupt_once()
    try:
        with command_scope, openmp_environment():  # no command has loaded PyTorch yet
            _check_arguments(sys.argv[1:])
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
