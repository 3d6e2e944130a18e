"""In-domain pretraining: the masked language model goes on reading the task's own texts (section 5, appendix B).

In: a `ClozeModel` and blocks of token ids, some of them held out. Out: the model trained in place, and its masked-LM
loss on the held-out blocks before and after. The loop, the optimizer and the checkpoints are Transformers' `Trainer`;
as everywhere in clozify the head reads only the tokens that are to be predicted. A training that was stopped goes on
from its last whole checkpoint and ends with the same weights, bit for bit on a CPU.

The Trainer's checkpoints hold torch files of its own (optimizer, sources of chance). They live in a working folder that
the caller removes when the training is whole; nothing else is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from clozify.config.recipe import Pretrain
from clozify.errors import TrainingError
from clozify.models.cloze import ClozeModel
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.training.loop import CHECK_EVERY
from clozify.utils import libraries
from clozify.utils.progress import progress

SAVE_EVERY = 500  # steps between checkpoints
SAY_EVERY = 30.0  # seconds between lines
MEASURED_AT_ONCE = 8  # held-out blocks in a forward pass
NOT_ASKED = -100  # the label of a token that is not to be predicted, as Transformers has it


class _MaskedBlocks(Dataset[dict[str, Tensor]]):
    """Blocks in the order in which they are read; the n-th is masked by a source of chance of its own.

    So what is masked depends on the seed and on n alone, not on what was read before: the Trainer fetches the first
    batch after a resume before it restores the sources of chance.
    """

    def __init__(
        self,
        blocks: NDArray[np.int32],
        order: NDArray[np.int64],
        tokenizer: PromptTokenizer,
        share: float,
        seed: tuple[int, ...],
    ) -> None:
        self.blocks, self.order, self.seed = blocks, order, seed
        self.special = torch.from_numpy(tokenizer.is_special)  # (vocabulary,)
        self.masking = DataCollatorForLanguageModeling(tokenizer.hf_tokenizer, mlm_probability=share)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        ids = torch.from_numpy(self.blocks[self.order[number]].astype(np.int64))
        rng = np.random.SeedSequence([*self.seed, number]).generate_state(1, np.uint64)[0]
        self.masking.generator = torch.Generator().manual_seed(int(rng))
        masked, labels = self.masking.torch_mask_tokens(ids, special_tokens_mask=self.special[ids])
        return {"input_ids": masked, "labels": labels}


class _MaskedLMTrainer(Trainer):
    """Transformers' Trainer; only the loss is ours, since the head is to read the masked tokens alone."""

    def __init__(self, cloze: ClozeModel, **given: Any) -> None:
        super().__init__(model=cloze.model, data_collator=default_data_collator, **given)
        self.cloze = cloze
        # The loss is a micro-batch's mean. Else the Trainer would believe that the model divides it by the tokens of
        # the whole step, and a step of two micro-batches would count twice.
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
        asked = labels != NOT_ASKED
        with self.accelerator.autocast():
            hidden = self.cloze.encoder(input_ids=inputs["input_ids"])[0][asked]  # (masked, hidden)
            if len(hidden):
                loss = functional.cross_entropy(self.cloze.head(hidden).float(), labels[asked])
            else:  # a short block may have nothing masked
                loss = hidden.sum()
        return (loss, {}) if return_outputs else loss

    def held_out_loss(self) -> float:
        """The loss on the held-out blocks, whose masks are always the same."""
        loss = float(self.evaluate()["eval_loss"])
        if not np.isfinite(loss):
            raise TrainingError(_no_number(loss, self.state.global_step, self.args.learning_rate))
        return loss


