"""Loads any language model that answers cloze questions: masked, causal or encoder-decoder, by its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from clozify.config.sections import Adapter, Generative
from clozify.gpu.options import DEFAULT_OPTIONS, GpuOptions
from clozify.models import cloze
from clozify.models.cloze import ClozeModel
from clozify.models.generative import CausalModel, EncoderDecoderModel, GenerativeModel
from clozify.models.loading import architecture_of, load_pretrained, set_attention_dropout

LanguageModel = ClozeModel | GenerativeModel


def load_model(
    name: str | Path = "builtin",
    device: str | None = None,
    trust_remote_code: bool = False,
    attention_dropout: float | None = None,
    adapter: Adapter | None = None,
    options: GpuOptions = DEFAULT_OPTIONS,
    safetensors_only: bool = False,
    generative: Generative | None = None,
) -> LanguageModel:
    """A language model by folder, hub name or GGUF file; `builtin` is the masked one that comes with clozify.

    Code of the model's repository runs only with `trust_remote_code`; with `safetensors_only`, weights in PyTorch's own
    format are not read. `generative` are settings of causal and encoder-decoder models.
    """
    if trust_remote_code or (architecture := architecture_of(name)) == "masked LM":
        return cloze.load_model(name, device, trust_remote_code, attention_dropout, adapter, options, safetensors_only)

    def configure(config: Any) -> None:
        set_attention_dropout(config, attention_dropout)

    pretrained = load_pretrained(name, architecture, configure, safetensors_only=safetensors_only)
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model_class = CausalModel if architecture == "causal LM" else EncoderDecoderModel
    model = model_class(pretrained.model.to(target), pretrained.tokenizer, str(name), options, generative)
    if adapter is not None and adapter.method != "none":
        model.adapt(adapter)
    return model
