"""Sections of a recipe for the baselines of section 4.3, UDA and MixText, and for the augmented text that both need."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from clozify.config.sections import Section, Training

Steps = Annotated[int, Field(ge=1)]


class SemiSupervisedTraining(Training):
    """What UDA and MixText share: unlabelled rows in every step, and several numbers of steps to try."""

    adam_epsilon: float = Field(1e-6, gt=0, description="Adam's epsilon, as in both implementations.")
    gradient_accumulation_steps: int = Field(1, ge=1, description="Micro-batches in a step.")
    per_gpu_unlabeled_batch_size: int = Field(8, ge=1, description="Unlabelled rows in a micro-batch.")
    steps_to_try: tuple[Steps, ...] = Field(
        (),
        description="Numbers of steps to train for, each from the beginning; the best ON THE TEST SET is reported and "
        "marked as such, as the paper does for its comparison. Empty: max_steps alone.",
    )

    @property
    def unlabeled_rows_per_step(self) -> int:
        """Unlabelled rows in a step."""
        return self.per_gpu_unlabeled_batch_size * self.gradient_accumulation_steps

    def with_steps(self, steps: int) -> Self:
        """These settings for one training of exactly this many steps."""
        update = {"max_steps": steps, "num_train_epochs": None, "exact_steps": True, "steps_to_try": ()}
        return self.model_copy(update=update)


class Uda(SemiSupervisedTraining):
    """UDA (Xie et al., 2019): a consistency loss between an unlabelled row and its augmentation."""

    learning_rate: float = Field(2e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    max_steps: int = Field(
        10_000, ge=0, description="Optimizer steps; the paper tries 500, 1000, ..., 10000 on the test set."
    )
    warmup_share: float = Field(
        0.1, ge=0, lt=1, description="The fraction of steps until the peak learning rate, where warmup_steps is 0."
    )
    tsa: Literal["exponential", "linear", "log", "none"] = Field(
        "exponential",
        description="Training-signal annealing: labelled rows whose true label's probability exceeds a threshold are "
        "left out of the loss; the threshold rises from 1 / labels to 1 along this curve.",
    )
    uda_coeff: float = Field(1.0, ge=0, description="The weight of the consistency loss.")
    uda_softmax_temp: float = Field(
        0.85, gt=0, description="The scores of the sharpened prediction are divided by this."
    )
    uda_confidence_thresh: float = Field(
        0.45,
        ge=0,
        lt=1,
        description="Unlabelled rows count only where the original's highest probability exceeds this.",
    )
    sharpened: Literal["original", "augmented"] = Field(
        "original",
        description="Which prediction is sharpened: the original's, as Xie et al. write; or the augmented row's, as in "
        "the reimplementation that the paper used.",
    )
    mean_over: Literal["all", "confident"] = Field(
        "all",
        description="The consistency loss is a mean over all unlabelled rows of the step, as in Google's code; or over "
        "those that count, as in the reimplementation.",
    )

    def with_warmup_steps(self, rows: int) -> Self:
        """These settings with `warmup_share` turned into `warmup_steps`, for this many labelled rows."""
        return self.model_copy(
            update={"warmup_steps": self.warmup_steps or round(self.warmup_share * self.steps(rows))}
        )


class Mixtext(SemiSupervisedTraining):
    """MixText (Chen et al., 2020): interpolates the hidden states and labels of two rows, labelled or not."""

    learning_rate: float = Field(5e-6, gt=0, description="The encoder's learning rate.")
    head_learning_rate: float = Field(5e-4, gt=0, description="The classification layer's learning rate.")
    learning_rate_decay: bool = Field(
        False, description="Let the learning rates fall linearly to 0; in the original code they are constant."
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay; the original code has none.")
    max_grad_norm: float = Field(
        0.0, ge=0, description="Gradients are clipped to this norm; 0, as in the original code, turns clipping off."
    )
    max_steps: int = Field(5000, ge=0, description="Optimizer steps; the paper tries 1000, ..., 5000 on the test set.")
    mix_layers: tuple[Annotated[int, Field(ge=1, le=12)], ...] = Field(
        (7, 9, 12),
        min_length=1,
        description="States are mixed after a random one of these layers, of 12; in a model with L layers, after layer "
        "k L / 12, rounded up.",
    )
    alpha: float = Field(16.0, gt=0, description="lambda = max(b, 1 - b), with b drawn from Beta(alpha, alpha).")
    temperature: float = Field(
        5.0,
        gt=0,
        description="T: a guessed label is p^(1/T), normalised. Appendix B has 5, which flattens it; MixText's paper "
        "has 0.5.",
    )
    augmented_weight: float = Field(
        1.0, ge=0, description="The weight of an augmentation's prediction in the guessed label; the original's is 1."
    )
    lambda_u: float = Field(1.0, ge=0, description="The weight of the unlabelled rows' loss.")
    rampup: bool = Field(True, description="Let lambda_u and lambda_u_hinge rise linearly from 0 during training.")
    lambda_u_hinge: float = Field(
        0.0, ge=0, description="The weight of the entropy term, on unmixed unlabelled rows; 0 in the original code."
    )
    margin: float = Field(
        0.7, ge=0, description="Entropy, in nats, up to which a prediction adds nothing to the entropy term."
    )

    def decay_steps(self, rows: int) -> int | None:
        """The step at which the learning rates reach 0; None where they are constant."""
        return super().decay_steps(rows) if self.learning_rate_decay else None


class Augment(Section):
    """Augmented text for UDA and MixText: other wordings of the unlabelled rows (appendix B)."""

    method: Literal["backtranslation", "rewriting"] = Field(
        "backtranslation",
        description="Translate to another language and back; 'rewriting', which needs no other model, lets the masked "
        "language model fill in masked tokens. A file of paraphrases (--augmented) replaces both.",
    )
    share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The fraction of the unlabelled rows that is used; the paper halves them for both methods.",
    )
    backtranslation: tuple[tuple[str, str], ...] = Field(
        (
            ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
            ("Helsinki-NLP/opus-mt-en-ru", "Helsinki-NLP/opus-mt-ru-en"),
        ),
        min_length=1,
        description="Pairs of translation models, to another language and back, by hub name or folder; each pair "
        "gives one augmentation.",
    )
    rewritings: int = Field(2, ge=1, description="Augmentations of each row by the masked language model.")
    mask_share: float = Field(0.15, gt=0, lt=1, description="The fraction of a row's tokens that it replaces.")
    temperature: float = Field(
        0.9, gt=0, description="Sampling temperature of words; 0.9 in MixText's back-translation."
    )
    samples: int = Field(
        5,
        ge=1,
        description="Translations sampled of each text, of which the most probable is taken; 5 in MixText's script. "
        "Fewer are faster and worse.",
    )
