"""A masked LM that answers cloze questions: M(w | z) at the mask, and nothing else computed (section 3.1).

In: a name or folder of any masked language model. Out: a `ClozeModel`, which gathers hidden states where they are
asked for before the head sees them, and multiplies only the asked words' rows of the vocabulary matrix.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from clozify.config.sections import Adapter
from clozify.errors import ModelError
from clozify.gpu.attention_mask import accepts_additive_mask, additive_mask
from clozify.gpu.fused_layernorm import fused_layernorm
from clozify.gpu.packing import autocast_disabled, encode_packed, is_half_precision, pack, supports_packing
from clozify.models.lora import add_adapter, load_adapter, merged, switch_adapter
from clozify.prompts.encode import Batch, forward_batches
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.prompts.verbalizer import LabelWords
from clozify.utils import libraries

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUILTIN = Path(__file__).parents[1] / "builtin" / "clozify-mini"


class PrecomputedEncoder(nn.Module):
    """Stands in for the encoder when the head is run by itself: hands on the states that it is given."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        for name, child in encoder.named_children():  # some heads reach into the encoder for its embeddings
            self.add_module(name, child)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        """The states, and what the encoder's own pooler makes of the first of each row."""
        from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

        pooler = getattr(self, "pooler", None)
        if pooler is None:
            return BaseModelOutput(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooler(inputs_embeds))  # type: ignore[arg-type]


