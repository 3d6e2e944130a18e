"""Sections of a recipe that PET itself uses: how each model is trained (appendix B), iPET, words, wording.

A section is a group of settings, each with its help text; `recipe.py` puts them together. The sections of the
baselines UDA and MixText are in `baselines.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A group of settings; unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Training(Section):
    """How a model is trained: one column of appendix B. The defaults are those of the supervised baseline."""

    learning_rate: float = Field(1e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    weight_decay: float = Field(0.01, ge=0, description="Decoupled weight decay; not on biases and layer norms.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    gradient_accumulation_steps: int = Field(4, ge=1, description="Micro-batches in a step.")
    per_gpu_train_batch_size: int = Field(4, ge=1, description="Labelled rows in a micro-batch.")
    max_steps: int = Field(250, ge=0, description="Optimizer steps, whatever the number of rows.")
    num_train_epochs: float | None = Field(
        None, gt=0, description="Passes over the training rows, instead of max_steps (3 for the paper's x-stance)."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps until the peak learning rate; the paper has none.")
    exact_steps: bool = Field(
        True,
        description="Train for exactly max_steps; false counts as the authors' code does: one more, and fewer where a "
        "pass over the rows has fewer micro-batches than a step.",
    )

    @property
    def rows_per_step(self) -> int:
        """Labelled rows in a step: the effective batch size."""
        return self.per_gpu_train_batch_size * self.gradient_accumulation_steps

    def steps(self, rows: int) -> int:
        """The number of optimizer steps when training on this many rows."""
        if self.num_train_epochs is not None:
            return max(1, -int(-rows * self.num_train_epochs // self.rows_per_step))
        if self.exact_steps:
            return self.max_steps
        batches = -(-rows // self.per_gpu_train_batch_size)  # micro-batches in a pass over the rows
        passes = self.max_steps // max(1, batches // self.gradient_accumulation_steps) + 1
        return min(self.max_steps + 1, passes * batches // self.gradient_accumulation_steps)

    def decay_steps(self, rows: int) -> int | None:
        """The step at which the learning rate reaches 0; None where it stays constant."""
        return self.steps(rows) if self.num_train_epochs is not None else self.max_steps


class PartialTraining(Training):
    """How an encoder, or its upper layers alone, are trained."""

    frozen_layers: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="The fraction of the encoder's layers, from the embeddings up, that keep their pretrained weights.",
    )


class MemberTraining(PartialTraining):
    """How a member is trained, with what the paper does not have."""

    balanced_batches: bool = Field(False, description="Draw every label equally often.")
    contrastive: float = Field(
        0.0, ge=0, description="The weight of a supervised contrastive loss on the states at the mask."
    )
    rows_per_label: int = Field(
        1,
        ge=1,
        description="With balanced_batches, rows of one label that follow each other; 2 makes pairs for the "
        "contrastive loss where there are more labels than rows in a step.",
    )
    label_learning_rate: float | None = Field(
        None,
        gt=0,
        description="The peak learning rate of an offset to each label's vector, the mean of its words' vectors; by "
        "default there are no offsets. Not with adapters.",
    )


class StudentTraining(PartialTraining):
    """How a classifier with a new head is trained, with what the paper does not have."""

    head_learning_rate: float | None = Field(
        None, gt=0, description="The peak learning rate of the new head; by default it is the encoder's."
    )


class Finetune(MemberTraining):
    """Fine-tuning a pattern-verbalizer pair, with the auxiliary language-modelling task (section 3.2)."""

    alpha: float = Field(1e-4, ge=0, le=1, description="The weight of L_MLM: (1 - alpha) L_CE + alpha L_MLM.")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="The fraction of tokens to predict.")
    per_gpu_train_batch_size: int = Field(1, ge=1, description="Labelled rows in a micro-batch.")
    per_gpu_helper_batch_size: int = Field(3, ge=1, description="Unlabelled rows in a micro-batch.")
    max_steps: int = Field(1000, ge=0, description="Optimizer steps, whatever the number of rows.")
    lm_targets: Literal["text", "all"] = Field(
        "text",
        description="Tokens that may be masked for L_MLM: 'text' excludes special tokens, padding and the mask of the "
        "pattern; 'all', as in the authors' code, excludes only the tokens that begin and end a segment.",
    )


class Distill(StudentTraining):
    """Training the classifier C on the soft-labelled rows (section 3.3, step 3)."""

    temperature: float = Field(
        2.0, gt=0, description="Softens the patterns' scores into the target; with other teachers it is 1."
    )
    student_temperature: float = Field(
        1.0, gt=0, description="Divides the classifier's own scores in the loss; the paper softens the target only."
    )
    scale_by_squared_temperature: bool = Field(
        False, description="Multiply the loss by the temperature squared, as the authors' code does."
    )
    confident_rows: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Where rules or other teachers vote, too, train on this fraction of each predicted label's rows, "
        "those with the highest probability; patterns alone keep all rows.",
    )
    max_steps: int = Field(5000, ge=0, description="Optimizer steps, whatever the number of rows.")
    labeled_rows: bool = Field(
        False, description="Train on T, too, with its labels, unless there are more than 100,000 unlabelled rows."
    )


class Pretrain(Training):
    """In-domain pretraining: masked language modelling on the task's own texts (section 5)."""

    learning_rate: float = Field(5e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay; not on biases and layer norms.")
    gradient_accumulation_steps: int = Field(2, ge=1, description="Micro-batches in a step.")
    per_gpu_train_batch_size: int = Field(2, ge=1, description="Blocks in a micro-batch; the paper had three GPUs.")
    max_steps: int = Field(50_000, ge=0, description="Optimizer steps.")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="The fraction of tokens to predict.")
    block_size: int = Field(256, ge=8, description="Tokens in a block; texts are concatenated and cut into blocks.")


