"""Causal and encoder-decoder models, which answer cloze questions by the log-likelihoods of the labels' words.

    s(l | x) = mean over the label's words w of  log p(w | P(x)) - log p(w | P(n))

where log p(w | ...) is the sum over the word's tokens, each after the ones before it, and n is a neutral text in place
of the row's: a word is scored by how much likelier the row makes it ("PMI_DC" of Holtzman et al., 2021, "Surface Form
Competition"). A prompt is read once; the words are scored as its continuations, with its keys and values cached.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.pattern import Pattern
from clozify.config.sections import Adapter, Generative, Wording
from clozify.config.task import Verbalizer
from clozify.errors import ModelError
from clozify.gpu.options import DEFAULT_OPTIONS, GpuOptions
from clozify.models.encoder import max_positions
from clozify.models.loading import make_readable
from clozify.models.lora import add_adapter, load_adapter, merged, switch_adapter
from clozify.prompts.encode import Batch, EncodedRows, Template, compile_pattern
from clozify.prompts.questions import ChatFrame, compile_prompt, find_chat_frame, word_ids_in_chat
from clozify.prompts.sequences import LabelSequences, label_sequences
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.prompts.verbalizer import VerbalizedWords, word_ids
from clozify.utils import libraries

WORD_TOKENS = 16  # the most tokens of a label's word
CACHED_TOKENS = {"cpu": 16_384, "cuda": 262_144}  # tokens of repeated prompts in one pass
SENTINEL = "<extra_id_0>"  # T5's mask


@dataclass(frozen=True, eq=False)
class PromptStates:
    """Prompts that a model has read, with all that it takes to score their continuations."""

    log_probabilities: Tensor  # (rows, vocabulary): of the token that follows
    cache: Any  # Transformers' cache of keys and values
    mask: Tensor  # (rows, width): the attention mask of what was read
    encoder_states: Tensor | None = None  # (rows, width, hidden), of an encoder-decoder model

    def __len__(self) -> int:
        return len(self.log_probabilities)


class GenerativeModel(ABC):
    """A language model that writes from left to right, and its tokenizer, ready for cloze questions."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "model",
        options: GpuOptions = DEFAULT_OPTIONS,
        settings: Generative | None = None,
    ) -> None:
        libraries.stable_kernels()
        self.model = model
        self.model.eval()
        self.name = name
        self.options = options
        self.settings = settings or Generative()
        self.tokenizer = PromptTokenizer(tokenizer, self._mask_id(tokenizer))
        self.max_length = max_positions(model, tokenizer) - WORD_TOKENS  # tokens of a prompt, special ones included
        self._accepted = set(inspect.signature(model.forward).parameters)
        self._priors: WeakKeyDictionary[LabelSequences, Tensor] | None = None  # while rows are only scored

    def _mask_id(self, tokenizer: Any) -> int | None:  # noqa: ARG002
        """The id of the token that stands at the mask; None where the prompt ends there."""
        return None

    @cached_property
    def chat_frame(self) -> ChatFrame | None:
        """What the model's chat template puts around a prompt; None where it is not used."""
        return None

    @abstractmethod
    def compile_prompt(self, pattern: Pattern, wording: Wording) -> Template:
        """The template of a pattern; a causal model's ends where the word belongs."""

    def verbalize(self, template: Template, verbalizer: Verbalizer) -> VerbalizedWords:
        """The words' tokens in a prompt, with the faults of the words."""
        words = {
            label: {word: self.word_ids(template, word) for word in of_label}
            for label, of_label in verbalizer.words.items()
        }
        neutral = self._neutral_prompt(template) if self.settings.calibrate else None
        return label_sequences(words, self.tokenizer.hf_tokenizer.unk_token_id, WORD_TOKENS, neutral)

    def word_ids(self, template: Template, word: str) -> list[int]:
        """The ids of a word where the model writes it."""
        if self.chat_frame is None:
            return word_ids(self.tokenizer, template, word)
        return word_ids_in_chat(self.tokenizer, self.chat_frame, word)

    def _neutral_prompt(self, template: Template) -> NDArray[np.int64]:
        """The ids of a prompt with the neutral text in all fields: (width,)."""
        texts = [self.settings.neutral_text]
        columns = {field: field.tokenize(self.tokenizer, texts) for field in template.fields}
        ids: NDArray[np.int64] = EncodedRows(template, columns, self.max_length).batch(np.arange(1)).input_ids[0]
        return ids

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.model.device
        return device

    @property
    def trains_in_bf16(self) -> bool:
        """Whether the model is trained in bf16; its weights stay in float32."""
        return self.options.trains_in_bf16(self.device)

    def sample_ids(self, count: int) -> NDArray[np.int64]:
        """So many ids of ordinary tokens, to try the model with."""
        return np.resize(np.flatnonzero(~self.tokenizer.is_special), count)

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """An array as a tensor on the model's device."""
        return torch.from_numpy(array).to(self.device)

    def states_at_mask(self, batch: Batch) -> PromptStates:
        """Read a batch of prompts, up to where the word belongs."""
        return self._read(self.to_device(batch.input_ids), self.to_device(batch.attention_mask))

    def label_scores(self, states: PromptStates, words: LabelSequences) -> Tensor:
        """s(l | x): the mean of the words' calibrated log-likelihoods, (rows, labels)."""
        scores = self.token_log_likelihoods(states, words)  # (rows, tokens)
        if words.neutral is not None:
            scores = scores - self._prior(words)
        labels = scores @ self.to_device(words.mean).T
        return labels if words.zero_points is None else labels - self.to_device(words.zero_points)

    def token_log_likelihoods(self, states: PromptStates, words: LabelSequences) -> Tensor:
        """log p of every token of every word, after the prompt and the word's tokens before it: (rows, tokens)."""
        ids, starts = self.to_device(words.ids), words.starts
        first = torch.zeros(len(words.ids), dtype=torch.bool, device=self.device)
        first[self.to_device(starts)] = True
        result = torch.where(first, states.log_probabilities[:, ids], 0.0)  # (rows, tokens)
        lengths = words.lengths
        longer = np.flatnonzero(lengths > 1)
        budget = CACHED_TOKENS.get(self.device.type, CACHED_TOKENS["cpu"])
        size = max(1, budget // (len(states) * states.mask.shape[1]))
        for chunk in (longer[start : start + size] for start in range(0, len(longer), size)):
            inputs, targets = words.continuations(chunk)  # (words, most - 1): tokens, and the ones that follow them
            columns = starts[chunk][:, None] + 1 + np.arange(inputs.shape[1])
            inside = np.arange(1, inputs.shape[1] + 1) < lengths[chunk][:, None]
            rest = self._continue(states, self.to_device(inputs), self.to_device(targets))  # (rows, words, most - 1)
            chosen = rest[:, self.to_device(inside)]  # (rows, tokens after the first)
            result = result.index_add(1, self.to_device(columns[inside]), chosen)
        return result

    def _prior(self, words: LabelSequences) -> Tensor:
        """The tokens' log-likelihoods after the neutral prompt, (1, tokens), with the present weights.

        While rows are only scored they are computed once; in training they change with every step.
        """
        if self._priors is not None and words in self._priors:
            return self._priors[words]
        assert words.neutral is not None
        ids = self.to_device(words.neutral[None])
        prior = self.token_log_likelihoods(self._read(ids, torch.ones_like(ids)), words)
        if self._priors is not None:
            self._priors[words] = prior
        return prior

    def _continue(self, states: PromptStates, inputs: Tensor, targets: Tensor) -> Tensor:
        """log p of the words' later tokens: (words, length) ids and the ids after them -> (rows, words, length)."""
        rows, words = len(states), len(inputs)
        logits = self._continue_logits(states, _repeat_cache(states.cache, words), inputs.repeat(rows, 1), words)
        tokens = targets.repeat(rows, 1)[..., None]
        return logits.float().log_softmax(dim=-1).gather(-1, tokens)[..., 0].view(rows, words, -1)

    @abstractmethod
    def _read(self, ids: Tensor, mask: Tensor) -> PromptStates:
        """Read prompts, (rows, width) padded on the right."""

    @abstractmethod
    def _continue_logits(self, states: PromptStates, cache: Any, inputs: Tensor, words: int) -> Tensor:
        """Logits after each token of continuations, (rows * words, length, vocabulary)."""

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Within the block, rows are only scored: with the adapter merged and, on a GPU, in bf16."""
        with ExitStack() as stack:
            if self.has_adapter:
                stack.enter_context(merged(self.model))
            if self.options.scores_in_bf16(self.device):
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            self._priors = WeakKeyDictionary()
            try:
                yield
            finally:
                self._priors = None

    @property
    def has_adapter(self) -> bool:
        """Whether the weights are frozen and an adapter is trained."""
        return hasattr(self.model, "peft_config")

    def adapt(self, settings: Adapter) -> None:
        """Freeze the weights and add an untrained adapter."""
        add_adapter(self.model, settings)

    def use_adapter(self, folder: Path, name: str) -> None:
        """Switch to a saved adapter, which is loaded once; all adapters share the weights."""
        if not self.has_adapter or name not in self.model.peft_config:
            load_adapter(self.model, folder, name)
        switch_adapter(self.model, name)

    @libraries.quiet_transformers()
    def save(self, folder: Path) -> None:
        """Write the model and its tokenizer as Transformers does."""
        self.model.save_pretrained(folder)
        make_readable(folder)
        self.tokenizer.hf_tokenizer.save_pretrained(folder)


class CausalModel(GenerativeModel):
    """A causal language model (`AutoModelForCausalLM`): the word follows the prompt."""

    @cached_property
    def chat_frame(self) -> ChatFrame | None:
        """What the model's chat template puts around a prompt; None where it is not used."""
        return find_chat_frame(self.tokenizer, self.settings.chat)

    def compile_prompt(self, pattern: Pattern, wording: Wording) -> Template:
        """The template of a pattern, up to where the word belongs."""
        template = compile_prompt(pattern, self.tokenizer, self.chat_frame, wording)
        return replace(template, max_tokens=self.max_length)

    def _read(self, ids: Tensor, mask: Tensor) -> PromptStates:
        ids, positions, mask = _pad_left(ids, mask)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            use_cache=True,
            **self._supported(position_ids=positions, logits_to_keep=1),
        )
        return PromptStates(output.logits[:, -1].float().log_softmax(dim=-1), output.past_key_values, mask)

    def _continue_logits(self, states: PromptStates, cache: Any, inputs: Tensor, words: int) -> Tensor:
        mask = states.mask.repeat_interleave(words, dim=0)
        positions = mask.sum(dim=1, keepdim=True) + torch.arange(inputs.shape[1], device=inputs.device)
        # what pads a short word follows all of its tokens, which do not attend to it
        mask = torch.cat([mask, torch.ones_like(inputs)], dim=1)
        output = self.model(
            input_ids=inputs,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            **self._supported(position_ids=positions),
        )
        logits: Tensor = output.logits
        return logits

    def _supported(self, **arguments: Any) -> dict[str, Any]:
        return {name: value for name, value in arguments.items() if name in self._accepted}


