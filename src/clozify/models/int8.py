"""Reads int8 weights as float32. Each 64 columns of a matrix' row share one float16 scale (docs/models.md)."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, int8

INT8_FILE = "model.int8.safetensors"
COLUMNS = 64  # that share a scale
SCALE = "::scale"  # follows the matrix' name in the name of its scales


def has_int8_weights(folder: Path) -> bool:
    """Whether a model's folder has int8 weights and no ordinary ones, which are read first."""
    return (folder / INT8_FILE).is_file() and not any(folder.glob("model.safetensors*"))


def read_int8(file: Path) -> dict[str, Tensor]:
    """The weights of a file by name, in float32; raises `ValueError` for a matrix without scales."""
    from safetensors.torch import load_file

    stored = load_file(file)
    weights = {}
    for name, weight in stored.items():
        scale = stored.get(name + SCALE)  # (rows, columns / 64)
        if weight.dtype == int8 and scale is None:
            raise ValueError(f"{name} has no scales")
        if scale is not None:
            weight = weight.float().view(len(weight), -1, COLUMNS).mul_(scale.float()[:, :, None]).flatten(1)
        if not name.endswith(SCALE):
            weights[name] = weight.float()
    return weights
