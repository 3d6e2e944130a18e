"""The masked language model M of section 3.1, which answers cloze questions: M(w | z) at the mask.

Hidden states are gathered at the positions that are read before the head runs, and of the vocabulary matrix only the
rows of the label words are multiplied.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.sections import Adapter
from clozify.errors import ModelError
from clozify.gpu.fp8_scoring import FAST_WIDTH, round_to_fp8
from clozify.gpu.fused_layernorm import fused_layernorm
from clozify.gpu.options import DEFAULT_OPTIONS, GpuOptions
from clozify.gpu.packing import is_half_precision, pack
from clozify.models.encoder import Encoder, head_of, max_positions
from clozify.models.int8_linear import quantized
from clozify.models.loading import load_pretrained, make_readable, model_path, set_attention_dropout
from clozify.models.lora import add_adapter, load_adapter, merged, switch_adapter
from clozify.prompts.encode import Batch
from clozify.prompts.verbalizer import LabelWords
from clozify.utils import libraries

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


OFFSETS = "label_offsets"  # the module's name within the model
OFFSETS_FILE = "label_offsets.safetensors"


class Head(nn.Module):
    """The model's own language-model head, whatever its modules are called.

    It runs the model's `forward` with the encoder replaced by precomputed states. Every parameter with a row for each
    word of the vocabulary is indexed by the requested ids, so no other word's score is computed.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._model = head_of(model)
        self.vocabulary = len(cast(Tensor, model.get_input_embeddings().weight))

    def forward(self, states: Tensor, ids: Tensor | None = None) -> Tensor:
        """(states, hidden) -> (states, ids), or (states, vocabulary) without ids."""
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

    def transform(self, states: Tensor) -> Tensor:
        """h(x), which the head multiplies with every word's vector: (states, hidden) -> (states, width).

        The head runs with an identity matrix in place of the words' vectors, and without their biases.
        """
        width = self.word_vectors.shape[1]
        rows = {
            name: torch.eye(tensor.shape[1], dtype=states.dtype, device=states.device)
            if tensor.ndim == 2
            else torch.zeros(width, dtype=states.dtype, device=states.device)
            for name, tensor in self._model.named_parameters()
            if tensor.shape[0] == self.vocabulary
        }
        output = torch.func.functional_call(self._model, rows, kwargs={"inputs_embeds": states[None]})
        transformed: Tensor = output.logits[0]
        return transformed

    @property
    def word_vectors(self) -> Tensor:
        """The vocabulary matrix, (vocabulary, width): a word's score is its row times h(x), plus the word's bias."""
        weight: Tensor = self._model.get_output_embeddings().weight
        return weight


class LabelOffsets(nn.Linear):
    """What is learned of each label beyond its words: a vector that is added to the mean of its words' vectors."""

    def __init__(self, labels: int, width: int) -> None:
        super().__init__(width, labels)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class _DeviceWords(NamedTuple):
    """`LabelWords` on the model's device."""

    ids: Tensor
    mean: Tensor
    masks: Tensor | None
    zero_points: Tensor | None


def mean_over_masks(states: Tensor) -> Tensor:
    """(batch, [masks,] hidden) -> (batch, hidden)."""
    return states if states.ndim == 2 else states.mean(dim=1)


