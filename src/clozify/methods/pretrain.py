"""In-domain pretraining: masked language modelling on the task's own texts before PET (section 5, appendix B).

Transformers' `Trainer` runs the loop, the optimizer and the checkpoints; the head reads only the masked tokens. An
interrupted training resumes from its last complete checkpoint and ends with the same weights, bit for bit on a CPU.

The Trainer's checkpoints hold torch files (optimizer and generator states). They are written to a working folder that
the caller removes at the end; nothing else is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from clozify.config.recipe import Pretrain
from clozify.errors import TrainingError
from clozify.methods.masking import mask_tokens
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import Batch
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.training.loop import LOG_EVERY
from clozify.training.losses import masked_lm_loss
from clozify.utils import libraries
from clozify.utils.progress import progress

SAVE_EVERY = 500  # steps between checkpoints
LOG_SECONDS = 30.0  # at least so long between two lines of the log
EVAL_BATCH_SIZE = 8  # held-out blocks in a forward pass
IGNORED = -100  # the label of a token that is not predicted, as in Transformers


@dataclass(frozen=True)
class PretrainResult:
    """The number of steps, the masked-LM loss on the held-out blocks before and after, and the training losses."""

    steps: int
    before: float
    after: float
    losses: list[tuple[int, float]]  # (step, mean loss since the last entry)


class _MaskedBlocks(Dataset[dict[str, Tensor]]):
    """Blocks in the order in which they are read; the n-th is masked by a generator of its own.

    The masked tokens depend on the seed and on n alone, not on what was read before: after a resume the Trainer fetches
    the first batch before it restores its generators.
    """

    def __init__(
        self,
        blocks: NDArray[np.int32],
        order: NDArray[np.int64],
        tokenizer: PromptTokenizer,
        probability: float,
        seed: tuple[int, ...],
    ) -> None:
        self.blocks, self.order, self.tokenizer, self.probability, self.seed = (
            blocks,
            order,
            tokenizer,
            probability,
            seed,
        )

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.blocks[self.order[index]].astype(np.int64)[None]  # (1, tokens)
        batch = Batch(np.zeros(1, np.int64), ids, np.ones_like(ids), np.zeros_like(ids), np.zeros(1, np.int64))
        rng = np.random.default_rng([*self.seed, index])
        masked, targets = mask_tokens(batch, self.tokenizer, rng, self.probability)
        labels = np.full_like(ids, IGNORED)
        labels[targets.rows, targets.positions] = targets.tokens
        return {"input_ids": torch.from_numpy(masked.input_ids[0]), "labels": torch.from_numpy(labels[0])}


class _MaskedLMTrainer(Trainer):
    """Transformers' Trainer with a loss whose head reads the masked tokens only."""

    def __init__(self, cloze: ClozeModel, **settings: Any) -> None:
        super().__init__(model=cloze.model, data_collator=default_data_collator, **settings)
        self.cloze = cloze
        # The loss is a micro-batch's mean, so the Trainer has to divide it by the number of micro-batches; by default
        # it assumes that the model has divided by the tokens of the full step.
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)

    def compute_loss(
        self,
        model: torch.nn.Module,  # noqa: ARG002
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002
    ) -> Any:
        """L_MLM of a micro-batch: the mean of -log M(token | z) over its masked tokens."""
        labels: Tensor = inputs["labels"]  # (blocks, tokens)
        is_target = labels != IGNORED
        with self.accelerator.autocast():
            states = self.cloze.encoder(input_ids=inputs["input_ids"])[0][is_target]  # (masked, hidden)
            scores = self.cloze.head(states).float()  # (masked, vocabulary)
            loss = masked_lm_loss(scores, labels[is_target], torch.tensor(len(scores)), micro_batches=1)
        return (loss, {}) if return_outputs else loss

    def held_out_loss(self) -> float:
        """The loss on the held-out blocks, whose masks are always the same."""
        loss = float(self.evaluate()["eval_loss"])
        if not np.isfinite(loss):
            raise TrainingError(_not_finite(loss, self.state.global_step, self.args.learning_rate))
        return loss