class EncoderDecoderModel(GenerativeModel):
    """A model like T5 (`AutoModelForSeq2SeqLM`): a sentinel stands at the mask, and the decoder writes its word."""

    def _mask_id(self, tokenizer: Any) -> int | None:
        sentinel: int | None = tokenizer.convert_tokens_to_ids(SENTINEL)
        if sentinel is None or sentinel == tokenizer.unk_token_id:
            raise ModelError(
                f"The model '{self.name}' is an encoder-decoder model without the sentinel {SENTINEL}, which stands "
                "for the mask; use one like T5."
            )
        return sentinel

    def compile_prompt(self, pattern: Pattern, wording: Wording) -> Template:
        """The template of a pattern, with the sentinel at the mask."""
        return compile_pattern(pattern, self.tokenizer, wording)

    def _read(self, ids: Tensor, mask: Tensor) -> PromptStates:
        states = self.model.get_encoder()(input_ids=ids, attention_mask=mask)[0]  # (rows, width, hidden)
        written = torch.tensor([[self.model.config.decoder_start_token_id, self.tokenizer.mask_id]], device=ids.device)
        output = self._decode(states, mask, written.expand(len(ids), -1), None)
        return PromptStates(output.logits[:, -1].float().log_softmax(dim=-1), output.past_key_values, mask, states)

    def _continue_logits(self, states: PromptStates, cache: Any, inputs: Tensor, words: int) -> Tensor:
        assert states.encoder_states is not None
        encoder_states, mask = (part.repeat_interleave(words, dim=0) for part in (states.encoder_states, states.mask))
        logits: Tensor = self._decode(encoder_states, mask, inputs, cache).logits
        return logits

    def _decode(self, encoder_states: Tensor, mask: Tensor, ids: Tensor, cache: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_states),  # type: ignore[arg-type]
            attention_mask=mask,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
        )


def _pad_left(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts moved to the right, so that their words follow directly: ids, positions and mask, (rows, width) each."""
    width = ids.shape[1]
    index = torch.arange(width, device=ids.device) - (width - mask.sum(dim=1, keepdim=True))  # < 0 where padded
    positions = index.clamp(min=0)
    return ids.gather(1, positions), positions, (index >= 0).to(mask.dtype)


def _repeat_cache(cache: Any, count: int) -> Any:
    """A cache with each row `count` times; the original stays as it is, and gradients flow through the copy."""
    from transformers import EncoderDecoderCache

    if isinstance(cache, EncoderDecoderCache):
        repeated: Any = EncoderDecoderCache(
            _copy_layers(cache.self_attention_cache), _copy_layers(cache.cross_attention_cache)
        )
    else:
        repeated = _copy_layers(cache)
    repeated.batch_repeat_interleave(count)
    return repeated


def _copy_layers(cache: Any) -> Any:
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    return copied