class ClozeModel(Encoder):
    """A masked language model and its tokenizer, ready for cloze questions."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "model",
        options: GpuOptions = DEFAULT_OPTIONS,
    ) -> None:
        _check_encoder(model, name)
        super().__init__(cast(Any, model), tokenizer, max_positions(model, tokenizer), options)
        self.name = name
        self.head = Head(model)
        self._label_words = WeakKeyDictionary[LabelWords, _DeviceWords]()
        self._check_head()

    @property
    def dtype(self) -> torch.dtype:
        """The head's dtype, float32; the encoder's may be bf16 in training on a GPU."""
        *_, last = self.model.parameters()
        dtype: torch.dtype = last.dtype
        return dtype

    def states(self, batch: Batch, rows: Tensor, positions: Tensor) -> Tensor:
        """The encoder's states at `positions` of `rows` of a batch: (positions, hidden)."""
        if self.uses_custom_kernels and self.supports_packing and is_half_precision(self.encoder):
            packed = pack(batch, self.tokenizer.pad_id)
            inputs = {name: self.to_device(array) for name, array in packed.arrays.items()}
            hidden = self.encode_packed(inputs, int(batch.attention_mask.sum(axis=1).max()))
            return hidden[self.to_device(packed.start)[rows] + positions]
        gathered: list[Tensor] = []  # (positions of a pass, hidden) each
        order: list[Tensor] = []
        lengths = batch.attention_mask.sum(axis=1)
        if self.device.type == "cpu":
            np.maximum.at(lengths, rows.numpy(), positions.numpy() + 1)  # the authors' code predicts padding too
        else:
            lengths[:] = batch.input_ids.shape[1]
        for group, output in self.forward_passes(self.encoder, batch, lengths, grouped=self.device.type == "cpu"):
            index_in_group = torch.full((len(batch.rows),), -1, device=self.device)
            index_in_group[self.to_device(group)] = torch.arange(len(group), device=self.device)
            inside = (index_in_group[rows] >= 0).nonzero()[:, 0] if len(group) < len(batch.rows) else None
            group_rows, at = (rows, positions) if inside is None else (rows[inside], positions[inside])
            gathered.append(output[0][index_in_group[group_rows], at])
            order.append(torch.arange(len(rows), device=self.device) if inside is None else inside)
        if len(gathered) == 1:
            return gathered[0]
        return torch.cat(gathered)[torch.argsort(torch.cat(order))]

    def states_at_mask(self, batch: Batch) -> Tensor:
        """The encoder's state at each row's mask, (batch, hidden), or at its masks, (batch, masks, hidden)."""
        if batch.masks > 1:
            rows, positions = map(self.to_device, batch.all_masks())
            return self.states(batch, rows, positions).view(len(batch.rows), batch.masks, -1)
        if self.reads_one_position:
            grouped, lengths = self.device.type == "cpu", batch.attention_mask.sum(axis=1)
            passes = list(self.forward_passes(self.encoder, batch, lengths, grouped, batch.mask_positions))
            order = np.argsort(np.concatenate([rows for rows, _ in passes]))
            return torch.cat([output[0][:, 0] for _, output in passes])[self.to_device(order)]
        rows = torch.arange(len(batch.rows), device=self.device)
        return self.states(batch, rows, self.to_device(batch.mask_positions))

    def gather_states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The encoder's states at `rows` and `positions` of a batch that is on the device: (positions, hidden).

        In a padding-free batch `positions` count from the batch's first token.
        """
        if "cu_seqlens" in inputs:
            return self.encode_packed(inputs, self.max_length)[inputs["positions"]]
        return self.encode_padded(inputs)[inputs["rows"], inputs["positions"]]

    def label_scores(self, states: Tensor, words: LabelWords) -> Tensor:
        """s(l | x): the mean of the label's words' raw scores, (batch, [masks,] hidden) -> (batch, labels)."""
        if words not in self._label_words:
            with torch.inference_mode(False):  # these tensors serve training too
                self._label_words[words] = _DeviceWords(
                    self.to_device(words.ids),
                    self.to_device(words.mean),
                    None if words.masks is None else self.to_device(words.masks),
                    None if words.zero_points is None else self.to_device(words.zero_points),
                )
        ids, mean, masks, zero_points = self._label_words[words]
        with torch.autocast(self.device.type, enabled=False):  # few numbers: always in full precision
            states = states.to(self.dtype)
            if masks is None:
                word_scores = self.head(states, ids)  # (batch, tokens)
            else:
                at_masks = self.head(states.flatten(0, 1), ids).view(*states.shape[:2], -1)  # (batch, masks, tokens)
                word_scores = at_masks[:, masks, torch.arange(len(ids), device=ids.device)]  # (batch, tokens)
            scores: Tensor = word_scores @ mean.to(self.dtype).T
            if self.label_offsets is not None:
                scores = scores + self.label_offsets(self.head.transform(mean_over_masks(states)))
            if zero_points is not None:
                scores = scores - zero_points.to(self.dtype)
        return scores

    @property
    def label_offsets(self) -> LabelOffsets | None:
        """The offsets to the labels' vectors, once `add_label_offsets` was called."""
        return cast("LabelOffsets | None", self.model._modules.get(OFFSETS))

    def add_label_offsets(self, labels: int) -> LabelOffsets:
        """Add an offset of zeros to each label's vector, a part of the model that is trained with it."""
        offsets = LabelOffsets(labels, self.head.word_vectors.shape[1]).to(self.device)
        self.model.add_module(OFFSETS, offsets)
        return offsets

    def remove_label_offsets(self) -> None:
        """Let the labels' vectors be the means of their words' vectors again."""
        self.model._modules.pop(OFFSETS, None)

    def transformed_and_mean_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The head's h(x) at each row's mask, (batch, width), and the mean of the row's states, (batch, hidden)."""
        at_mask, means = [], []
        order = []
        lengths = batch.attention_mask.sum(axis=1)
        for group, output in self.forward_passes(self.encoder, batch, lengths, grouped=self.device.type == "cpu"):
            states = output[0].to(self.dtype)  # (group, tokens, hidden)
            rows = torch.arange(len(group), device=self.device)
            at_mask.append(states[rows, self.to_device(batch.mask_positions[group])])
            means.append(self._mean_over_tokens(states, batch.attention_mask[group]))
            order.append(group)
        index = self.to_device(np.argsort(np.concatenate(order)))
        return self.head.transform(torch.cat(at_mask)[index]), torch.cat(means)[index]

    def mean_states(self, batch: Batch) -> Tensor:
        """The mean of each row's states, (batch, hidden); the pattern may have any number of masks."""
        means, order = list[Tensor](), list[NDArray[np.int64]]()
        lengths = batch.attention_mask.sum(axis=1)
        for group, output in self.forward_passes(self.encoder, batch, lengths, grouped=self.device.type == "cpu"):
            means.append(self._mean_over_tokens(output[0].to(self.dtype), batch.attention_mask[group]))
            order.append(group)
        return torch.cat(means)[self.to_device(np.argsort(np.concatenate(order)))]

    def _mean_over_tokens(self, states: Tensor, attention_mask: NDArray[Any]) -> Tensor:
        """The mean of states, (group, tokens, hidden), over the tokens that are not padding: (group, hidden)."""
        mask = self.to_device(attention_mask[:, : states.shape[1]]).to(self.dtype)
        return (states[:, : mask.shape[1]] * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)

    def label_vectors(self, words: LabelWords) -> tuple[Tensor, Tensor]:
        """The means of the labels' words' vectors, (labels, width), and of their biases, (labels,).

        s(l | x) is the label's vector times h(x), plus its bias.
        """
        if words.masks is not None:
            raise ModelError("The method 'frozen' reads one mask; set wording.several_tokens to 'mean'.")
        ids, mean = self.to_device(words.ids), self.to_device(words.mean).to(self.dtype)
        vectors = self.head.word_vectors[ids].to(self.dtype)  # (words, width)
        states = torch.linspace(-1, 1, 2 * int(self.model.config.hidden_size), device=self.device, dtype=self.dtype)
        states = states.view(2, -1)
        biases = self.head(states, ids) - self.head.transform(states) @ vectors.T  # (2, words), the same in both rows
        if not torch.allclose(biases[0], biases[1], atol=1e-3):
            raise ModelError(
                f"The head of the model '{self.name}' does not end in a product with the words' vectors, which the "
                "method 'frozen' needs; use another method."
            )
        return mean @ vectors, mean @ biases[0]

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Within the block, a copy of the encoder in bf16, fp8 or int8 scores rows, the head in float32."""
        trained = self.encoder
        with merged(trained) if self.has_adapter else nullcontext():
            if self.options.scores_in_bf16(self.device):
                self.encoder = copy.deepcopy(trained).to(torch.bfloat16).eval()
                if self.options.scores_in_fp8(self.device, self._is_faster_in_fp8):
                    round_to_fp8(self.encoder)
            elif self.options.scores_in_int8(self.device):
                self.encoder = quantized(trained)
            try:
                with fused_layernorm(self.encoder) if self.uses_custom_kernels else nullcontext():
                    yield
            finally:
                self.encoder = trained

    def _is_faster_in_fp8(self) -> bool:
        """Whether the encoder is wide enough to score rows faster in fp8."""
        return int(self.model.config.hidden_size) >= FAST_WIDTH and self.supports_packing

    @property
    def has_adapter(self) -> bool:
        """Whether the weights are frozen and an adapter is trained."""
        return hasattr(self.model, "peft_config")

    def adapt(self, settings: Adapter) -> None:
        """Freeze the weights and add an untrained adapter."""
        add_adapter(self.model, settings)
        self._renew_head()

    def use_adapter(self, folder: Path, name: str) -> None:
        """Switch to a saved adapter, which is loaded once; all adapters share the weights."""
        if not self.has_adapter or name not in self.model.peft_config:
            load_adapter(self.model, folder, name)
            self._renew_head()
        switch_adapter(self.model, name)

    def _renew_head(self) -> None:
        self.head = Head(self.model)  # layers of the head may have been replaced
        self._check_head()

    @libraries.quiet_transformers()
    def save(self, folder: Path) -> None:
        """Write the model with its head and its tokenizer as Transformers does."""
        from safetensors.torch import save_file

        offsets = self.label_offsets
        self.remove_label_offsets()  # Transformers would not know them
        self.model.save_pretrained(folder)
        if offsets is not None:
            self.model.add_module(OFFSETS, offsets)
            save_file(
                {name: tensor.contiguous() for name, tensor in offsets.state_dict().items()}, folder / OFFSETS_FILE
            )
        make_readable(folder)
        self.tokenizer.hf_tokenizer.save_pretrained(folder)

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Check that the head gives single words the scores that they have within the full vocabulary."""
        size = int(self.model.config.hidden_size)
        states = torch.linspace(-1, 1, 2 * size, device=self.device, dtype=self.model.dtype).view(2, size)
        ids = torch.tensor([0, self.tokenizer.mask_id], device=self.device)
        try:
            scores, expected = self.head(states, ids), self.head(states)[:, ids]
        except (AttributeError, TypeError, RuntimeError) as error:
            raise ModelError(
                f"The head of the model '{self.name}' is built in a way unknown to clozify: {error}."
            ) from error
        if not torch.allclose(scores, expected, atol=1e-2 if self.model.dtype != torch.float32 else 1e-4, rtol=1e-3):
            raise ModelError(f"The head of the model '{self.name}' cannot be cut to single words.")