class Head(nn.Module):
    """The model's own head, whatever its modules are called.

    It runs the model's own `forward` with the encoder replaced by states computed before. Every tensor of it that
    has a row for each word of the vocabulary is cut to the words asked for, so no other word's score is computed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._model = copy.copy(model)
        self._model._modules = dict(model._modules)
        self._model._modules[model.base_model_prefix] = PrecomputedEncoder(model.base_model)
        self.vocabulary = len(cast(Tensor, model.get_input_embeddings().weight))

    def forward(self, states: Tensor, ids: Tensor | None = None) -> Tensor:
        """(states, hidden) -> (states, ids), or over the whole vocabulary where no ids are named."""
        rows = {}
        if ids is not None:
            rows = {
                name: tensor[ids].to(states.dtype)
                for name, tensor in self._model.named_parameters()
                if tensor.shape[0] == self.vocabulary
            }
        output = torch.func.functional_call(self._model, rows, kwargs={"inputs_embeds": states[None]})
        scores: Tensor = output.logits[0]
        return scores


class ClozeModel:
    """A masked language model and its tokenizer, ready for cloze questions."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str = "model") -> None:
        if model.base_model is model:
            raise ModelError(f"The model '{name}' does not keep its encoder apart from its head; clozify needs that.")
        vocabulary = len(cast(Tensor, model.get_input_embeddings().weight))
        if len(tokenizer) > vocabulary:
            raise ModelError(
                f"The tokenizer of the model '{name}' has {len(tokenizer):,} tokens, the model only {vocabulary:,}; "
                "they do not belong together."
            )
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise ModelError(f"The model '{name}' comes without a tokenizer; put its tokenizer.json beside it.")
        if tokenizer.mask_token_id is None:
            raise ModelError(
                f"The tokenizer of the model '{name}' has no mask token, so it cannot answer cloze questions."
            )
        libraries.stable_kernels()
        self.name, self.precision = name, "float32"  # precision: what a CPU scores rows in
        self.model = cast(Any, model)
        self.model.eval()
        self.tokenizer = PromptTokenizer(tokenizer)
        self.encoder: nn.Module = model.base_model
        self.head = Head(model)
        self._words: dict[int, tuple[LabelWords, Tensor, Tensor]] = {}
        accepted = inspect.signature(self.encoder.forward).parameters
        self._typed = "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 0) > 1
        self._check_head()
        self.supports_packing = supports_packing(self.encoder, self._typed, self.tokenizer.pad_id)
        self._adds_mask = accepts_additive_mask(self.encoder, self.tokenizer.pad_id)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The head's: on a GPU the encoder is trained in another."""
        *_, last = self.model.parameters()
        dtype: torch.dtype = last.dtype
        return dtype

    @property
    def max_length(self) -> int:
        """The most tokens that the model reads, special ones included."""
        return max_positions_of(self.model, self.tokenizer.hf_tokenizer)

    def states(self, batch: Batch, rows: Tensor, positions: Tensor) -> Tensor:
        """The encoder's states at these places of a batch: (places, hidden)."""
        if self.device.type == "cuda" and self.supports_packing and is_half_precision(self.encoder):
            packed = pack(batch, self.tokenizer.pad_id)
            line = {name: self.tensor(array) for name, array in packed.arrays.items()}
            hidden = encode_packed(self.encoder, line, self._typed, int(batch.attention_mask.sum(axis=1).max()))
            return hidden[self.tensor(packed.start)[rows] + positions]
        gathered: list[Tensor] = []  # (places of a pass, hidden) each
        order: list[Tensor] = []
        lengths = batch.attention_mask.sum(axis=1)
        if self.device.type == "cpu":
            np.maximum.at(lengths, rows.numpy(), positions.numpy() + 1)  # the authors' code asks at padding too
        else:
            lengths[:] = batch.input_ids.shape[1]
        for group, inputs in forward_batches(batch, lengths, self.device.type, self.tokenizer.pad_id, self._typed):
            given = {name: self.tensor(array) for name, array in inputs.items()}
            with libraries.without_cudnn_attention():
                hidden = self.encoder(**given)[0]
            place = torch.full((len(batch.rows),), -1, device=self.device)
            place[self.tensor(group)] = torch.arange(len(group), device=self.device)
            inside = (place[rows] >= 0).nonzero()[:, 0] if len(group) < len(batch.rows) else None
            chosen, at = (rows, positions) if inside is None else (rows[inside], positions[inside])
            gathered.append(hidden[place[chosen], at])
            order.append(torch.arange(len(rows), device=self.device) if inside is None else inside)
        if len(gathered) == 1:
            return gathered[0]
        return torch.cat(gathered)[torch.argsort(torch.cat(order))]

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """For rows that are only scored: on a GPU a bf16 copy of the encoder reads them; the head stays in float32."""
        trained = self.encoder
        with merged(trained) if self.has_adapter else nullcontext():
            if self.device.type == "cuda" or self.precision == "bf16":
                self.encoder = copy.deepcopy(trained).to(torch.bfloat16).eval()
            try:
                with fused_layernorm(self.encoder):
                    yield
            finally:
                self.encoder = trained

    @property
    def has_adapter(self) -> bool:
        """Whether its weights are frozen and adapters lie beside them."""
        return hasattr(self.model, "peft_config")

    def adapt(self, settings: Adapter) -> None:
        """Freeze the weights and put an untrained adapter beside them."""
        add_adapter(self.model, settings)
        self._renew_head()

    def use_adapter(self, folder: Path, name: str) -> None:
        """Answer with an adapter that was saved; each is read once, and all share the weights."""
        if not self.has_adapter or name not in self.model.peft_config:
            load_adapter(self.model, folder, name)
            self._renew_head()
        switch_adapter(self.model, name)

    def _renew_head(self) -> None:
        self.head = Head(self.model)  # layers of the head may have been replaced
        self._check_head()

    def states_at_mask(self, batch: Batch) -> Tensor:
        """The encoder's state at each row's mask: (batch, hidden)."""
        return self.states(batch, torch.arange(len(batch.rows), device=self.device), self.tensor(batch.mask_positions))

    def label_scores(self, states: Tensor, words: LabelWords) -> Tensor:
        """s(l | x): the mean of the label's words' raw scores, (batch, hidden) -> (batch, labels)."""
        if id(words) not in self._words:  # sent to the device once; held, since another object could take its number
            with torch.inference_mode(False):  # for training too, whoever asked first
                self._words[id(words)] = (words, self.tensor(words.ids), self.tensor(words.mean).to(self.dtype))
        _, ids, mean = self._words[id(words)]
        with torch.autocast(self.device.type, enabled=False):  # a handful of numbers: always in full precision
            word_scores = self.head(states.to(self.dtype), ids)  # (batch, words)
            scores: Tensor = word_scores @ mean.T
        return scores

    def states_of(self, inputs: Mapping[str, Tensor], longest: int) -> Tensor:
        """The encoder's states at `rows` and `positions` of a batch that lies on the device: (places, hidden).

        Of a line of rows, `positions` are the line's own.
        """
        if "cu_seqlens" in inputs:
            return encode_packed(self.encoder, inputs, self._typed, longest)[inputs["positions"]]
        given = {name: inputs[name] for name in self.input_names}
        if self._adds_mask:
            given["attention_mask"] = additive_mask(given["attention_mask"], self.encoder)
        with autocast_disabled(self.encoder):
            hidden: Tensor = self.encoder(**given)[0]
        return hidden[inputs["rows"], inputs["positions"]]

    @property
    def input_names(self) -> list[str]:
        """What the encoder reads of a batch."""
        return ["input_ids", "attention_mask"] + (["token_type_ids"] if self._typed else [])

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array where the weights are."""
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    @libraries.quiet_transformers()
    def save(self, folder: Path) -> None:
        """Write the model with its head and its tokenizer as Transformers does."""
        self.model.save_pretrained(folder)
        self.tokenizer.hf_tokenizer.save_pretrained(folder)

    @torch.inference_mode()
    def _check_head(self) -> None:
        """The head's words alone must score as they do within the whole vocabulary."""
        size = int(self.model.config.hidden_size)
        states = torch.linspace(-1, 1, 2 * size, device=self.device, dtype=self.model.dtype).view(2, size)
        ids = torch.tensor([0, self.tokenizer.mask_id], device=self.device)
        try:
            alone, whole = self.head(states, ids), self.head(states)[:, ids]
        except (AttributeError, TypeError, RuntimeError) as error:
            raise ModelError(
                f"The head of the model '{self.name}' is built in a way unknown to clozify: {error}."
            ) from error
        if not torch.allclose(alone, whole, atol=1e-2 if self.model.dtype != torch.float32 else 1e-4, rtol=1e-3):
            raise ModelError(f"The head of the model '{self.name}' cannot be cut to single words.")


