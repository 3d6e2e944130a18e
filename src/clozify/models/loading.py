"""Loads a Transformers model by name: config, tokenizer and float32 weights, from a folder, the hub, or the package.

No code of a model's folder or repository is run, and of pickled weights tensors alone are read (docs/security.md).
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import torch

from clozify.errors import ModelError
from clozify.models.builtin import builtin_folder, is_builtin
from clozify.models.gguf import expanding_gguf, forget_gguf, gguf_source
from clozify.models.int8 import INT8_FILE, has_int8_weights, read_int8
from clozify.utils import libraries

LanguageModelKind = Literal["masked LM", "causal LM", "encoder-decoder"]
Architecture = Literal[LanguageModelKind, "new classifier", "classifier", "other classifier", "translation model"]
AUTO_CLASSES: dict[Architecture, str] = {
    "masked LM": "AutoModelForMaskedLM",
    "causal LM": "AutoModelForCausalLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
    "new classifier": "AutoModelForSequenceClassification",  # an encoder that gets a new head
    "classifier": "AutoModelForSequenceClassification",
    "other classifier": "AutoModelForSequenceClassification",  # one that clozify did not train
    "translation model": "AutoModelForSeq2SeqLM",
}
WITHOUT_MASK: tuple[Architecture, ...] = ("causal LM", "encoder-decoder", "other classifier", "translation model")


@dataclass(frozen=True)
class Pretrained:
    """A model as it was loaded."""

    model: Any
    tokenizer: Any


def model_path(name: str | Path) -> str:
    """The folder of a built-in model, else the name itself: a folder or a model of the hub."""
    return str(builtin_folder(name) if is_builtin(name) else name)


@libraries.gc_paused()  # Transformers imports a model's modules here
@libraries.quiet_transformers()
def load_pretrained(
    name: str | Path,
    architecture: Architecture,
    configure: Callable[[Any], None] = lambda config: None,
    trust_remote_code: bool = False,
    safetensors_only: bool = False,
    **config_settings: Any,
) -> Pretrained:
    """A model and its tokenizer by folder, hub name, or 'builtin'; raises `ModelError`.

    `configure` changes the config in place before the weights are loaded; `config_settings` replace its entries. The
    hub is asked only if it can be reached; code from a repository runs only if `trust_remote_code` is set. With
    `safetensors_only`, weights in PyTorch's own format are not read.
    """
    import transformers

    path, gguf_options = gguf_source(model_path(name))
    _check_path(path, gguf_options)
    local = _only_local(path)
    hub_options = {"trust_remote_code": trust_remote_code, "local_files_only": local, **gguf_options}
    with _loading(path, gguf_options.get("gguf_file", "config.json"), architecture):
        config = transformers.AutoConfig.from_pretrained(path, **config_settings, **hub_options)
        if "/" in str(config._attn_implementation):
            raise ModelError(
                f"The config of the model '{path}' asks for code of the hub (attn_implementation = "
                f"'{config._attn_implementation}'), which clozify does not run; remove that entry."
            )
        configure(config)
    tokenizer = _load_tokenizer(path, architecture, hub_options)
    weights_file = gguf_options.get("gguf_file") or _weights_file(path, safetensors_only)
    with _loading(path, weights_file, architecture):
        # Transformers would look for an adapter on the hub, for half a minute where that does not answer
        adapter_options = {"local_files_only": True} if local else {}
        options = {**hub_options, "use_safetensors": safetensors_only or None, "adapter_kwargs": adapter_options}
        model = _load_weights(path, architecture, config, options)
    if architecture != "translation model":
        _check_model(model, tokenizer, path)
    return Pretrained(model, tokenizer)


def make_readable(folder: Path) -> None:
    """Give the weights, which safetensors writes for their owner alone, the permissions of the config."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(next(folder.glob("*config.json")), file)