def _check_encoder(model: PreTrainedModel, name: str) -> None:
    if model.base_model is model:
        raise ModelError(f"The model '{name}' does not keep its encoder apart from its head; clozify needs that.")


def load_model(
    name: str | Path = "builtin",
    device: str | None = None,
    trust_remote_code: bool = False,
    attention_dropout: float | None = None,
    adapter: Adapter | None = None,
    options: GpuOptions = DEFAULT_OPTIONS,
    safetensors_only: bool = False,
) -> ClozeModel:
    """A masked language model by folder or hub name; `builtin` is the one that comes with clozify.

    Code of the model's repository runs only with `trust_remote_code`; with `safetensors_only`, weights in PyTorch's own
    format are not read.
    """

    from safetensors.torch import load_file

    def configure(config: Any) -> None:
        from transformers import MODEL_FOR_MASKED_LM_MAPPING

        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING or config.is_encoder_decoder:
            raise ModelError(
                f"The model '{model_path(name)}' is a {config.model_type} model, no masked language model, which this "
                "needs; use one like BERT or RoBERTa, or 'builtin'."
            )
        set_attention_dropout(config, attention_dropout)

    pretrained = load_pretrained(name, "masked LM", configure, trust_remote_code, safetensors_only)
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = ClozeModel(pretrained.model.to(target), pretrained.tokenizer, str(name), options)
    if (offsets_file := Path(name) / OFFSETS_FILE).is_file():
        weights = load_file(offsets_file)
        model.add_label_offsets(len(weights["bias"])).load_state_dict(weights)
    if adapter is not None and adapter.method != "none":
        model.adapt(adapter)
    return model
