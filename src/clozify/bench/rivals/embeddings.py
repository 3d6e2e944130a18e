"""Logistic regression on the mean of the encoder's states, which is not trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "embeddings"
TITLE = "embeddings"
SETTINGS = "mean of the last layer's states, frozen; logistic regression with scikit-learn's defaults"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ()
PACKAGES: tuple[str, ...] = ("torch", "transformers", "scikit-learn", "clozify")
ENCODER = "model"
UNLABELED = False
MAX_LENGTH = True
NEEDS = ""
BATCH_ROWS = 64


def load_libraries() -> None:
    """Import the libraries."""
    import torch  # noqa: F401

    import clozify.models.language_model  # noqa: F401


class EmbeddingModel:
    """A frozen encoder and a regression on the means of its states."""

    def __init__(self, job: Job) -> None:
        from sklearn.linear_model import LogisticRegression

        import clozify

        self.encoder: Any = clozify.load_model(job.model, job.device)
        self.test, self.max_length = job.texts("test"), job.max_length
        states = self.states(job.texts("labeled"))
        self.classifier: Any = LogisticRegression(max_iter=1_000).fit(states, job.label_indices)
        self.folder = Path(job.work)
        np.save(self.folder / "weights.npy", self.classifier.coef_.astype(np.float32))
        self.encoder.save(self.folder)

    @property
    def kept(self) -> Sequence[Path]:
        """The encoder and the weights."""
        return [self.folder]

    def states(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The mean of each text's states: (texts, hidden)."""
        import torch

        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        results: list[NDArray[np.float32] | None] = [None] * len(texts)
        for start in range(0, len(order), BATCH_ROWS):
            indices = order[start : start + BATCH_ROWS]
            inputs = self.encoder.tokenizer.hf_tokenizer(
                [texts[index] for index in indices],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_tensors="pt",
                return_token_type_ids=False,
            ).to(self.encoder.device)
            with torch.inference_mode():
                hidden = self.encoder.encoder(**inputs)[0]
            mask = inputs["attention_mask"][..., None]
            means = ((hidden * mask).sum(dim=1) / mask.sum(dim=1)).float().cpu().numpy()  # (batch, hidden)
            for index, mean in zip(indices, means, strict=True):
                results[index] = mean
        return np.stack([mean for mean in results if mean is not None])

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        predicted: NDArray[np.int64] = self.classifier.predict(self.states(self.test[:rows]))
        return predicted


def train(job: Job) -> EmbeddingModel:
    """Fit the regression."""
    return EmbeddingModel(job)
