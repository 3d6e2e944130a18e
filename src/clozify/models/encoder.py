"""The base class of `ClozeModel` and `Classifier`: a Transformers model, its encoder, its tokenizer, and their batches.

The encoder and the head run apart, so that the head reads only the positions that matter. On a CPU a batch runs in
groups of rows of like length; a GPU runs padded or, where the encoder supports it, padding-free batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.gpu.attention_mask import accepts_additive_mask, additive_mask
from clozify.gpu.cuda_graphs import pad_last_axis, padded_width
from clozify.gpu.options import DEFAULT_OPTIONS, GpuOptions
from clozify.gpu.packing import autocast_disabled, encode_packed, pack, supports_packing
from clozify.models.frozen_layers import (
    SplitEncoder,
    compute_states,
    fits_into_memory,
    frozen_parameters,
    quantize_lower,
    split_encoder,
    without_gradients,
)
from clozify.models.last_layer import GatherOutput, GatherQueries, LastLayer, find_last_layer, layer_list
from clozify.models.modules import replace_module
from clozify.prompts.encode import Batch, EncodedRows, forward_batches
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.utils import libraries
from clozify.utils.process_group import current_group


class PrecomputedEncoder(nn.Module):
    """Takes the place of an encoder when its head runs alone: returns the hidden states that it is called with."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        for name, child in encoder.named_children():  # some heads read the encoder's embeddings
            self.add_module(name, child)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        """The states, and the pooler's output for each row's first state if the encoder has a pooler."""
        from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

        pooler = getattr(self, "pooler", None)
        if pooler is None:
            return BaseModelOutput(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooler(inputs_embeds))  # type: ignore[arg-type]


def head_of(model: Any) -> Any:
    """The model with its encoder replaced by a `PrecomputedEncoder`; all weights are shared with the model."""
    return replace_module(model, model.base_model_prefix, PrecomputedEncoder(model.base_model))


class WithoutAutocast(nn.Module):
    """An encoder whose weights, if they have 16 bits, are computed with as they are, also where autocast is enabled."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The encoder's output."""
        with autocast_disabled(self.encoder):
            return self.encoder(*args, **kwargs)


def encoder_without_autocast(model: Any) -> Any:
    """The model with its encoder replaced by a `WithoutAutocast`; all weights are shared with the model."""
    return replace_module(model, model.base_model_prefix, WithoutAutocast(model.base_model))


