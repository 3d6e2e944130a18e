"""Back-translation: paraphrases by way of another language (Sennrich et al., 2016; appendix B), for UDA and MixText.

Tokens are sampled from the full vocabulary at a temperature, 0.9 by default, as in MixText's script, without beam
search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from clozify.models.loading import load_pretrained
from clozify.utils import libraries

TOKENS_PER_BATCH = {"cpu": 1_024, "cuda": 16_384}
MAX_LENGTH = 512  # tokens that a translation model reads, where its config does not say


class Translator:
    """A translation model and its tokenizer; `dtype` is that of the model's weights."""

    def __init__(self, name: str, device: str, dtype: torch.dtype = torch.float32) -> None:
        pretrained = load_pretrained(name, "translation model")
        self.tokenizer = pretrained.tokenizer
        self.model = pretrained.model.to(device, dtype).eval()
        limit = getattr(self.model.config, "max_position_embeddings", None) or MAX_LENGTH
        self.max_length = min(int(limit), int(self.tokenizer.model_max_length))

    @libraries.quiet_transformers()
    @torch.inference_mode()
    def translate(
        self, texts: Sequence[str], temperature: float, seed: int, advance: Callable[[int], None] = lambda count: None
    ) -> list[str]:
        """The translation of each text; an empty text stays empty."""
        translations = [""] * len(texts)
        torch.manual_seed(seed)
        lengths = np.array([len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]])
        order = [int(row) for row in np.argsort(-lengths, kind="stable") if texts[row]]
        while order:
            count = max(
                1, TOKENS_PER_BATCH[self.model.device.type] // max(1, min(self.max_length, int(lengths[order[0]])))
            )
            chosen, order = order[:count], order[count:]
            inputs = self.tokenizer(
                [texts[row] for row in chosen],
                truncation=True,
                max_length=self.max_length,
                padding=True,
                return_token_type_ids=False,
                return_tensors="pt",
            ).to(self.model.device)
            # a translation that does not end is cut at twice the length of the text
            max_new_tokens = min(self.max_length - 1, 2 * int(inputs["input_ids"].shape[1]) + 8)
            ids = self.model.generate(
                **inputs, do_sample=True, temperature=temperature, top_k=0, num_beams=1, max_new_tokens=max_new_tokens
            )
            for row, text in zip(chosen, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                translations[row] = text.strip()
            advance(len(chosen))
        return translations


def backtranslate(
    forward: Translator, backward: Translator, texts: Sequence[str], temperature: float, seed: int
) -> list[str]:
    """Each text translated forward and backward; where the result is empty, the text itself."""
    paraphrases = backward.translate(forward.translate(texts, temperature, seed), temperature, seed + 1)
    return [paraphrase or text for paraphrase, text in zip(paraphrases, texts, strict=True)]
