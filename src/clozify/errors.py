"""Exceptions for mistakes that the user can fix, and helpers for their messages.

A message is one sentence: what is wrong, where, and what to write instead. The command line prints the messages and
exits with status 2; a program catches `ClozifyError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import zip_longest


class ClozifyError(Exception):
    """A mistake that the user can fix; `problems` holds one sentence for each."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class TaskError(ClozifyError):
    """A task that cannot be used, because of its file, a pattern, a label or a word."""


class RecipeError(ClozifyError):
    """A recipe with an unknown setting, or a value out of range."""


class DataError(ClozifyError):
    """Rows that cannot be read, or that lack a column or a label of the task."""


class ModelError(ClozifyError):
    """A model that cannot be loaded, or that is no masked language model."""


class TrainingError(ClozifyError):
    """A training that cannot continue, such as one whose loss is not finite."""


class RunError(ClozifyError):
    """A run folder, a device or an executor that cannot be used."""


class ExportError(ClozifyError):
    """A classifier that cannot be exported, or whose export gives other predictions."""


class ServingError(ClozifyError):
    """A server that cannot be started."""


def require_package(package: str, extra: str, purpose: str) -> None:
    """Raise an error that names the extra to install where a package is missing; `purpose` starts the sentence."""
    try:
        import_module(package)
    except ImportError:
        raise ClozifyError(
            f"{purpose} needs {package}, which is not installed; get it with: pip install 'clozify[{extra}]'."
        ) from None


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` with the closest valid name, or an empty string."""
    closest = difflib.get_close_matches(name, list(valid_names), n=1)
    return f" (did you mean '{closest[0]}'?)" if closest else ""


def quoted(names: Iterable[object], limit: int = 12) -> str:
    """`'a', 'b' and 'c'`, cut off after `limit` names."""
    return _join([f"'{name}'" for name in names], limit) or "none"


def unknown_names(names: Sequence[str], valid_names: Sequence[str], limit: int = 5) -> str:
    """`'a' (did you mean 'x'?) and 'b'`: each name with the closest valid one, cut off after `limit` names."""
    return _join([f"'{name}'" for name in names], limit, [did_you_mean(name, valid_names) for name in names[:limit]])


def _join(names: Sequence[str], limit: int, remarks: Sequence[str] = ()) -> str:
    """The names as an enumeration, each with its remark, cut off after `limit` names."""
    shown = [name + remark for name, remark in zip_longest(names[:limit], remarks, fillvalue="")]
    if len(names) > limit:
        return ", ".join(shown) + f" and {len(names) - limit} more"
    return ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else "".join(shown)