class _Watching(TrainerCallback):
    """Tells people how it goes, and stops where the loss is no number."""

    def __init__(self, steps: int, say: Callable[[str], None], advance: Callable[[int], None]) -> None:
        self.steps, self.say, self.advance = steps, say, advance
        self.began = self.said = time.monotonic()
        self.first = self.told = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """A resumed training begins at the step where it was."""
        self.began = time.monotonic()
        self.first = self.told = state.global_step
        self.advance(self.first)
        if self.first:
            self.say(f"goes on from step {self.first:,} of {self.steps:,}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """No checkpoint without a look at the loss first: it would keep weights that are no numbers."""
        control.should_log = control.should_log or control.should_save

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """One line, but not more often than every `SAY_EVERY` seconds, and the last."""
        loss, step = (logs or {}).get("loss"), state.global_step
        if loss is None:
            return
        if not np.isfinite(loss):
            raise TrainingError(_no_number(loss, step, args.learning_rate))
        self.advance(step - self.told)
        self.told, now = step, time.monotonic()
        if now - self.said >= SAY_EVERY or step == self.steps:
            self.said = now
            left = (self.steps - step) * (now - self.began) / max(1, step - self.first)
            self.say(f"step {step:,} of {self.steps:,}  loss {loss:.4f}  about {left / 60:,.0f} min left")


@libraries.quiet_transformers()
@libraries.without_cudnn_attention()
def pretrain(
    model: ClozeModel,
    blocks: NDArray[np.int32],
    held_out: NDArray[np.int64],
    settings: Pretrain,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
    save_every: int = SAVE_EVERY,
) -> dict[str, Any]:
    """Train the model on all blocks (blocks, tokens) but the held-out ones, which are named by their numbers.

    Checkpoints go to `folder`; what is whole there is gone on from. Returns the steps, the held-out blocks' loss
    `before` and `after`, and the `course` of the training loss as pairs of a step and the mean since the last one.
    """
    seed %= 2**32  # what NumPy takes for one
    learned = np.setdiff1d(np.arange(len(blocks)), held_out)
    steps = settings.steps(len(learned))
    draws = steps * settings.rows_per_step
    rng = np.random.default_rng(seed)
    passes = [rng.permutation(learned) for _ in range(-(-draws // len(learned)))]
    order = np.concatenate([np.empty(0, dtype=np.int64), *passes])[:draws]
    share = settings.mlm_probability
    with progress("pretraining", steps, "steps") as advance:
        trainer = _MaskedLMTrainer(
            model,
            args=_arguments(settings, steps, seed, folder, model.device.type == "cuda", save_every),
            train_dataset=_MaskedBlocks(blocks, order, model.tokenizer, share, (seed, 0)),
            eval_dataset=_MaskedBlocks(blocks, held_out, model.tokenizer, share, (seed, 1)),
            callbacks=[_Watching(steps, say, advance)],
        )
        before = trainer.held_out_loss()
        say(f"masked-LM loss on {len(held_out):,} held-out blocks before training: {before:.4f}")
        if steps:
            set_seed(seed)  # of dropout; a checkpoint brings its own
            _train(trainer, _last_whole(folder))
        after = trainer.held_out_loss() if steps else before
        say(f"masked-LM loss on {len(held_out):,} held-out blocks after training: {after:.4f}")
    model.model.eval()
    course = [[entry["step"], entry["loss"]] for entry in trainer.state.log_history if "loss" in entry]
    return {"steps": steps, "before": before, "after": after, "course": course}


def _arguments(
    settings: Pretrain, steps: int, seed: int, folder: Path, on_gpu: bool, save_every: int
) -> TrainingArguments:
    """Appendix B's last column in the Trainer's words: linear decay, bf16 on a GPU, quiet, no trackers."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=max(1, steps),  # with 0 the Trainer would count epochs; it is not asked to train then
        per_device_train_batch_size=settings.per_gpu_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        adam_epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=seed,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        per_device_eval_batch_size=MEASURED_AT_ONCE,
        prediction_loss_only=True,
        train_sampling_strategy="sequential",  # the blocks come shuffled
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        logging_steps=CHECK_EVERY,
        logging_nan_inf_filter=False,  # it would hide a loss that is no number
        save_steps=save_every,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # one device, as all of clozify's jobs; not torch's DataParallel
    return arguments


def _train(trainer: Trainer, checkpoint: Path | None) -> None:
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except RuntimeError as error:
        if "PytorchStreamWriter" in str(error) or "inline_container" in str(error):  # how torch.save tells a full disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def _last_whole(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end, where the Trainer's state is; half ones are removed."""
    found: list[tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*"):
        try:
            found.append((json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))["global_step"], path))
        except (OSError, ValueError):
            shutil.rmtree(path)
    return max(found)[1] if found else None


def _no_number(loss: float, step: int, learning_rate: float) -> str:
    return (
        f"The loss of the pretraining is {loss} at step {step:,}; lower its learning rate, as in "
        f"--set pretrain.learning_rate={learning_rate / 10:g}, and name a new folder."
    )
