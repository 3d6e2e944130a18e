"""Adapters with peft: a member is a set of small matrices on one frozen model (LoRA, Hu et al., 2021).

A linear layer W x becomes W x + (alpha / r) B A x, in place; only A and B are trained. B starts at 0, so an untrained
adapter changes nothing. An adapter is saved as a peft folder with a reference to the model that it belongs to.
"""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clozify.config.sections import Adapter
from clozify.errors import ModelError, RecipeError
from clozify.models.loading import make_readable
from clozify.utils.checked_files import naming_damaged, read_json

TRAINED = "default"  # peft's default name of an adapter: the one that is trained
WEIGHTS, SETTINGS, BASE = "adapter_model.safetensors", "adapter_config.json", "base.json"
SAVED_SETTINGS = ("r", "lora_alpha", "lora_dropout", "target_modules", "bias")
PREFIX = "base_model.model."  # of every name in a peft file


@dataclass(frozen=True)
class Base:
    """The model that an adapter or label vectors belong to."""

    model: str  # a folder, a hub name, or 'builtin'
    key: str  # its `model_key`


def check_adapter(settings: Adapter) -> None:
    """Raise if peft, which adapters need, is not installed."""
    if settings.method != "none" and importlib.util.find_spec("peft") is None:
        raise RecipeError(
            f"The adapter '{settings.method}' needs peft, which is not installed; install it with: "
            "pip install 'clozify[peft]'"
        )


def add_adapter(module: Any, settings: Adapter) -> None:
    """Freeze a model's weights and add A and B to its linear layers, in place."""
    check_adapter(settings)
    from peft import LoraConfig

    chosen = _linear_layers(module) if settings.target_modules == "all-linear" else list(settings.target_modules)
    config = LoraConfig(
        r=settings.r, lora_alpha=settings.alpha, lora_dropout=settings.dropout, target_modules=chosen, bias="none"
    )
    _inject(module, config, TRAINED)


def _linear_layers(module: Any) -> list[str]:
    """The names of all linear layers, the head's too, but not the one over the vocabulary."""
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer, with its weight transposed

    vocabulary = len(module.get_input_embeddings().weight)
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, Conv1D) or (isinstance(layer, nn.Linear) and layer.out_features != vocabulary)
    ]


def _inject(module: Any, config: Any, name: str) -> None:
    from peft.functional import inject_adapter_in_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several adapters are intended
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # peft finds out by itself
        try:
            inject_adapter_in_model(config, module, name)
        except ValueError as error:  # no layer of that name, or of a type unknown to peft
            raise ModelError(
                f"No adapter fits the model: {' '.join(str(error).split())} Set adapter.target_modules to "
                "'all-linear', or to names of its linear layers."
            ) from error
    config.target_modules = sorted(config.target_modules)
    module.eval()  # new modules are in training mode


def lora_layers(module: nn.Module) -> Iterator[Any]:
    """The layers that adapters were added to."""
    from peft.tuners.lora import LoraLayer

    return (layer for layer in module.modules() if isinstance(layer, LoraLayer))


@torch.no_grad()
def reset_adapter(module: nn.Module, seed: int) -> None:
    """Initialise the adapter: A from the seed with peft's distribution, equal on every device; B with 0."""
    rng = torch.Generator().manual_seed(seed)
    for layer in lora_layers(module):
        a, b = layer.lora_A[TRAINED].weight, layer.lora_B[TRAINED].weight
        drawn = torch.empty(a.shape)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=rng)
        a.copy_(drawn)
        b.zero_()


@contextmanager
def merged(module: nn.Module) -> Iterator[None]:
    """Within the block W is W + (alpha / r) B A, so that rows are scored as fast as without adapters.

    Afterwards W is restored from a copy: subtracting B A again would leave rounding errors.
    """
    originals = [
        (layer, layer.get_base_layer().weight, layer.get_base_layer().weight.data) for layer in lora_layers(module)
    ]
    try:
        with torch.inference_mode(False), torch.no_grad():
            for layer, weight, original in originals:
                weight.data = original.clone()
                layer.merge()
        yield
    finally:
        for layer, weight, original in originals:
            weight.data = original
            layer.merged_adapters.clear()


def save_adapter(module: Any, folder: Path, base: Base) -> None:
    """Write the adapter as a peft folder, with a file that names its base model."""
    from peft.functional import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = module.peft_config[TRAINED]
    config.base_model_name_or_path = base.model
    config.save_pretrained(str(folder))
    state = get_peft_model_state_dict(module, adapter_name=TRAINED, save_embedding_layers=False)
    save_file({PREFIX + name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS)
    make_readable(folder)
    save_base(folder, base)


def save_base(folder: Path, base: Base) -> None:
    """Write the file that names the base model."""
    folder.mkdir(exist_ok=True)
    (folder / BASE).write_text(json.dumps(asdict(base), indent=2), encoding="utf-8")


def base_of(folder: Path) -> Base | None:
    """The model that the adapter or the label vectors in a folder belong to; None if it holds a full model."""
    if not (folder / BASE).is_file():
        return None
    with naming_damaged(folder / BASE):
        return Base(**read_json(folder / BASE))


def load_adapter(module: Any, folder: Path, name: str) -> None:
    """Add the adapter of a folder to the model under a name; adapters with other names stay."""
    check_adapter(Adapter(method="lora"))
    from peft import LoraConfig
    from peft.functional import set_peft_model_state_dict
    from safetensors.torch import load_file

    try:
        saved = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        # no other entries: some make peft import a module that they name
        config = LoraConfig(**{entry: saved[entry] for entry in SAVED_SETTINGS}, inference_mode=True)
        weights = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors and peft raise many types
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelError(
            f"The adapter in '{folder}' ({SETTINGS}, {WEIGHTS}) cannot be loaded: {reason}; train the run again."
        ) from error
    _inject(module, config, name)
    try:
        result: Any = set_peft_model_state_dict(module, weights, name)
    except RuntimeError as error:  # shapes of another model
        raise ModelError(f"The adapter in '{folder}' does not fit the model: {' '.join(str(error).split())}") from error
    lacking = [key for key in result.missing_keys if f".{name}." in key]
    if result.unexpected_keys or lacking:
        raise ModelError(
            f"The adapter in '{folder}' does not fit the model ({[*result.unexpected_keys, *lacking][0]}); it would "
            "answer as if it were half trained."
        )


def switch_adapter(module: nn.Module, name: str) -> None:
    """Activate one of the model's adapters."""
    for layer in lora_layers(module):
        layer.set_adapter(name, inference_mode=True)
