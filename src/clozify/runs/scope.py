"""Keeps what the out-of-scope score needs in a classifier's folder: `scope.safetensors`, of about 2 MB at most."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clozify.errors import RunError
from clozify.methods.scope import Scope
from clozify.utils.atomic import atomic_write

SCOPE_FILE = "scope.safetensors"
MAX_ROWS, MAX_BYTES = 2_048, 1_900_000  # of the reference rows' vectors


def max_reference_rows(hidden: int) -> int:
    """How many reference rows are kept of states with this width."""
    return min(MAX_ROWS, MAX_BYTES // hidden)


def save_scope(folder: Path, scope: Scope) -> None:
    """Write the file into a classifier's folder."""
    from safetensors.numpy import save_file

    arrays = {"mean": scope.mean, "vectors": scope.vectors, "in_scope": scope.in_scope}
    with atomic_write(folder / SCOPE_FILE) as tmp_path:  # a published file is a link to the job's
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path)


def load_scope(folder: Path) -> Scope | None:
    """What `save_scope` wrote; None where the folder has no such file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / SCOPE_FILE
    if not path.is_file():
        return None
    try:
        arrays = load_file(path)
        scope = Scope(arrays["mean"], arrays["vectors"], arrays["in_scope"])
        if scope.vectors.ndim != 2 or scope.mean.shape != scope.vectors.shape[1:] or scope.in_scope.ndim != 1:
            raise ValueError("its arrays do not fit together")
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise RunError(f"The file '{path}' is damaged ({error}); copy the folder again, or train again.") from None
    return scope