def load_config(name: str | Path, from_hub: bool = False) -> Any:
    """The config of a model that is on this machine or, with `from_hub`, of one that the hub has."""
    import transformers

    path = model_path(name)
    _check_path(path)
    local = not from_hub or _only_local(path)
    with _loading(path, "config.json", "classifier"):
        return transformers.AutoConfig.from_pretrained(path, local_files_only=local, trust_remote_code=False)


def count_encoder_parameters(name: str | Path) -> int:
    """About how many parameters a model's encoder has, embeddings left out, by its config: 12 h^2 a layer."""
    config = _read_config(name)
    with _loading(model_path(name), "config.json", "masked LM"):
        return int(12 * config.num_hidden_layers * config.hidden_size**2)


def architecture_of(name: str | Path) -> LanguageModelKind:
    """How a language model answers, by its config: "masked LM", "causal LM" or "encoder-decoder"."""
    import transformers

    config = _read_config(name)
    if type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder:
        return "masked LM"
    if config.is_encoder_decoder and type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "encoder-decoder"
    if not config.is_encoder_decoder and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return "causal LM"
    raise ModelError(
        f"The model '{model_path(name)}' is a {config.model_type} model, no language model; use one like BERT, GPT-2, "
        "Llama or T5."
    )


@libraries.quiet_transformers()
def _read_config(name: str | Path) -> Any:
    """The config of a language model, from this machine or the hub."""
    import transformers

    path, gguf_options = gguf_source(model_path(name))
    _check_path(path, gguf_options)
    with _loading(path, gguf_options.get("gguf_file", "config.json"), "masked LM"):
        local = _only_local(path)
        return transformers.AutoConfig.from_pretrained(
            path, local_files_only=local, trust_remote_code=False, **gguf_options
        )


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a classifier, or of a model that becomes one, by folder, hub name, or 'builtin'."""
    path = model_path(name)
    local = _only_local(path)
    return _load_tokenizer(path, "classifier", {"local_files_only": local, "trust_remote_code": False})


def _load_tokenizer(path: str, architecture: Architecture, hub_options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    with _loading(path, "tokenizer.json", architecture):
        tokenizer = AutoTokenizer.from_pretrained(path, **hub_options)
    if architecture == "translation model":
        return tokenizer
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what Transformers returns where the file is missing
        raise ModelError(f"The model '{path}' comes without a tokenizer; put its tokenizer.json into its folder.")
    if tokenizer.mask_token_id is None and architecture not in WITHOUT_MASK:
        raise ModelError(f"The tokenizer of the model '{path}' has no mask token; use a model like BERT or RoBERTa.")
    return tokenizer


def _weights_file(path: str, safetensors_only: bool) -> str:
    """The name of the file with the weights, for messages; warns if they are in PyTorch's own format."""
    folder, default = Path(path), "model.safetensors"
    if has_int8_weights(folder):
        return INT8_FILE
    if not folder.is_dir() or any(folder.glob("*.safetensors*")):
        return default
    pickled = next((file.name for file in folder.glob("pytorch_model*.bin*")), "")
    if safetensors_only or not pickled:
        other = f" ({pickled} is not read)" if pickled else ""
        raise ModelError(f"The folder '{path}' has no {default}{other}; copy the folder again, or train again.")
    warnings.warn(
        f"The model in '{path}' has no {default}; the weights are read from {pickled}, in which PyTorch accepts "
        "tensors only. Save the model with save_pretrained to convert it.",
        stacklevel=2,
    )
    return pickled