class Adapter(Section):
    """Members as small adapters on one frozen model (LoRA), instead of full models."""

    method: Literal["none", "lora"] = Field(
        "none", description="'lora' trains adapters; it needs pip install 'clozify[peft]'."
    )
    r: int = Field(8, ge=1, description="The rank of the adapter matrices.")
    alpha: int = Field(16, ge=1, description="The adapters' output is multiplied by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before the adapters; the model has its own besides.")
    learning_rate: float = Field(
        4e-4, gt=0, description="Replaces the fine-tuning section's: adapters need a higher one."
    )
    target_modules: Literal["all-linear"] | tuple[str, ...] = Field(
        "all-linear",
        description="Layers with an adapter: every linear layer, those of the head included, except the output layer "
        "over the vocabulary; or a list of layer names.",
    )
    members_at_once: int | None = Field(
        None,
        ge=1,
        description="Members that are trained in one batch, at most; by default 1 on a CPU, and 6 on a GPU.",
    )


class Generative(Section):
    """Causal and encoder-decoder models: how their words are scored."""

    calibrate: bool = Field(
        True,
        description="Subtract a word's log-likelihood after the same pattern with the neutral text in place of the "
        "row's, so that frequent words are not preferred.",
    )
    neutral_text: str = Field(
        "N/A", min_length=1, description="What stands for a row's text when words are calibrated."
    )
    chat: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Ask a causal model within its chat template, as a user whom it answers; 'auto': where it has one.",
    )


class Frozen(Section):
    """The method `frozen`: the encoder stays as it is, and only the labels' vectors are fitted."""

    penalty: float | None = Field(
        None,
        gt=0,
        description="The L2 penalty on the distance of the labels' vectors from their words' vectors; by default "
        "cross-validation on the labelled rows chooses one from 0.03 to 3.",
    )
    unlabeled_rows: int = Field(
        500, ge=1, description="Unlabelled rows to compute states of, to centre them and to get soft labels for."
    )
    distillation: bool = Field(False, description="Train a classifier on the soft labels of these rows.")


