"""A sequence classifier that clozify did not train: its labels, and its logits of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.models.encoder import max_positions
from clozify.models.loading import load_config, load_pretrained
from clozify.utils import libraries

TOKENS_PER_BATCH = {"cpu": 2_048, "cuda": 65_536}


class SequenceModel:
    """An `AutoModelForSequenceClassification` and its tokenizer, as their folder has them."""

    def __init__(self, name: str, device: str) -> None:
        pretrained = load_pretrained(name, "other classifier")
        libraries.stable_kernels()
        self.model = pretrained.model.to(device).eval()
        self.tokenizer = pretrained.tokenizer
        self.labels = config_labels(self.model.config)
        self.max_length = max_positions(self.model, self.tokenizer)
        self.token_budget = TOKENS_PER_BATCH.get(self.model.device.type, TOKENS_PER_BATCH["cpu"])
        if self.tokenizer.pad_token_id is None:  # GPT-2 and its like; what is padded is masked
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if self.tokenizer.pad_token_id is None:
            raise ModelError(f"The tokenizer of the model '{name}' has no padding token; set pad_token in its folder.")
        self.model.config.pad_token_id = self.tokenizer.pad_token_id

    @torch.inference_mode()
    def logits(
        self, texts: Sequence[str], pairs: Sequence[str] | None, advance: Callable[[int], None]
    ) -> NDArray[np.float32]:
        """The logits of each text, or text and text pair: (texts, labels); NaN for a text without any token."""
        encoded = self.tokenizer(
            list(texts), None if pairs is None else list(pairs), truncation=True, max_length=self.max_length
        )
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        logits = np.full((len(texts), len(self.labels)), np.nan, dtype=np.float32)
        for chosen in _batches(lengths, self.token_budget):
            features = {name: [values[index] for index in chosen] for name, values in encoded.items()}
            inputs = self.tokenizer.pad(features, return_tensors="pt").to(self.model.device)
            with libraries.without_cudnn_attention():
                logits[chosen] = self.model(**inputs).logits.float().cpu().numpy()
            advance(len(chosen))
        return logits


def _batches(lengths: NDArray[np.int64], token_budget: int) -> Iterator[NDArray[np.int64]]:
    """Indices of rows of like length, the longest first, in batches of at most so many tokens with the padding."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        stop = start + max(1, token_budget // int(lengths[order[start]]))
        yield order[start:stop]
        start = stop


def config_labels(config: Any) -> list[str]:
    """The names of a classifier's labels, in the order of its logits."""
    return [str(config.id2label.get(index, f"LABEL_{index}")) for index in range(config.num_labels)]


def model_labels(name: str) -> list[str]:
    """The names of a classifier's labels, without loading its weights."""
    return config_labels(load_config(name, from_hub=True))


def joined_texts(rows: Rows, fields: Sequence[str], start: int, stop: int) -> list[str]:
    """The texts of these fields with a space between them, for each row of a range."""
    columns = [rows.texts(field, start, stop) for field in fields]
    return [" ".join(values).strip() for values in zip(*columns, strict=True)]
