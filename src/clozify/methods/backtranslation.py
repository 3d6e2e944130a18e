"""Back-translation: a text said otherwise by way of another language (Sennrich et al., 2016; appendix B).

In: texts and two translation models of the hub or of a folder, there and back. Out: each text as it came back. Words
are drawn, not searched for, as in MixText's script: sampling from the whole vocabulary at a temperature of 0.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from clozify.errors import ModelError
from clozify.utils import libraries

TOKENS_PER_BATCH = {"cpu": 1_024, "cuda": 16_384}
LONGEST = 512  # tokens that a translation model reads, where it does not say


class Translator:
    """A translation model and its tokenizer."""

    @libraries.quiet_transformers()
    def __init__(self, name: str, device: str) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        local = Path(name).is_dir() or not libraries.hub_reachable()
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(name, local_files_only=local)
            model: Any = AutoModelForSeq2SeqLM.from_pretrained(name, local_files_only=local)
        except Exception as error:  # whatever is wrong with the files, a person sees what and where
            reason = shorten(" ".join(str(error).split()), 200)
            raise ModelError(
                f"The translation model '{name}' cannot be loaded ({reason.rstrip('.')}); name two models there and "
                "back in augment.backtranslation (Marian's tokenizers need the package sentencepiece), give a file of "
                "paraphrases (--augmented), or take --set augment.method=rewriting, which needs no other model."
            ) from error
        self.model = model.to(device).eval()
        limit = getattr(model.config, "max_position_embeddings", None) or LONGEST
        self.longest = min(int(limit), int(self.tokenizer.model_max_length))

    @libraries.quiet_transformers()
    @torch.inference_mode()
    def translate(
        self, texts: Sequence[str], temperature: float, seed: int, advance: Callable[[int], None] = lambda count: None
    ) -> list[str]:
        """Each text's translation; an empty one stays empty."""
        found = [""] * len(texts)
        torch.manual_seed(seed)
        lengths = np.array([len(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]])
        order = [int(row) for row in np.argsort(-lengths, kind="stable") if texts[row]]
        while order:
            count = max(
                1, TOKENS_PER_BATCH[self.model.device.type] // max(1, min(self.longest, int(lengths[order[0]])))
            )
            chosen, order = order[:count], order[count:]
            inputs = self.tokenizer(
                [texts[row] for row in chosen],
                truncation=True,
                max_length=self.longest,
                padding=True,
                return_token_type_ids=False,
                return_tensors="pt",
            ).to(self.model.device)
            # a translation that goes on and on is cut where it is twice as long as the text
            most = min(self.longest - 1, 2 * int(inputs["input_ids"].shape[1]) + 8)
            ids = self.model.generate(
                **inputs, do_sample=True, temperature=temperature, top_k=0, num_beams=1, max_new_tokens=most
            )
            for row, text in zip(chosen, self.tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                found[row] = text.strip()
            advance(len(chosen))
        return found


def backtranslate(
    there: Translator, back: Translator, texts: Sequence[str], temperature: float, seed: int
) -> list[str]:
    """Each text by way of another language; where nothing comes back, the text itself."""
    returned = back.translate(there.translate(texts, temperature, seed), temperature, seed + 1)
    return [new or old for new, old in zip(returned, texts, strict=True)]
