"""Sections of a recipe: what every training has (appendix B), and what UDA and MixText need (section 4.3).

A section is a group of settings, each with its help; `recipe.py` puts them together. UDA and MixText are what PET is
compared with on the same rows; both learn from augmented text, which has a section of its own.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Steps = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A group of settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Training(Section):
    """One column of appendix B: how a model is trained. The defaults are the supervised baseline's."""

    learning_rate: float = Field(1e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay; not on biases and layer norms.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    gradient_accumulation_steps: int = Field(4, ge=1, description="Micro-batches in a step.")
    per_gpu_train_batch_size: int = Field(4, ge=1, description="Labelled rows in a micro-batch.")
    max_steps: int = Field(250, ge=0, description="Steps, exactly so many, however few rows there are.")
    num_train_epochs: float | None = Field(
        None, gt=0, description="Passes over the training rows, instead of max_steps (the paper's x-stance: 3)."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps until the peak learning rate; the paper has none.")
    exact_steps: bool = Field(
        True,
        description="Exactly max_steps; or, as the authors' code counts: one more, and fewer where a pass over the "
        "rows has fewer micro-batches than a step.",
    )

    @property
    def rows_per_step(self) -> int:
        """Labelled rows that make one step: the effective batch."""
        return self.per_gpu_train_batch_size * self.gradient_accumulation_steps

    def steps(self, rows: int) -> int:
        """How many steps to train on so many rows."""
        if self.num_train_epochs is not None:
            return max(1, -int(-rows * self.num_train_epochs // self.rows_per_step))
        if self.exact_steps:
            return self.max_steps
        batches = -(-rows // self.per_gpu_train_batch_size)  # a pass over the rows
        passes = self.max_steps // max(1, batches // self.gradient_accumulation_steps) + 1
        return min(self.max_steps + 1, passes * batches // self.gradient_accumulation_steps)

    def decay_steps(self, rows: int) -> int | None:
        """When the learning rate reaches 0; None where it stays as it is."""
        return self.steps(rows) if self.num_train_epochs is not None else self.max_steps


class Adapter(Section):
    """Members as small adapters on one frozen model (LoRA), instead of whole models."""

    method: Literal["none", "lora"] = Field(
        "none", description="'lora' trains adapters; it needs pip install 'clozify[peft]'."
    )
    r: int = Field(8, ge=1, description="The rank of an adapter's matrices.")
    alpha: int = Field(16, ge=1, description="What they add is multiplied by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before them; the model has dropout of its own.")
    learning_rate: float = Field(
        4e-4, gt=0, description="Instead of the fine-tuning section's: adapters want a higher one."
    )
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        description="Every linear layer but the one over the vocabulary, the head's own included; or names of layers.",
    )


class SemiSupervisedTraining(Training):
    """What UDA and MixText share: how many rows a step, and how many steps are tried."""

    adam_epsilon: float = Field(1e-6, gt=0, description="Adam's epsilon, as both implementations have it.")
    gradient_accumulation_steps: int = Field(1, ge=1, description="Micro-batches in a step.")
    per_gpu_unlabeled_batch_size: int = Field(8, ge=1, description="Unlabelled rows in a micro-batch.")
    steps_to_try: tuple[Steps, ...] = Field(
        (),
        description="Numbers of steps to train with, each a training of its own; the best ON THE TEST SET is reported, "
        "as the paper does for its comparison, and labelled so. Empty: max_steps alone.",
    )

    @property
    def unlabeled_rows_per_step(self) -> int:
        """Unlabelled rows that go with the labelled ones of a step."""
        return self.per_gpu_unlabeled_batch_size * self.gradient_accumulation_steps

    def with_steps(self, steps: int) -> Self:
        """These settings for a training of so many steps, with none left to try."""
        few = {"max_steps": steps, "num_train_epochs": None, "exact_steps": True, "steps_to_try": ()}
        return self.model_copy(update=few)


class Uda(SemiSupervisedTraining):
    """UDA (Xie et al., 2019): labelled rows, and the same answer to a row and to its augmentation."""

    learning_rate: float = Field(2e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    max_steps: int = Field(10_000, ge=0, description="Steps; the paper tries 500, 1000, ..., 10000 on the test set.")
    warmup_share: float = Field(
        0.1, ge=0, lt=1, description="The share of the steps until the peak learning rate, where warmup_steps is 0."
    )
    tsa: Literal["exponential", "linear", "log", "none"] = Field(
        "exponential",
        description="Training-signal annealing: how the probability beyond which a labelled row teaches no more rises "
        "from 1 / labels to 1.",
    )
    uda_coeff: float = Field(1.0, ge=0, description="The weight of the consistency loss.")
    uda_softmax_temp: float = Field(0.85, gt=0, description="Sharpens the prediction: its scores are divided by this.")
    uda_confidence_thresh: float = Field(
        0.45, ge=0, lt=1, description="Rows whose original's best probability is no higher do not count."
    )
    sharpened: Literal["original", "augmented"] = Field(
        "original",
        description="Which prediction is sharpened: the original's, as Xie et al. write; or the augmented row's, as "
        "the reimplementation does that the paper used.",
    )
    mean_over: Literal["all", "confident"] = Field(
        "all",
        description="What the consistency loss is divided by: all unlabelled rows of the step, as in Google's code; or "
        "those that count, as in the reimplementation.",
    )

    def warmed(self, rows: int) -> Self:
        """With the warm-up as a number of steps, for so many labelled rows."""
        return self.model_copy(
            update={"warmup_steps": self.warmup_steps or round(self.warmup_share * self.steps(rows))}
        )


class Mixtext(SemiSupervisedTraining):
    """MixText (Chen et al., 2020): hidden states and labels of two rows are mixed, labelled or not."""

    learning_rate: float = Field(5e-6, gt=0, description="The encoder's learning rate.")
    head_learning_rate: float = Field(5e-4, gt=0, description="The classification layer's learning rate.")
    learning_rate_decay: bool = Field(
        False, description="Let the learning rates fall linearly to 0; in the original code they stay as they are."
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay; the original code has none.")
    max_grad_norm: float = Field(
        0.0, ge=0, description="Gradients are clipped to this norm; 0, as in the original code: not at all."
    )
    max_steps: int = Field(5000, ge=0, description="Steps; the paper tries 1000, 2000, ..., 5000 on the test set.")
    mix_layers: tuple[Annotated[int, Field(ge=1, le=12)], ...] = Field(
        (7, 9, 12),
        min_length=1,
        description="States are mixed behind a random one of these layers of 12; of a model with L layers, behind "
        "layer k L / 12, rounded up.",
    )
    alpha: float = Field(
        16.0, gt=0, description="lambda is drawn from Beta(alpha, alpha); the greater of it and 1 - it."
    )
    temperature: float = Field(
        5.0,
        gt=0,
        description="T: a guess is p^(1/T), normalised. Appendix B has 5, which flattens; MixText's own is 0.5.",
    )
    augmented_weight: float = Field(
        1.0, ge=0, description="What an augmentation's prediction weighs in the guess; the original's weighs 1."
    )
    lambda_u: float = Field(1.0, ge=0, description="The weight of the unlabelled rows' loss.")
    rampup: bool = Field(True, description="Let lambda_u and lambda_u_hinge rise from 0 over the whole training.")
    lambda_u_hinge: float = Field(
        0.0, ge=0, description="The weight of the entropy term, on unmixed unlabelled rows; 0 in the original code."
    )
    margin: float = Field(
        0.7, ge=0, description="Entropy of an unlabelled row's prediction that costs nothing, in nats."
    )

    def decay_steps(self, rows: int) -> int | None:
        """When the learning rates reach 0; None where they stay as they are."""
        return super().decay_steps(rows) if self.learning_rate_decay else None


class Augment(Section):
    """Augmented text for UDA and MixText: the pile said otherwise (appendix B)."""

    method: Literal["backtranslation", "rewriting"] = Field(
        "backtranslation",
        description="Translate there and back; or, without a network, let the masked language model itself fill in "
        "masked tokens. A file of paraphrases (--augmented) goes before both.",
    )
    share: float = Field(
        0.5, gt=0, le=1, description="The share of the pile that UDA and MixText use; the paper halves it for both."
    )
    backtranslation: tuple[tuple[str, str], ...] = Field(
        (
            ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
            ("Helsinki-NLP/opus-mt-en-ru", "Helsinki-NLP/opus-mt-ru-en"),
        ),
        min_length=1,
        description="Translation models there and back, by hub name or folder; each two give one augmentation.",
    )
    rewritings: int = Field(2, ge=1, description="How many augmentations of a row the masked language model writes.")
    mask_share: float = Field(0.15, gt=0, lt=1, description="The share of a row's tokens that it writes anew.")
    temperature: float = Field(
        0.9, gt=0, description="Divides the scores that words are drawn by; 0.9 in MixText's back-translation."
    )
