"""SetFit: contrastive fine-tuning of a Sentence Transformer, then logistic regression.

The body is the bench's encoder with mean pooling, or another Sentence Transformers model (`--setfit-encoder`). Settings
are the library's defaults. They train on all pairs of labelled rows, whose number grows with its square: where these
are more than the 20 pairs a row and kind of SetFit's paper, those are drawn instead (`num_iterations=20`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "setfit"
TITLE = "SetFit"
SETTINGS = "SetFit's defaults, at most the 20 pairs a row and kind of its paper (num_iterations=20)"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ("setfit==1.2.0", "sentence-transformers==6.2.0", "evaluate==0.4.6")
PACKAGES: tuple[str, ...] = ("setfit", "sentence-transformers", "transformers", "torch")
ENCODER = "folder"
UNLABELED = False
MAX_LENGTH = True
NEEDS = ""
ITERATIONS = 20


def load_libraries() -> None:
    """Import the libraries."""
    import setfit  # noqa: F401


def all_pairs(labels: Sequence[int]) -> int:
    """The pairs of SetFit's default: those of different labels, and as many of equal ones, or the other way round."""
    alike = sum(count * (count - 1) // 2 for count in Counter(labels).values())
    unlike = len(labels) * (len(labels) - 1) // 2 - alike
    return 2 * max(alike, unlike)


def make_body(encoder: str, max_length: int, folder: Path) -> None:
    """Write a Sentence Transformers model of an encoder with mean pooling, in float32."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(encoder)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
    body = SentenceTransformer(modules=[transformer, pooling])
    body.max_seq_length = min(max_length, body.max_seq_length or max_length)
    body.float().save_pretrained(str(folder))


class SetFitModel:
    """A trained SetFit model."""

    def __init__(self, job: Job) -> None:
        import setfit
        from datasets import Dataset

        work, labels = Path(job.work), job.label_indices
        body = job.options.get("setfit-encoder")
        if body is None:
            make_body(job.encoder, job.max_length, work / "body")
            body = str(work / "body")
        settings: dict[str, Any] = {}
        if all_pairs(labels) > 2 * ITERATIONS * len(labels):
            settings["num_iterations"] = ITERATIONS
        arguments = setfit.TrainingArguments(
            output_dir=str(work / "checkpoints"),
            seed=job.seed,
            save_strategy="no",
            report_to="none",
            show_progress_bar=False,
            **settings,
        )
        self.model: Any = setfit.SetFitModel.from_pretrained(body)
        self.model.model_body.float()  # an encoder stored in 16 bits cannot be trained
        rows = Dataset.from_dict({"text": job.texts("labeled"), "label": labels})
        setfit.Trainer(model=self.model, args=arguments, train_dataset=rows).train()
        self.folder, self.test = work / "trained", job.texts("test")
        self.model.save_pretrained(str(self.folder))

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        return np.asarray([int(label) for label in self.model.predict(self.test[:rows], show_progress_bar=False)])


def train(job: Job) -> SetFitModel:
    """Train SetFit."""
    return SetFitModel(job)
