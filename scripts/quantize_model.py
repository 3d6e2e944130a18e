"""Convert a model's weights to the int8 format of the built-in models.

    python scripts/quantize_model.py FOLDER OUTPUT

reads `model.safetensors` of a Hugging Face folder and writes `model.int8.safetensors`, the config and the tokenizer to
OUTPUT. Matrices, embeddings included, become int8 with one float16 scale for 64 columns of a row; other weights become
float16. clozify expands them to float32 when it loads the folder (docs/models.md).
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozify.models.int8 import COLUMNS, INT8_FILE, SCALE
from clozify.models.loading import make_readable

MAX = 127


def quantize(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in int8 or float16, and the scales: the largest absolute value of 64 columns is 127 scales."""
    quantized = {}
    for name, weight in weights.items():
        if weight.ndim != 2 or weight.shape[1] % COLUMNS:
            quantized[name] = weight.half().contiguous()
            continue
        groups = weight.float().view(len(weight), -1, COLUMNS)  # (rows, columns / 64, 64)
        smallest = torch.finfo(torch.float16).smallest_normal
        scale = (groups.abs().amax(dim=2) / MAX).clamp(min=smallest).half()
        rounded = (groups / scale.float()[:, :, None]).round().clamp(-MAX, MAX)
        quantized[name] = rounded.to(torch.int8).flatten(1).contiguous()
        quantized[name + SCALE] = scale
    return quantized


def main() -> None:
    """Convert the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with model.safetensors, config.json and the tokenizer's files")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    save_file(quantize(load_file(options.folder / "model.safetensors")), options.output / INT8_FILE)
    for file in options.folder.glob("*.json"):
        shutil.copyfile(file, options.output / file.name)
    make_readable(options.output)


if __name__ == "__main__":
    main()
