"""Adapters: a member as a few small matrices beside one frozen model (LoRA, Hu et al., 2021), by way of peft.

In: a masked language model and a recipe's `[adapter]`. Out: the same module, of the same class, in which a linear layer
W x is W x + (alpha / r) B A x; A and B alone are trained. B starts at 0, so the model answers as before until it is
trained. An adapter is saved as an ordinary peft folder, with a reference to the model that it belongs to.
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

FIRST = "default"  # what peft calls an adapter that has no name; the one that is trained
WEIGHTS, SETTINGS, BASE = "adapter_model.safetensors", "adapter_config.json", "base.json"
PREFIX = "base_model.model."  # of every name in a peft file


@dataclass(frozen=True)
class Base:
    """The model that an adapter belongs to."""

    model: str  # a folder, a hub name, or 'builtin'
    key: str  # what it was: `Plan.model_key`


def check_adapter(settings: Adapter) -> None:
    """Whether adapters can be had here at all."""
    if settings.method != "none" and importlib.util.find_spec("peft") is None:
        raise RecipeError(
            f"The adapter '{settings.method}' needs peft, which is not installed; install it with: "
            "pip install 'clozify[peft]'"
        )


def add_adapter(module: Any, settings: Adapter) -> None:
    """Freeze a model's weights and put A and B beside its linear layers, in place."""
    check_adapter(settings)
    from peft import LoraConfig

    chosen = _linear_layers(module) if settings.target_modules == "all-linear" else list(settings.target_modules)
    config = LoraConfig(
        r=settings.r, lora_alpha=settings.alpha, lora_dropout=settings.dropout, target_modules=chosen, bias="none"
    )
    _inject(module, config, FIRST)


def _linear_layers(module: Any) -> list[str]:
    """Every linear layer, the head's too; not the one that has a row for each word."""
    vocabulary = len(module.get_input_embeddings().weight)
    return [
        name for name, part in module.named_modules() if isinstance(part, nn.Linear) and part.out_features != vocabulary
    ]


def _inject(module: Any, config: Any, name: str) -> None:
    from peft.functional import inject_adapter_in_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several are what we want
        try:
            inject_adapter_in_model(config, module, name)
        except ValueError as error:  # no layer of that name, or a layer of a kind that peft does not know
            raise ModelError(
                f"No adapter fits the model: {' '.join(str(error).split())} Set adapter.target_modules to "
                "'all-linear', or to names of its linear layers."
            ) from error
    config.target_modules = sorted(config.target_modules)
    module.eval()  # new parts come in training mode


def _layers(module: nn.Module) -> Iterator[Any]:
    from peft.tuners.lora import LoraLayer

    return (part for part in module.modules() if isinstance(part, LoraLayer))


@torch.no_grad()
def reset_adapter(module: nn.Module, seed: int) -> None:
    """An untrained adapter: A drawn from the seed as peft draws it, the same on every device; B is 0."""
    rng = torch.Generator().manual_seed(seed)
    for layer in _layers(module):
        a, b = layer.lora_A[FIRST].weight, layer.lora_B[FIRST].weight
        drawn = torch.empty(a.shape)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=rng)
        a.copy_(drawn)
        b.zero_()


@contextmanager
def merged(module: nn.Module) -> Iterator[None]:
    """W is W + (alpha / r) B A while the block lasts: rows are scored as fast as without adapters.

    The weights themselves are put aside and come back untouched: taking B A off again would leave rounding behind.
    """
    aside = [(layer, layer.get_base_layer().weight, layer.get_base_layer().weight.data) for layer in _layers(module)]
    try:
        with torch.inference_mode(False), torch.no_grad():
            for layer, weight, own in aside:
                weight.data = own.clone()
                layer.merge()
        yield
    finally:
        for layer, weight, own in aside:
            weight.data = own
            layer.merged_adapters.clear()


def save_adapter(module: Any, folder: Path, base: Base) -> None:
    """A peft folder, and beside it which model it belongs to."""
    from peft.functional import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = module.peft_config[FIRST]
    config.base_model_name_or_path = base.model
    config.save_pretrained(str(folder))
    found = get_peft_model_state_dict(module, adapter_name=FIRST, save_embedding_layers=False)
    save_file({PREFIX + name: tensor.contiguous() for name, tensor in found.items()}, folder / WEIGHTS)
    (folder / BASE).write_text(json.dumps(asdict(base), indent=2))


def base_of(folder: Path) -> Base | None:
    """The model that the adapter in a folder belongs to; None where the folder holds a whole model."""
    if not (folder / SETTINGS).is_file():
        return None
    return Base(**json.loads((folder / BASE).read_text()))


def load_adapter(module: Any, folder: Path, name: str) -> None:
    """Put the adapter of a folder beside the weights, under a name; those that are there already stay."""
    check_adapter(Adapter(method="lora"))
    from peft import LoraConfig
    from peft.functional import set_peft_model_state_dict
    from safetensors.torch import load_file

    config = LoraConfig.from_pretrained(str(folder))
    weights = load_file(folder / WEIGHTS)
    _inject(module, config, name)
    try:
        found: Any = set_peft_model_state_dict(module, weights, name)
    except RuntimeError as error:  # shapes of another model
        raise ModelError(f"The adapter in '{folder}' does not fit the model: {' '.join(str(error).split())}") from error
    lacking = [key for key in found.missing_keys if f".{name}." in key]
    if found.unexpected_keys or lacking:
        raise ModelError(
            f"The adapter in '{folder}' does not fit the model ({[*found.unexpected_keys, *lacking][0]}); it would "
            "answer as if it were half trained."
        )


def switch_adapter(module: nn.Module, name: str) -> None:
    """From now on the model answers with this one of its adapters."""
    for layer in _layers(module):
        layer.set_adapter(name, inference_mode=True)
