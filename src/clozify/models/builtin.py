"""The models that come with the package: their names and folders."""

from __future__ import annotations

from pathlib import Path

from clozify.errors import ModelError, quoted

DEFAULT = "small"
FOLDERS = {size: Path(__file__).parents[1] / "builtin" / f"clozify-{size}" for size in ("small", "mini")}


def is_builtin(name: str | Path) -> bool:
    """Whether a model's name is `builtin` or starts with `builtin:`."""
    return str(name).partition(":")[0] == "builtin"


def builtin_folder(name: str | Path) -> Path:
    """The folder of `builtin` or `builtin:SIZE`; raises `ModelError` for an unknown size."""
    _, colon, size = str(name).partition(":")
    if colon and size not in FOLDERS:
        names = ["builtin", *(f"builtin:{size}" for size in FOLDERS)]
        raise ModelError(f"There is no built-in model '{name}'; write one of {quoted(names)}.")
    return FOLDERS[size or DEFAULT]