class IPet(Section):
    """iPET: generations of models, each trained on more rows that earlier models labelled (section 3.4)."""

    d: int = Field(5, ge=2, description="The training set grows by this factor with every generation.")
    teachers: float = Field(
        0.25, gt=0, le=1, description="The paper's lambda: the fraction of the other models that label a training set."
    )
    enough: int = Field(1000, ge=1, description="Generations are added until a training set has this many rows.")
    generations: int | None = Field(
        None, ge=0, description="k; by default the smallest with |T| d^k >= enough, and 4 without labelled rows."
    )
    draw: Literal["probability", "score"] = Field(
        "probability",
        description="Rows are drawn in proportion to the teachers' softmax at temperature 1; 'score': to their raw "
        "score minus the lowest of all candidate rows (raw scores may be negative, which the paper leaves open).",
    )
    zero_shot_examples: int = Field(
        10, ge=1, description="Rows in a training set of the first generation when there are no labelled rows."
    )
    zero_shot_pool: int = Field(100, ge=1, description="They are drawn from this many best-scored rows of each label.")
    calibrate: bool = Field(
        False,
        description="Calibrate the untrained pairs, which label rows for the first generation when there are no "
        "labelled rows: each label's probability is divided by its mean over the unlabelled rows.",
    )
    skip_generations: bool = Field(
        False, description="Let the first generation label the training sets of the last one directly (section 5)."
    )
    top_up: bool = Field(
        True,
        description="A label that too few rows are predicted as gets those with the next highest probability of it; "
        "false: it gets fewer rows, rather than wrong ones.",
    )
    keep: Literal["every", "better"] = Field(
        "every",
        description="'better' drops a generation, and ends there, if its members are less confident and agree less on "
        "the unlabelled rows than those before.",
    )


class Multilabel(Section):
    """Tasks with several labels a row; the paper has none."""

    folds: int = Field(
        3,
        ge=2,
        description="Thresholds are chosen on labelled rows that models were not trained on: this many are trained, "
        "each without its share of the rows.",
    )
    shrinkage: float = Field(
        10.0,
        ge=0,
        description="A label's own threshold weighs as its labelled rows, the threshold of all labels as this many.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="A probability from which on every label is predicted, instead of chosen ones; no fold is trained.",
    )


class Estimate(Section):
    """How good the result is, without a test set; the paper has none."""

    folds: int = Field(
        0,
        ge=0,
        description="Cross-fitting: T is split into this many parts, and models that are trained without a part score "
        "it. These scores calibrate the result and estimate its accuracy. 0: none.",
    )
    pairs: int | None = Field(
        None, ge=1, description="Pairs that are trained without each part, the best ones; by default all of a run's."
    )


class Static(Section):
    """The static classifier of `--student static`; the paper has none."""

    unlabeled_rows: int = Field(
        30_000, ge=1, description="Unlabelled rows that the final classifier labels for it, at most."
    )


class Words(Section):
    """Automatic verbalizer search (appendix E)."""

    k: int = Field(250, ge=1, description="Random verbalizers in each round.")
    i_max: int = Field(5, ge=1, description="Rounds.")
    m: int = Field(10, ge=1, description="Words for each label.")
    epsilon: float = Field(1e-3, ge=0, description="The smallest weight of a word in the next round's draw.")
    candidates: int = Field(10_000, ge=1, description="Candidate words: this many of the most frequent in the rows.")


class Wording(Section):
    """How rows are inserted into patterns, and how label words are tokenised."""

    spacing: Literal["as-written", "between-parts"] = Field(
        "as-written",
        description="Spaces in a pattern as it is written; 'between-parts' puts one before each part, as the authors' "
        "code does.",
    )
    label_words: Literal["in-place", "leading-space"] = Field(
        "in-place",
        description="A label's word is tokenised as it would stand at the mask; 'leading-space': always as after a "
        "space.",
    )
    several_tokens: Literal["mean", "masks"] = Field(
        "mean",
        description="How a word of several tokens is scored: by the mean of its tokens' scores at one mask; 'masks': "
        "each token at a mask of its own, with as many masks as the longest word has tokens.",
    )
    token_by_token: bool = Field(
        False,
        description="With 'masks', rows are scored by filling a label's masks one after the other, the most certain "
        "token first: a forward pass for each token of each label instead of one for all.",
    )
    truncation: Literal["longest-field", "longest-segment"] = Field(
        "longest-field",
        description="Long rows lose tokens of their longest field; 'longest-segment': of the last field of their "
        "longer segment.",
    )


class Dev(Section):
    """Early stopping on development rows, where there are any (`--dev`); the paper has none."""

    every: int = Field(
        25, ge=1, description="Steps between evaluations on the development rows; the best weights are kept."
    )
    patience: int = Field(
        4, ge=0, description="Evaluations without improvement before training stops; 0 trains to the end."
    )
