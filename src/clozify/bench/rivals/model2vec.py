"""Model2Vec: a static model distilled from the encoder, with the classifier that the library trains on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "model2vec"
TITLE = "Model2Vec"
SETTINGS = "the library's defaults for distillation and for its classifier, which stops early on a tenth of the rows"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ("model2vec[distill,train,inference]==0.10.0",)
PACKAGES: tuple[str, ...] = ("model2vec", "transformers", "torch", "scikit-learn")
ENCODER = "folder"
UNLABELED = False
MAX_LENGTH = False
NEEDS = ""


def load_libraries() -> None:
    """Import the libraries."""
    import model2vec.train  # noqa: F401


class StaticModel:
    """A static model with a classifier."""

    def __init__(self, job: Job) -> None:
        from model2vec.distill import distill
        from model2vec.train import StaticModelForClassification

        static = distill(model_name=job.encoder, device=job.device)
        self.model: Any = StaticModelForClassification.from_static_model(model=static)
        self.model.fit(
            job.texts("labeled"), [str(label) for label in job.label_indices], device=job.device, random_seed=job.seed
        )
        self.test, self.folder = job.texts("test"), Path(job.work) / "trained"
        self.folder.mkdir()
        self.pipeline: Any = self.model.to_pipeline()
        self.pipeline.save_pretrained(str(self.folder))

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        return np.asarray([int(label) for label in self.pipeline.predict(self.test[:rows])], dtype=np.int64)


def train(job: Job) -> StaticModel:
    """Distill the encoder and train the classifier."""
    return StaticModel(job)