class Encoder:
    """A Transformers model with a head, and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, max_length: int, options: GpuOptions = DEFAULT_OPTIONS) -> None:
        libraries.stable_kernels()
        self.model = model
        self.model.eval()
        self.encoder: nn.Module = model.base_model
        self.tokenizer = PromptTokenizer(tokenizer)
        self.max_length = max_length  # tokens of a row, special ones included
        self.options = options
        self._split: SplitEncoder | None = None  # in a training with frozen layers
        self._upper: dict[int, Any] = {}  # id of a module -> the module with the upper layers alone
        accepted = inspect.signature(self.encoder.forward).parameters
        self.has_token_types = "token_type_ids" in accepted and getattr(model.config, "type_vocab_size", 0) > 1
        self._takes_additive_mask = options.kernels == "auto" and accepts_additive_mask(
            self.encoder, self.tokenizer.pad_id, self.sample_ids(8)
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.device
        return device

    @property
    def input_names(self) -> list[str]:
        """The arrays of a batch that the encoder reads."""
        return ["input_ids", "attention_mask"] + (["token_type_ids"] if self.has_token_types else [])

    @property
    def uses_custom_kernels(self) -> bool:
        """Whether CUDA graphs, padding-free batches and fused kernels are used."""
        return self.options.uses_custom_kernels(self.device)

    @property
    def trains_in_bf16(self) -> bool:
        """Whether the model is trained in bf16, with float32 master weights."""
        return self.options.trains_in_bf16(self.device)

    @property
    def trains_with_cuda_graphs(self) -> bool:
        """Whether training steps are captured as CUDA graphs: in a single process only."""
        return self.uses_custom_kernels and current_group().size == 1

    @cached_property
    def supports_packing(self) -> bool:
        """Whether padding-free batches give the same results as padded ones."""
        training = self.model.training
        self.model.eval()
        try:
            return self._supports_packing()
        finally:
            self.model.train(training)

    def _supports_packing(self) -> bool:
        encoder = self.model.base_model  # in float32: `self.encoder` may be a copy in bf16
        return supports_packing(encoder, self.has_token_types, self.tokenizer.pad_id, self.sample_ids(24))

    def sample_ids(self, count: int) -> NDArray[np.int64]:
        """So many ids of ordinary tokens, to try the model with."""
        return np.resize(np.flatnonzero(~self.tokenizer.is_special), count)

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """An array as a tensor on the model's device."""
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)

    def forward_passes(
        self,
        module: Any,
        batch: Batch,
        lengths: NDArray[np.int64],
        grouped: bool,
        positions: NDArray[np.int64] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Run a module on a batch: yields the row indices of each forward pass and its output.

        `grouped`, rows of like length run together, without much padding; else all rows run at once. `positions`, one
        for each row, may be given where `reads_one_position`; the states of the others are not computed.
        """
        for rows, inputs in forward_batches(batch, lengths, grouped, self.tokenizer.pad_id, self.has_token_types):
            tensors = {name: self.to_device(array) for name, array in inputs.items()}
            split = self._split if self.model.training else None  # development rows are scored within a training
            run = module if split is None else self._upper[id(module)]
            if positions is not None:
                assert self._last_layer is not None
                prefix = "" if module is self.encoder else f"{self.model.base_model_prefix}."
                run = self._last_layer.reading(run, self.to_device(positions[rows]), prefix)
            with libraries.without_cudnn_attention():
                output = run(**tensors) if split is None else split.run(run, batch.rows[rows], tensors)
            yield rows, output

    @property
    def reads_one_position(self) -> bool:
        """Whether `forward_passes` can compute the states of one position of each row alone."""
        return self._last_layer is not None

    @property
    def _last_layer(self) -> LastLayer | None:
        """How the last layer computes one position of each row: in trainings with frozen layers, and on a CPU."""
        if self.model.training:
            return None if self._split is None else self._split.last
        return self._scoring_last_layer if self.device.type == "cpu" else None

    @cached_property
    def _scoring_last_layer(self) -> LastLayer | None:
        encoder = self.model.base_model  # in float32: `self.encoder` may be a copy in bf16
        if (layers := layer_list(encoder)) is None:
            return None
        ids = self.to_device(self.sample_ids(16).reshape(2, 8))
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        return find_last_layer(
            encoder, layers, lambda module: module(input_ids=ids, attention_mask=mask)[0], (GatherQueries, GatherOutput)
        )

    @contextmanager
    def frozen_layers(self, fraction: float, rows: EncodedRows | None) -> Iterator[None]:
        """Within the block this fraction of the layers, from the embeddings up, is not trained.

        The lower layers' states of `rows`, which all batches are then made of, are computed once; with None they are
        computed for every batch. Steps in CUDA graphs run the whole encoder.
        """
        layers = layer_list(self.encoder)
        frozen = 0 if layers is None else round(fraction * len(layers[1]))
        if not frozen:
            yield
            return
        with without_gradients(frozen_parameters(self.encoder, frozen)):
            split = None
            if not self.trains_with_cuda_graphs:
                split = split_encoder(self.encoder, frozen, self.to_device(self.sample_ids(16).reshape(2, 8)))
            if split is not None:
                if self.options.scores_in_int8(self.device):
                    quantize_lower(split)
                if rows is not None and fits_into_memory(rows, self.model.config.hidden_size):
                    compute_states(split, rows, self.tokenizer.pad_id, self.has_token_types, self.device)
                whole = replace_module(self.model, self.model.base_model_prefix, split.upper)
                self._upper = {id(self.encoder): split.upper, id(self.model): whole}
            self._split = split
            try:
                yield
            finally:
                self._split, self._upper = None, {}

    def fixed_shape_inputs(
        self, batch: Batch, packed: bool
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64] | None]:
        """A batch's arrays in one of a few shapes, for a CUDA graph: padded to a few widths, or packed.

        Of a packed batch also the index of each row's first token.
        """
        if packed:
            packed_batch = pack(batch, self.tokenizer.pad_id, pad_length=True)
            return dict(packed_batch.arrays), packed_batch.start
        width = padded_width(batch.input_ids.shape[1], self.max_length)
        fill = {"input_ids": self.tokenizer.pad_id}
        arrays = {name: pad_last_axis(getattr(batch, name), width, fill.get(name, 0)) for name in self.input_names}
        return arrays, None

    def encode_packed(self, inputs: Mapping[str, Tensor], max_length: int) -> Tensor:
        """The encoder's states of a padding-free batch with rows of at most `max_length` tokens: (tokens, hidden)."""
        return encode_packed(self.encoder, inputs, self.has_token_types, max_length)

    def padded_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's inputs among a padded batch's tensors, the attention mask in a form that a graph can capture."""
        model_inputs = {name: inputs[name] for name in self.input_names}
        if self._takes_additive_mask:
            model_inputs["attention_mask"] = additive_mask(model_inputs["attention_mask"], self.encoder)
        return model_inputs

    def encode_padded(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The encoder's states of a padded batch: (rows, width, hidden)."""
        with autocast_disabled(self.encoder):
            hidden: Tensor = self.encoder(**self.padded_inputs(inputs))[0]
        return hidden


def max_positions(model: Any, tokenizer: Any) -> int:
    """The most tokens that a model reads, special ones included."""
    limit = int(getattr(model.config, "max_position_embeddings", None) or 512)
    for name, module in model.base_model.named_modules():
        # RoBERTa and MPNet count positions from behind the padding id
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limit = module.num_embeddings - module.padding_idx - 1
    return min(limit, int(tokenizer.model_max_length))
