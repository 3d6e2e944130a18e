"""Plain fine-tuning: Transformers' Trainer with a classification head on the encoder.

The settings are those that Mosbach et al. (2021) recommend for small data: 20 epochs, a learning rate of 2e-5 that
rises for a tenth of the steps and then falls linearly, batches of 16. There are at least 200 steps:
20 epochs of very few rows would be a handful.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "finetune"
TITLE = "fine-tuning"
SETTINGS = "Transformers' Trainer: 20 epochs, at least 200 steps, learning rate 2e-5, a tenth of warm-up, batches of 16"
VERSION = 2
REQUIREMENTS: tuple[str, ...] = ()
PACKAGES: tuple[str, ...] = ("transformers", "torch")
ENCODER = "folder"
UNLABELED = False
MAX_LENGTH = True
NEEDS = ""
EPOCHS, MIN_STEPS, LEARNING_RATE, WARM_UP, BATCH_ROWS, PREDICTED_ROWS = 20, 200, 2e-5, 0.1, 16, 64


def load_libraries() -> None:
    """Import the libraries."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer  # noqa: F401


def training_steps(rows: int) -> int:
    """The steps of 20 epochs, or 200 where those are fewer."""
    return max(MIN_STEPS, EPOCHS * -(-rows // BATCH_ROWS))


class FineTunedModel:
    """A sequence classifier of Transformers."""

    def __init__(self, job: Job) -> None:
        from datasets import Dataset
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

        work, labels = Path(job.work), job.label_indices
        self.tokenizer: Any = AutoTokenizer.from_pretrained(job.encoder)
        self.model: Any = AutoModelForSequenceClassification.from_pretrained(
            job.encoder, num_labels=len(job.labels), dtype="float32"
        )
        self.max_length, self.test = job.max_length, job.texts("test")
        encoded = self.tokenizer(job.texts("labeled"), truncation=True, max_length=job.max_length)
        columns = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        steps = training_steps(len(labels))
        arguments = TrainingArguments(
            output_dir=str(work / "checkpoints"),
            seed=job.seed,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            warmup_steps=round(WARM_UP * steps),
            per_device_train_batch_size=BATCH_ROWS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=job.device == "cpu",
        )
        trainer = Trainer(
            model=self.model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns | {"labels": labels}),
            processing_class=self.tokenizer,
        )
        trainer.train()
        self.folder = work / "trained"
        self.model.save_pretrained(self.folder)
        self.tokenizer.save_pretrained(self.folder)
        self.model.eval()

    @property
    def kept(self) -> Sequence[Path]:
        """The model's folder."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        import torch

        texts = self.test[:rows]
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        predicted = np.empty(len(texts), dtype=np.int64)
        for start in range(0, len(order), PREDICTED_ROWS):
            indices = order[start : start + PREDICTED_ROWS]
            inputs = self.tokenizer(
                [texts[index] for index in indices],
                truncation=True,
                max_length=self.max_length,
                padding=True,
                return_tensors="pt",
                return_token_type_ids=False,
            ).to(self.model.device)
            with torch.inference_mode():
                predicted[indices] = self.model(**inputs).logits.argmax(dim=-1).cpu().numpy()
        return predicted


def train(job: Job) -> FineTunedModel:
    """Fine-tune the encoder."""
    return FineTunedModel(job)
