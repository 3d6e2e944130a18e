"""Loads a Transformers model by name: config, tokenizer and float32 weights, from a folder, the hub, or the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch

from clozify.errors import ModelError
from clozify.utils import libraries

BUILTIN = Path(__file__).parents[1] / "builtin" / "clozify-mini"
Architecture = Literal["masked LM", "classifier", "translation model"]
AUTO_CLASSES: dict[Architecture, str] = {
    "masked LM": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
    "translation model": "AutoModelForSeq2SeqLM",
}


@dataclass(frozen=True)
class Pretrained:
    """A model as it was loaded."""

    model: Any
    tokenizer: Any


def model_path(name: str | Path) -> str:
    """The folder of the built-in model for 'builtin', else the name itself: a folder or a model of the hub."""
    return str(BUILTIN if str(name) == "builtin" else name)


@libraries.quiet_transformers()
def load_pretrained(
    name: str | Path,
    architecture: Architecture,
    configure: Callable[[Any], None] = lambda config: None,
    trust_remote_code: bool = False,
    **config_settings: Any,
) -> Pretrained:
    """A model and its tokenizer by folder, hub name, or 'builtin'; raises `ModelError`.

    `configure` changes the config in place before the weights are loaded; `config_settings` replace its entries. The
    hub is asked only if it can be reached; code from a repository runs only if `trust_remote_code` is set.
    """
    import transformers

    path = model_path(name)
    if architecture == "masked LM":
        _check_path(path)
    hub_options = {
        "trust_remote_code": trust_remote_code,
        "local_files_only": Path(path).is_dir() or not libraries.hub_reachable(),
    }
    try:
        config = transformers.AutoConfig.from_pretrained(path, **config_settings, **hub_options)
        configure(config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **hub_options)
        auto_class = getattr(transformers, AUTO_CLASSES[architecture])
        return Pretrained(_load_weights(auto_class, path, config, hub_options), tokenizer)
    except ModelError:
        raise
    except Exception as error:  # any fault of the files becomes a message that names the model
        raise ModelError(_failure(path, architecture, " ".join(str(error).split()))) from error


def _load_weights(auto_class: Any, path: str, config: Any, hub_options: dict[str, Any]) -> Any:
    """The weights in float32; Transformers' default is the file's dtype, which is float16 for the built-in model."""
    model, info = auto_class.from_pretrained(
        path, config=config, dtype=torch.float32, output_loading_info=True, **hub_options
    )
    missing = sorted(info["missing_keys"])
    if not missing or auto_class.__name__ != AUTO_CLASSES["masked LM"]:  # a classifier's head is new
        return model
    if getattr(config, "legacy", False):  # DeBERTa's newer files have other names for the head's weights
        config.legacy = False
        return _load_weights(auto_class, path, config, hub_options)
    in_head = [key for key in missing if not key.startswith(model.base_model_prefix + ".")]
    lacking = "a language-model head" if in_head else "some of its weights"
    raise ModelError(
        f"The model '{path}' lacks {lacking} ({missing[0]}), so its answers would be random; use a model that was "
        "trained as a masked language model."
    )


def _check_path(path: str) -> None:
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ModelError(f"The folder '{path}' holds no model: it has no config.json.")
    if Path(path).is_file():
        raise ModelError(f"The model '{path}' is a file; name the folder that holds it, with its config.json.")


def _failure(path: str, architecture: Architecture, reason: str) -> str:
    """One sentence: which model could not be loaded, why, and what to write instead."""
    if architecture == "classifier":
        return f"The model '{path}' cannot be loaded as a classifier: {reason}"
    if architecture == "translation model":
        reason = shorten(reason, 200).rstrip(".")
        return (
            f"The translation model '{path}' cannot be loaded ({reason}); name two models there and back in "
            "augment.backtranslation (Marian's tokenizers need the package sentencepiece), give a file of paraphrases "
            "(--augmented), or take --set augment.method=rewriting, which needs no other model."
        )
    if Path(path).is_dir():
        return f"The model in '{path}' cannot be loaded: {shorten(reason, 300)}"
    if path.count("/") > 1 or path.startswith((".", "~", "/")):
        return f"The model folder '{path}' does not exist; name a folder, a model of the hub, or 'builtin'."
    return (
        f"The model '{path}' is no folder here and could not be fetched from the hub; check the name and the network, "
        f"or download it where there is a network (hf download {path} --local-dir FOLDER) and name the folder; "
        "'builtin' needs no network."
    )


def set_attention_dropout(config: Any, dropout: float | None) -> None:
    """Replace the model's attention dropout by the recipe's, if it has one."""
    for name in ("attention_probs_dropout_prob", "attention_dropout"):
        if dropout is not None and hasattr(config, name):
            setattr(config, name, dropout)