def _load_weights(path: str, architecture: Architecture, config: Any, options: dict[str, Any]) -> Any:
    """The weights in float32; Transformers' default is the file's dtype."""
    import transformers

    model_class = getattr(transformers, AUTO_CLASSES[architecture])
    source: str | None = path
    if has_int8_weights(Path(path)):  # the classes named Auto take no state_dict
        model_class, source = model_class._model_mapping[type(config)], None
        options = {"state_dict": read_int8(Path(path) / INT8_FILE)}
    with expanding_gguf() if "gguf_file" in options else nullcontext():
        model, info = model_class.from_pretrained(
            source, config=config, dtype=torch.float32, weights_only=True, output_loading_info=True, **options
        )
    if "gguf_file" in options:
        forget_gguf(model)
    model.config.name_or_path = path
    missing = sorted(info["missing_keys"])
    if not missing or architecture in ("new classifier", "translation model"):
        return model
    if architecture == "classifier":
        raise ModelError(f"The classifier in '{path}' lacks some of its weights ({missing[0]}); train it again.")
    if architecture == "other classifier":
        raise ModelError(
            f"The model '{path}' lacks weights of a classifier ({missing[0]}), so its answers would be random; name a "
            "model that was trained to classify."
        )
    if getattr(config, "legacy", False):  # DeBERTa's newer files have other names for the head's weights
        config.legacy = False
        return _load_weights(path, architecture, config, options)
    in_head = [key for key in missing if not key.startswith(model.base_model_prefix + ".")]
    lacking = "a language-model head" if in_head else "some of its weights"
    kind = "a masked language model" if architecture == "masked LM" else f"a {architecture}"
    raise ModelError(
        f"The model '{path}' lacks {lacking} ({missing[0]}), so its answers would be random; use a model that was "
        f"trained as {kind}."
    )


def _check_model(model: Any, tokenizer: Any, path: str) -> None:
    """Raise a `ModelError` if the tokenizer is another model's or a weight is not a finite number."""
    vocabulary = len(model.get_input_embeddings().weight)
    if len(tokenizer) > vocabulary:
        raise ModelError(
            f"The tokenizer of the model '{path}' has {len(tokenizer):,} tokens, the model only {vocabulary:,}; "
            "they do not belong together."
        )
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ModelError(
                f"The weights of the model '{path}' are damaged: {name} has values that are not finite numbers; copy "
                "the model again."
            )


def _only_local(path: str) -> bool:
    """Whether a model is read from this machine alone: it is a folder, or the hub does not answer."""
    return Path(path).is_dir() or not libraries.hub_reachable()


def _check_path(path: str, gguf_options: Mapping[str, str] | None = None) -> None:
    if gguf_options:
        return
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ModelError(f"The folder '{path}' holds no model: it has no config.json.")
    if Path(path).is_file():
        raise ModelError(f"The model '{path}' is a file; name the folder that holds it, with its config.json.")


@contextmanager
def _loading(path: str, file: str, architecture: Architecture) -> Iterator[None]:
    """Any error within the block becomes a `ModelError` that names the model and the file."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # Transformers raises many types
        raise ModelError(_failure(path, file, architecture, error)) from error


def _failure(path: str, file: str, architecture: Architecture, error: Exception) -> str:
    """One sentence: which model could not be loaded, why, and what to write instead."""
    reason = " ".join(str(error).split())
    if architecture == "translation model":
        reason = shorten(reason, 200).rstrip(".")
        return (
            f"The translation model '{path}' cannot be loaded ({reason}); name two models there and back, folders or "
            "hub names, in augment.backtranslation (Marian's tokenizers need pip install 'clozify[translation]'), give "
            "a file of paraphrases (--augmented), or take --set augment.method=rewriting, which needs no other model."
        )
    if Path(path).is_dir():
        reason = shorten(reason, 300).rstrip(".")
        return f"The model in '{path}' cannot be loaded, because of its {file}: {reason}; copy the folder again."
    if path.count("/") > 1 or path.startswith((".", "~", "/")):
        return f"The model folder '{path}' does not exist; name a folder, a model of the hub, or 'builtin'."
    refusal = libraries.hub_refusal(error)
    if refusal == "no access":
        return (
            f"The hub gives you no access to the model '{path}'; accept its terms on its page there and log in with "
            "'hf auth login', or name another model."
        )
    if refusal == "not found":
        return (
            f"The hub has no model '{path}' that you can see, and there is no such folder here; check the name, and "
            "log in with 'hf auth login' if it is private."
        )
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
