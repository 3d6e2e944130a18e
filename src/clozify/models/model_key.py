"""What identifies a model: the content of its folder."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from clozify.errors import ClozifyError
from clozify.models.builtin import builtin_folder, is_builtin
from clozify.utils.hashing import hash_file, hash_key

_hashing: dict[str, threading.Thread] = {}  # by the model's name


def hash_model_folder(path: Path) -> str:
    """A hash of the names and contents of all files of a model folder."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    return hash_key(files={file.name: hash_file(file) for file in files})


def model_key(name: str) -> str:
    """What identifies a model: a hash of its folder, or its name on the hub."""
    if (thread := _hashing.pop(name, None)) is not None:
        thread.join()  # now the files' hashes are cached
    return _compute_key(name)


def _compute_key(name: str) -> str:
    path = builtin_folder(name) if is_builtin(name) else Path(name)
    if path.is_file():  # with GGUF weights
        return hash_file(path)
    return hash_model_folder(path) if path.is_dir() else name


def start_hashing(name: str) -> None:
    """Compute a model's key in a thread, so that `model_key` has it at once later: weights take seconds to hash."""

    def compute() -> None:
        with suppress(OSError, ClozifyError):  # `model_key` raises it, too
            _compute_key(name)

    _hashing[name] = thread = threading.Thread(target=compute, name="hashing", daemon=True)
    thread.start()