def max_positions_of(model: Any, tokenizer: Any) -> int:
    """The most tokens that a model reads, special ones included."""
    limit = int(getattr(model.config, "max_position_embeddings", None) or 512)
    for name, module in model.base_model.named_modules():
        # RoBERTa and MPNet start to count positions behind the padding id
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limit = module.num_embeddings - module.padding_idx - 1
    return min(limit, int(tokenizer.model_max_length))


def set_attention_dropout(config: Any, dropout: float | None) -> None:
    """Put a recipe's attention dropout in the place of the model's own."""
    for name in ("attention_probs_dropout_prob", "attention_dropout"):
        if dropout is not None and hasattr(config, name):
            setattr(config, name, dropout)


@libraries.quiet_transformers()
def load_model(
    name: str | Path = "builtin",
    device: str | None = None,
    trust_remote_code: bool = False,
    attention_dropout: float | None = None,
    adapter: Adapter | None = None,
) -> ClozeModel:
    """A masked language model by folder or hub name; `builtin` is the one that comes with clozify."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoTokenizer

    place = str(BUILTIN if str(name) == "builtin" else name)
    if Path(place).is_dir() and not (Path(place) / "config.json").is_file():
        raise ModelError(f"The folder '{place}' holds no model: it has no config.json.")
    if Path(place).is_file():
        raise ModelError(f"The model '{place}' is a file; name the folder that holds it, with its config.json.")
    options = {
        "trust_remote_code": trust_remote_code,
        "local_files_only": Path(place).is_dir() or not libraries.hub_reachable(),
    }
    try:
        config = AutoConfig.from_pretrained(place, **options)
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING or config.is_encoder_decoder:
            raise ModelError(
                f"The model '{place}' is a {config.model_type} model, no masked language model; use one like BERT or "
                "RoBERTa."
            )
        set_attention_dropout(config, attention_dropout)
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model = _load_weights(place, config, options)
    except ModelError:
        raise
    except Exception as error:  # whatever is wrong with the files, a person sees what and where
        raise ModelError(_why_not(place, str(error))) from error
    target: Any = device or ("cuda" if torch.cuda.is_available() else "cpu")
    cloze = ClozeModel(model.to(target), tokenizer, str(name))
    if adapter is not None and adapter.method != "none":
        cloze.adapt(adapter)
    return cloze


def _load_weights(place: str, config: Any, options: dict[str, Any]) -> Any:
    from transformers import AutoModelForMaskedLM

    # float32 by name: else Transformers takes the dtype of the file, which for the built-in model is float16
    model, info = AutoModelForMaskedLM.from_pretrained(
        place, config=config, dtype=torch.float32, output_loading_info=True, **options
    )
    missing = sorted(info["missing_keys"])
    if missing and getattr(config, "legacy", False):  # DeBERTa's newer files name their head otherwise
        config.legacy = False
        return _load_weights(place, config, options)
    if missing:
        outside = [key for key in missing if not key.startswith(model.base_model_prefix + ".")]
        what = "a language-model head" if outside else "some of its weights"
        raise ModelError(
            f"The model '{place}' lacks {what} ({missing[0]}), so its answers would be random; use a model that was "
            "trained as a masked language model."
        )
    return model


def _why_not(place: str, reason: str) -> str:
    if Path(place).is_dir():
        return f"The model in '{place}' cannot be loaded: {shorten(reason, 300)}"
    if place.count("/") > 1 or place.startswith((".", "~", "/")):
        return f"The model folder '{place}' does not exist; name a folder, a model of the hub, or 'builtin'."
    return (
        f"The model '{place}' is no folder here and could not be fetched from the hub; check the name and the network, "
        f"or download it where there is a network (hf download {place} --local-dir FOLDER) and name the folder; "
        "'builtin' needs no network."
    )
