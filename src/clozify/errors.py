"""The few exceptions that a person may see.

Each one says in a sentence what is wrong, where, and what to write instead. The command line prints the
sentences and exits with status 2; a program catches `ClozifyError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module


class ClozifyError(Exception):
    """Something that the user can mend; `problems` holds one sentence for each thing found."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class TaskError(ClozifyError):
    """A task that cannot be used: the file, a pattern, a label or a word."""


class RecipeError(ClozifyError):
    """A recipe with a setting that is unknown or out of bounds."""


class DataError(ClozifyError):
    """Rows that cannot be read, or that lack what the task asks for."""


class ModelError(ClozifyError):
    """A model that cannot be loaded, or that does not answer cloze questions."""


class TrainingError(ClozifyError):
    """A training that cannot go on, such as a loss that is no number."""


class RunError(ClozifyError):
    """A run folder that cannot be worked on now."""


class ExportError(ClozifyError):
    """A classifier that cannot be exported, or whose export would answer otherwise."""


class ServingError(ClozifyError):
    """A server that cannot be started."""


def require_package(library: str, extra: str, what: str) -> None:
    """Fail with a sentence where a library of an extra is not installed; `what` says what it is for."""
    try:
        import_module(library)
    except ImportError:
        raise ClozifyError(
            f"{what} needs {library}, which is not there; get it with: pip install 'clozify[{extra}]'."
        ) from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def quoted(names: Iterable[object], most: int = 12) -> str:
    """`'a', 'b' and 'c'`, cut short after `most` names."""
    parts = [f"'{name}'" for name in names]
    if not parts:
        return "none"
    if len(parts) > most:
        return ", ".join(parts[:most]) + f" and {len(parts) - most} more"
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
