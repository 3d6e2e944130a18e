"""Finds the GGUF file of a model: config, tokenizer and quantised weights in one, which Transformers reads."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from clozify.errors import ModelError, quoted


def gguf_source(path: str) -> tuple[str, dict[str, str]]:
    """The folder of a GGUF file and `from_pretrained`'s option that names it; of any other model its path and nothing.

    `path` is the file itself, or a folder without config.json in which it is the only one.
    """
    file = Path(path)
    if file.is_dir() and not (file / "config.json").is_file():
        files = sorted(file.glob("*.gguf"))
        if len(files) > 1:
            names = quoted(candidate.name for candidate in files)
            raise ModelError(f"The folder '{path}' has several GGUF files; name one of them: {names}.")
        file = files[0] if files else file
    if not (file.suffix == ".gguf" and file.is_file()):
        return path, {}
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            f"The model '{file}' needs the package gguf, which is not installed; install it with: "
            "pip install 'clozify[gguf]'"
        )
    return str(file.parent), {"gguf_file": file.name}


@contextmanager
def expanding_gguf() -> Iterator[None]:
    """Transformers shows no progress bar of its own while it expands weights within the block."""
    with redirect_stderr(io.StringIO()):
        yield


def forget_gguf(model: Any) -> None:
    """Make a model whose weights were expanded an ordinary one, which Transformers would refuse to save otherwise."""
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        quantizer.remove_quantization_config(model)
