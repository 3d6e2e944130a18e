"""The job that trains one member of the ensemble and scores rows with it (section 3.3, step 1)."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import MemberTraining
from clozify.methods.finetune import finetune
from clozify.models.cloze import ClozeModel
from clozify.models.lora import save_adapter
from clozify.pipeline.folds import Fold
from clozify.pipeline.scope import member_scope
from clozify.pipeline.scoring import score_data_set, write_scores
from clozify.pipeline.sharded_scoring import save_trained_weights
from clozify.pipeline.token_cache import labeled_tokens, unlabeled_tokens
from clozify.prompts.encode import EncodedRows
from clozify.prompts.tokenizer import RaggedTokens
from clozify.prompts.verbalizer import LabelWords
from clozify.runs.jobs import JobResult
from clozify.runs.keys import hash_key
from clozify.runs.plan import Plan
from clozify.runs.records import HELD_OUT_SCORES
from clozify.runs.scope import save_scope
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup, seed_everything

RECORD = "member.json"


@dataclass(frozen=True)
class DrawnRows:
    """Unlabelled rows with the labels that other members gave them (section 3.4)."""

    rows: NDArray[np.int64]  # indices of unlabelled rows
    labels: NDArray[Any]  # (rows,), or with several labels a row 0 and 1, (rows, labels)

    @property
    def key(self) -> str:
        """A hash of the rows and labels."""
        return hash_key(rows=self.rows.tolist(), labels=self.labels.tolist())


@dataclass(frozen=True)
class MemberSpec:
    """A member to train: a pair, a seed, and a training set, which is T and the drawn rows."""

    pair: int  # index in `task.pairs`
    seed: int
    drawn: DrawnRows | None = None
    score_unlabeled: bool = True
    keep_weights: bool = False
    zero_points: tuple[float, ...] | None = None  # subtracted from the labels' scores, with several labels a row
    fold: Fold | None = None  # trained on T without this fold, which is all that it scores
    model: str | None = None  # another language model than the run's own

    def training_rows(self, plan: Plan) -> int:
        """The number of rows that the member is trained on."""
        labeled = len(plan.labeled) if self.fold is None else len(self.fold.training(plan))
        return labeled + (0 if self.drawn is None else len(self.drawn.rows))


@dataclass(frozen=True)
class MemberJob:
    """Trains one member and writes its scores; where scoring is sharded, those of the test rows alone."""

    name: str
    key: str
    spec: MemberSpec
    is_sharded: bool = False

    def is_trained(self, worker: Worker) -> bool:
        """Whether the member is finished, or was trained and shards of rows are still to be scored."""
        kinds = ("members", "trained") if self.is_sharded else ("members",)
        return any(worker.folder.has_job(kind, self.key) for kind in kinds)

    def run(self, worker: Worker) -> JobResult:
        """Fine-tune the pretrained model, score rows with it, and write both to the run's folder."""
        worker = worker.for_model(self.spec.model)
        if self.is_trained(worker):
            return JobResult("already trained")
        started = time.monotonic()
        losses, dev_scores = _finetune(worker, self.spec, self.name)
        return self.score_and_write(worker, losses, dev_scores, time.monotonic() - started)

    def score_and_write(
        self, worker: Worker, losses: list[float], dev_scores: list[float], training_seconds: float
    ) -> JobResult:
        """Score rows with the worker's model, which has just been trained, and write the member's folder."""
        plan, spec, trained = worker.plan, self.spec, time.monotonic()
        if self.is_sharded:
            save_trained_weights(worker, self.key)
        with worker.folder.writing("trained" if self.is_sharded else "members", self.key) as tmp_path:
            prompts = worker.prompts.for_pair(spec.pair, spec.zero_points)
            if spec.fold is None:
                score_unlabeled = spec.score_unlabeled and plan.unlabeled is not None and not self.is_sharded
                write_scores(worker, prompts, tmp_path, score_unlabeled)
            else:
                held_out = score_data_set(worker, prompts, "labeled")[0][spec.fold.held_out(plan)]
                np.save(tmp_path / HELD_OUT_SCORES, held_out)
            if spec.keep_weights and worker.model.has_adapter:
                save_adapter(worker.model.model, tmp_path / "model", plan.base)
            elif spec.keep_weights:
                worker.model.save(tmp_path / "model")
            if spec.keep_weights and isinstance(worker.model, ClozeModel):
                save_scope(tmp_path / "model", member_scope(worker.model, prompts, plan))
            seconds = training_seconds + time.monotonic() - trained
            record = {
                "pair": plan.task.pairs[spec.pair].name,
                "pattern": plan.task.pairs[spec.pair].pattern.text,
                "seed": spec.seed,
                "rows": spec.training_rows(plan),
                "loss": losses,
                "dev": dev_scores,
                "training_seconds": training_seconds,
                "seconds": seconds,
            }
            (tmp_path / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        loss = losses[-1] if losses else float("nan")
        on_dev = f"  dev {100 * max(dev_scores):.1f}" if dev_scores else ""
        speed = member_settings(plan).steps(spec.training_rows(plan)) / max(training_seconds, 1e-9)
        return JobResult(f"loss {loss:.4f}{on_dev}  {speed:.1f} steps/s  {seconds:,.0f} s with scoring")


def member_settings(plan: Plan) -> MemberTraining:
    """How the plan's members are trained."""
    return plan.recipe.member_settings(plan.with_lm)


class MemberRows(NamedTuple):
    """What a member is trained on, in its pattern."""

    words: LabelWords
    labeled: EncodedRows
    labels: NDArray[Any]
    unlabeled: EncodedRows | None  # for the auxiliary task


def encode_member_rows(worker: Worker, spec: MemberSpec) -> MemberRows:
    """The rows of a member's training, and its labels' words."""
    plan = worker.plan
    (pattern,) = worker.prompts.for_pair(spec.pair, spec.zero_points).patterns
    tokens, labels = labeled_tokens(worker), plan.labeled.targets
    if spec.fold is not None:
        rows = spec.fold.training(plan)
        tokens, labels = {field: of_field.select(rows) for field, of_field in tokens.items()}, labels[rows]
    unlabeled = unlabeled_tokens(worker) if plan.unlabeled is not None else None
    if spec.drawn is not None:  # T first, then the drawn rows, in tokens and in labels
        assert unlabeled is not None
        tokens = {
            field: RaggedTokens.concat(tokens[field], unlabeled[field].select(spec.drawn.rows)) for field in tokens
        }
        labels = np.concatenate([labels, spec.drawn.labels])
    length = min(plan.recipe.max_seq_length, worker.model.max_length)
    return MemberRows(
        pattern.words[0],
        EncodedRows(pattern.template, tokens, length),
        labels,
        EncodedRows(pattern.template, unlabeled, length) if plan.with_lm and unlabeled is not None else None,
    )


def _finetune(worker: Worker, spec: MemberSpec, name: str) -> tuple[list[float], list[float]]:
    """Train the worker's model; returns the losses and the metric on the development rows."""
    plan, model = worker.plan, worker.pretrained_model(spec.seed)
    prompts = worker.prompts.for_pair(spec.pair, spec.zero_points)
    rows, settings = encode_member_rows(worker, spec), member_settings(plan)

    def score_dev() -> NDArray[np.float32]:
        scores: NDArray[np.float32] = score_data_set(worker, prompts, "dev")[0]
        return scores

    with worker.monitor(name, settings.steps(len(rows.labels)), score_dev) as (monitor, dev_scores):
        setup = TrainingSetup(
            settings, seed_everything(spec.seed), worker.context.accelerator, monitor, plan.recipe.balance
        )
        losses = finetune(model, *rows, setup)
    return losses, dev_scores
