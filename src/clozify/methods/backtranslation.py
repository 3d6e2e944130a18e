"""Back-translation: paraphrases by way of another language (Sennrich et al., 2016; appendix B), for UDA and MixText.

Translations are sampled from the full vocabulary at a temperature, without beam search, and the most probable of
several is taken. That is what MixText's script does: it calls fairseq's `translate(sampling=True, temperature=0.9)`,
which samples five. One sample alone often contains a token from the long tail of the distribution, after which the
translation has little to do with the text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.models.loading import load_pretrained
from clozify.utils import libraries

TOKENS_PER_BATCH = {"cpu": 1_024, "cuda": 81_920}  # of the texts, each counted once for every sample
MAX_SEQUENCES = 2_048  # in a batch: each needs the scores of the whole vocabulary, several times over
MAX_LENGTH = 512  # tokens that a translation model reads, where its config does not say


@dataclass(frozen=True)
class Sampling:
    """How translations are drawn."""

    temperature: float
    samples: int  # of each text, of which the most probable is taken


class Translator:
    """A translation model and its tokenizer; `dtype` is that of the model's weights."""

    def __init__(self, name: str, device: str, dtype: torch.dtype = torch.float32) -> None:
        with warnings.catch_warnings():  # Marian's tokenizer asks for sacremoses, which it does not use for translation
            warnings.filterwarnings("ignore", message=".*sacremoses")
            pretrained = load_pretrained(name, "translation model")
        self.tokenizer = pretrained.tokenizer
        self.model = pretrained.model.to(device, dtype).eval()
        limit = getattr(self.model.config, "max_position_embeddings", None) or MAX_LENGTH
        self.max_length = min(int(limit), int(self.tokenizer.model_max_length))

    @libraries.quiet_transformers()
    @torch.inference_mode()
    def translate(
        self, texts: Sequence[str], sampling: Sampling, seed: int, advance: Callable[[int], None] = lambda count: None
    ) -> list[str]:
        """The translation of each text; an empty text stays empty. `advance` takes the number of texts just done."""
        translations = [""] * len(texts)
        torch.manual_seed(seed)
        for rows in self._batches(texts, sampling.samples):
            inputs = self.tokenizer(
                [texts[row] for row in rows],
                truncation=True,
                max_length=self.max_length,
                padding=True,
                return_token_type_ids=False,
                return_tensors="pt",
            ).to(self.model.device)
            scores = SampleScores(sampling.temperature)
            ids = self.model.generate(
                **inputs,
                do_sample=True,
                temperature=sampling.temperature,
                top_k=0,
                num_beams=1,
                num_return_sequences=sampling.samples,
                logits_processor=[scores],
                # a sample that does not end is cut, since the whole batch waits for it
                max_new_tokens=min(self.max_length - 1, 3 * int(inputs["input_ids"].shape[1]) // 2 + 8),
            )
            ends = torch.as_tensor(self.model.generation_config.eos_token_id, device=ids.device)
            means = scores.means(ids, ends).view(len(rows), sampling.samples)
            best = means.argmax(dim=1) + torch.arange(len(rows), device=ids.device) * sampling.samples  # (rows,)
            for row, text in zip(rows, self.tokenizer.batch_decode(ids[best], skip_special_tokens=True), strict=True):
                translations[row] = text.strip()
            advance(len(rows))
        advance(sum(not text for text in texts))
        return translations

    def _batches(self, texts: Sequence[str], samples: int) -> Iterator[NDArray[np.int64]]:
        """Indices of texts that are not empty, the longest first, by `TOKENS_PER_BATCH` and `MAX_SEQUENCES`."""
        ids = self.tokenizer(list(texts), verbose=False)["input_ids"]
        lengths = np.array([min(self.max_length, len(text_ids)) for text_ids in ids])
        order = np.array([row for row in np.argsort(-lengths, kind="stable") if texts[row]], dtype=np.int64)
        while len(order):
            tokens = samples * max(1, int(lengths[order[0]]))
            count = max(1, min(TOKENS_PER_BATCH[self.model.device.type] // tokens, MAX_SEQUENCES // samples))
            yield order[:count]
            order = order[count:]


class SampleScores:
    """A logits processor that changes nothing and adds up the log-probabilities of the sampled tokens.

    `generate` can return the scores of all steps instead, which take gigabytes.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.token_scores: list[Tensor] = []  # of each token but the last: (sequences,)
        self.last: Tensor | None = None  # log-probabilities of the next token: (sequences, vocabulary)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores as they are, (sequences, vocabulary); `input_ids` end with the token sampled in the last step."""
        self._add(input_ids[:, -1])
        self.last = torch.log_softmax(scores.float() / self.temperature, dim=-1)
        return scores

    def _add(self, tokens: Tensor) -> None:
        if self.last is not None:
            self.token_scores.append(self.last.gather(1, tokens[:, None])[:, 0])

    def means(self, ids: Tensor, ends: Tensor) -> Tensor:
        """The mean log-probability of each sequence's tokens up to the first of `ends`, included: (sequences,)."""
        self._add(ids[:, -1])
        self.last = None
        sampled = ids[:, -len(self.token_scores) :]  # (sequences, steps)
        is_end = torch.isin(sampled, ends).long()
        counted = is_end.cumsum(dim=1) - is_end == 0  # no end token before
        token_scores = torch.stack(self.token_scores, dim=1).masked_fill(~counted, 0)  # that of padding is -inf
        return token_scores.sum(dim=1) / counted.sum(dim=1)


def backtranslate(
    forward: Translator,
    backward: Translator,
    texts: Sequence[str],
    sampling: Sampling,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """Each text translated forward and backward; where the result is empty, the text itself.

    `advance` takes the number of texts that were translated in one direction.
    """
    foreign = forward.translate(texts, sampling, seed, advance)
    paraphrases = backward.translate(foreign, sampling, seed + 1, advance)
    return [paraphrase or text for paraphrase, text in zip(paraphrases, texts, strict=True)]
