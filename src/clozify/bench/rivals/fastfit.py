"""FastFit: batch contrastive learning with similarities of tokens (PyPI `fast-fit`).

The settings are those of the library's README. The library asks for validation and test rows; it gets the training
rows, which it does not look at.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "fastfit"
TITLE = "FastFit"
SETTINGS = "the README's: 40 epochs, batches of 32, 4 repeats, Adafactor, clf_loss_factor 0.1"
VERSION = 2
REQUIREMENTS: tuple[str, ...] = (
    "fast-fit==1.2.1",
    "datasets==2.21.0",  # the last with load_metric, which it imports
    "transformers==4.46.3",
    "huggingface-hub<1",
    "accelerate<1.2",
)
PACKAGES: tuple[str, ...] = ("fast-fit", "transformers", "torch")
ENCODER = "folder"
UNLABELED = False
MAX_LENGTH = True
NEEDS = ""
LONGEST = 128  # tokens of a row, as in the README


def load_libraries() -> None:
    """Import the libraries."""
    import fastfit  # noqa: F401


def readable_encoder(encoder: str, folder: Path) -> str:
    """A copy of an encoder's folder whose tokenizer earlier versions of Transformers load by a class that they have."""
    shutil.copytree(encoder, folder)
    path = folder / "tokenizer_config.json"
    if path.is_file():
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | {"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")
    return str(folder)


class FastFitModel:
    """A trained FastFit model."""

    def __init__(self, job: Job) -> None:
        from datasets import Dataset, DatasetDict
        from fastfit import FastFit, FastFitTrainer
        from transformers import AutoTokenizer, pipeline

        # it downloads a script for accuracy, even where nothing is evaluated
        sys.modules["fastfit.train"].load_metric = lambda *_, **__: None  # type: ignore[attr-defined]
        labels = [f"{label:05}" for label in job.label_indices]  # the library sorts the names
        rows = Dataset.from_dict({"text": job.texts("labeled"), "label": labels})
        work, length = Path(job.work), min(LONGEST, job.max_length)
        encoder = readable_encoder(job.encoder, work / "encoder")
        trainer = FastFitTrainer(
            model_name_or_path=encoder,
            label_column_name="label",
            text_column_name="text",
            num_train_epochs=40,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            max_text_length=length,
            dataloader_drop_last=False,
            num_repeats=4,
            optim="adafactor",
            clf_loss_factor=0.1,
            fp16=job.device == "cuda",
            seed=job.seed,
            save_strategy="no",
            output_dir=str(work / "checkpoints"),
            dataset=DatasetDict({"train": rows, "validation": rows, "test": rows}),
        )
        model = trainer.train()
        self.folder, self.test = work / "trained", job.texts("test")
        tokenizer = AutoTokenizer.from_pretrained(
            encoder, model_max_length=length, model_input_names=["input_ids", "attention_mask"]
        )
        type(model.config)._get_non_default_generation_parameters = lambda _: {}  # its configuration has no defaults
        model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        self.pipeline: Any = pipeline(
            "text-classification", model=FastFit.from_pretrained(self.folder), tokenizer=tokenizer, device=job.device
        )

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        answers = self.pipeline(self.test[:rows], batch_size=64, truncation=True)
        return np.asarray([int(answer["label"]) for answer in answers], dtype=np.int64)


def train(job: Job) -> FastFitModel:
    """Train FastFit."""
    return FastFitModel(job)