class _Progress(TrainerCallback):
    """Logs the loss and the time left, and stops a training whose loss is not finite."""

    def __init__(self, steps: int, log: Callable[[str], None], advance: Callable[[int], None]) -> None:
        self.steps, self.log, self.advance = steps, log, advance
        self.started = self.last_logged = time.monotonic()
        self.first_step = self.last_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Start to count at the step that a resumed training begins with."""
        self.started = time.monotonic()
        self.first_step = self.last_step = state.global_step
        self.advance(self.first_step)
        if self.first_step:
            self.log(f"resumes at step {self.first_step:,} of {self.steps:,}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Read the loss before every checkpoint, which would else keep weights that are not finite."""
        control.should_log = control.should_log or control.should_save

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Log one line, at most every `LOG_SECONDS` seconds, and after the last step."""
        loss, step = (logs or {}).get("loss"), state.global_step
        if loss is None:
            return
        if not np.isfinite(loss):
            raise TrainingError(_not_finite(loss, step, args.learning_rate))
        self.advance(step - self.last_step)
        self.last_step, now = step, time.monotonic()
        if now - self.last_logged >= LOG_SECONDS or step == self.steps:
            self.last_logged = now
            left = (self.steps - step) * (now - self.started) / max(1, step - self.first_step)
            self.log(f"step {step:,} of {self.steps:,}  loss {loss:.4f}  about {left / 60:,.0f} min left")


@libraries.quiet_transformers()
@libraries.without_cudnn_attention()
def pretrain(
    model: ClozeModel,
    blocks: NDArray[np.int32],
    held_out: NDArray[np.int64],
    settings: Pretrain,
    seed: int,
    folder: Path,
    log: Callable[[str], None] = lambda line: None,
    save_every: int = SAVE_EVERY,
) -> PretrainResult:
    """Train the model in place on all blocks, (blocks, tokens), but those with the indices `held_out`.

    Checkpoints are written to `folder`; a training resumes from the last complete one.
    """
    seed %= 2**32  # NumPy's limit
    training_blocks = np.setdiff1d(np.arange(len(blocks)), held_out)
    steps = settings.steps(len(training_blocks))
    draws = steps * settings.rows_per_step
    rng = np.random.default_rng(seed)
    epochs = [rng.permutation(training_blocks) for _ in range(-(-draws // len(training_blocks)))]
    order = np.concatenate([np.empty(0, dtype=np.int64), *epochs])[:draws]
    probability = settings.mlm_probability
    with progress("pretraining", steps, "steps") as advance:
        trainer = _MaskedLMTrainer(
            model,
            args=_arguments(settings, steps, seed, folder, model, save_every),
            train_dataset=_MaskedBlocks(blocks, order, model.tokenizer, probability, (seed, 0)),
            eval_dataset=_MaskedBlocks(blocks, held_out, model.tokenizer, probability, (seed, 1)),
            callbacks=[_Progress(steps, log, advance)],
        )
        before = trainer.held_out_loss()
        log(f"masked-LM loss on {len(held_out):,} held-out blocks before training: {before:.4f}")
        if steps:
            set_seed(seed)  # of dropout; a checkpoint restores its own generators
            _train(trainer, _last_complete(folder))
        after = trainer.held_out_loss() if steps else before
        log(f"masked-LM loss on {len(held_out):,} held-out blocks after training: {after:.4f}")
    model.model.eval()
    losses = [(int(entry["step"]), entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return PretrainResult(steps, before, after, losses)


def _arguments(
    settings: Pretrain, steps: int, seed: int, folder: Path, model: ClozeModel, save_every: int
) -> TrainingArguments:
    """Appendix B's last column as the Trainer's arguments: linear decay, the model's precision, no trackers."""
    on_gpu = model.device.type == "cuda"
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=max(1, steps),  # with 0 the Trainer would count epochs; `train` is not called then
        per_device_train_batch_size=settings.per_gpu_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=seed,
        bf16=model.options.trains_in_bf16(model.device),
        use_cpu=not on_gpu,
        per_device_eval_batch_size=EVAL_BATCH_SIZE,
        prediction_loss_only=True,
        train_sampling_strategy="sequential",  # `order` is shuffled
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        logging_steps=LOG_EVERY,
        logging_nan_inf_filter=False,  # it would hide a loss that is not finite
        save_steps=save_every,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # one device, as for every job; no DataParallel
    return arguments


def _train(trainer: Trainer, checkpoint: Path | None) -> None:
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "inline_container" in str(
            error
        ):  # torch.save's error when the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def _last_complete(folder: Path) -> Path | None:
    """The last checkpoint with a `trainer_state.json`, which the Trainer writes last; others are removed."""
    complete: list[tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*"):
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            complete.append((state["global_step"], path))
        except (OSError, ValueError):
            shutil.rmtree(path)
    return max(complete)[1] if complete else None


def _not_finite(loss: float, step: int, learning_rate: float) -> str:
    return (
        f"The loss of the pretraining is {loss} at step {step:,}; lower its learning rate, as in "
        f"--set pretrain.learning_rate={learning_rate / 10:g}, and name a new folder."
    )
