"""The ensemble's members: a fine-tuned model for every pair and seed (section 3.3, step 1).

What is kept of a member are its raw scores of the unlabelled and the test rows. Its weights are kept only where the
ensemble itself is the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.config.recipe import Training
from clozify.data.decision import Decision
from clozify.methods.ensemble import combine_scores
from clozify.methods.finetune import finetune
from clozify.methods.label_set_reliability import HeldOutLabelSets
from clozify.metrics import BasicMetrics, Evaluation, detailed_metrics, mean_micro_f1
from clozify.models.cloze import ClozeModel
from clozify.models.lora import save_adapter
from clozify.pipeline.folds import Fold, make_folds
from clozify.pipeline.run import Run
from clozify.pipeline.scope import MEMBER_SCOPE, member_scope
from clozify.pipeline.scoring import score_data_set, write_scores
from clozify.pipeline.sharded_scoring import ShardedScoring, ShardJob, save_trained_weights, shard_spans
from clozify.pipeline.thresholds import decide_by_folds, decide_without_folds
from clozify.pipeline.token_cache import labeled_tokens, unlabeled_tokens
from clozify.pipeline.untrained import scores_inputs
from clozify.prompts.encode import EncodedRows
from clozify.prompts.tokenizer import RaggedTokens
from clozify.runs.jobs import Job, JobResult
from clozify.runs.keys import hash_key, job_key
from clozify.runs.metrics import MemberMetrics, MembersMetrics
from clozify.runs.plan import Plan
from clozify.runs.records import HELD_OUT_SCORES, Member
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


ZeroPoints = Sequence[Sequence[float]] | None  # of each pair's labels, with several labels a row


def first_generation(
    plan: Plan, pair_weights: Sequence[float], keep_weights: bool = False, zero_points: ZeroPoints = None
) -> list[MemberSpec]:
    """Every pair with every seed, trained on T alone: the members of PET, and of iPET's M^0."""
    best = np.argsort([-weight for weight in pair_weights], kind="stable")[: plan.recipe.max_pairs]
    return [
        MemberSpec(pair, seed, keep_weights=keep_weights, zero_points=_of_pair(zero_points, pair))
        for pair, seeds in enumerate(plan.seeds(len(plan.task.pairs)))
        for seed in seeds
        if pair in best
    ]


def _of_pair(zero_points: ZeroPoints, pair: int) -> tuple[float, ...] | None:
    return None if zero_points is None else tuple(zero_points[pair])


def choose_member_thresholds(
    run: Run, pair_weights: Sequence[float], zero_points: ZeroPoints
) -> tuple[Decision, HeldOutLabelSets | None]:
    """How members' scores become labels; with several a row, by thresholds from members of the best pair on folds.

    Also returns the scores of the folds, with several labels a row.
    """
    folds = make_folds(run.plan)
    if not folds:
        return decide_without_folds(run), None
    best = int(np.argmax(pair_weights))
    seed = run.plan.seeds(len(run.plan.task.pairs))[best][0]
    specs = [
        MemberSpec(best, seed, score_unlabeled=False, zero_points=_of_pair(zero_points, best), fold=fold)
        for fold in folds
    ]
    paths: list[Path] = [member.folder for member in train_members(run, specs, "thresholds")]
    return decide_by_folds(run, folds, paths)


def train_members(run: Run, specs: Sequence[MemberSpec], group: str | None = None) -> list[Member]:
    """Fine-tune the members from the pretrained weights; their scores are written to the run's folder.

    `group` names the members in the log, such as "generation 1".
    """
    plan, folder = run.plan, run.folder
    members, jobs = list[Member](), list[MemberJob]()
    is_sharded = bool(shard_spans(run))
    for number, of_run in enumerate(specs, start=1):
        spec = replace(of_run, model=run.model)
        key = _find_key(run, spec)
        path = folder.job_path("members", key)
        members.append(Member(spec.pair, spec.seed, path, spec.score_unlabeled, spec.zero_points))
        title = "member" if group is None else f"{group}, member"
        name = f"{title} {number}/{len(specs)}  {plan.task.pairs[spec.pair].name}  seed {spec.seed}"
        if folder.has_job("members", key, run.context.log):
            run.context.log(f"{name}  already done")
        else:
            shards = is_sharded and spec.score_unlabeled and not spec.keep_weights and spec.model is None
            jobs.append(MemberJob(name, key, spec, shards))
    sharded_scoring = ShardedScoring(run)

    def on_done(job: Job, _: JobResult) -> Sequence[Job]:
        if isinstance(job, ShardJob):
            sharded_scoring.complete(job)
        elif isinstance(job, MemberJob) and job.is_sharded:
            return sharded_scoring.start(job.name, job.key, job.spec.pair, job.spec.seed, job.spec.zero_points)
        return ()

    run.run_jobs(jobs, group or "members", on_done)
    return members


def _member_settings(plan: Plan) -> Training:
    return plan.recipe.member_settings(plan.with_lm)


def _key(run: Run, spec: MemberSpec) -> str:
    plan = run.plan
    pair = plan.task.pairs[spec.pair]
    return job_key(
        "finetune",
        pattern=pair.pattern.text,
        words=plan.key_words(pair.verbalizer),
        seed=spec.seed,
        drawn=None if spec.drawn is None else spec.drawn.key,
        settings=_member_settings(plan).model_dump(),
        with_lm=plan.with_lm,
        balance=plan.recipe.balance,
        attention_dropout=plan.recipe.attention_dropout,
        score_unlabeled=spec.score_unlabeled,
        keep_weights=spec.keep_weights,
        **(MEMBER_SCOPE if spec.keep_weights else {}),
        adapter=plan.recipe.adapter.model_dump(mode="json"),
        **({} if spec.fold is None else {"fold": [spec.fold.index, spec.fold.count, plan.recipe.seed]}),
        **scores_inputs(run),
    )


def _find_key(run: Run, spec: MemberSpec) -> str:
    """The member's key, or that of a member in the folder for which the same and more was written."""
    scored = replace(spec, score_unlabeled=True)
    key = _key(run, spec)
    for superset in (scored, replace(spec, keep_weights=True), replace(scored, keep_weights=True)):
        other = _key(run, superset)
        key = other if run.folder.has_job("members", other, run.context.log) else key
    return key


@dataclass(frozen=True)
class MemberJob:
    """Trains one member and writes its scores; where scoring is sharded, those of the test rows alone."""

    name: str
    key: str
    spec: MemberSpec
    is_sharded: bool = False

    def run(self, worker: Worker) -> JobResult:
        """Fine-tune the pretrained model, score rows with it, and write both to the run's folder."""
        worker = worker.for_model(self.spec.model)
        kind = "trained" if self.is_sharded else "members"
        if self.is_sharded and worker.folder.has_job(kind, self.key):
            return JobResult("already trained")
        plan, spec, started = worker.plan, self.spec, time.monotonic()
        losses, dev_scores, training_rows = _finetune(worker, spec, self.name)
        training_seconds = time.monotonic() - started
        if self.is_sharded:
            save_trained_weights(worker, self.key)
        with worker.folder.writing(kind, self.key) as tmp_path:
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
            seconds = time.monotonic() - started
            record = {
                "pair": plan.task.pairs[spec.pair].name,
                "pattern": plan.task.pairs[spec.pair].pattern.text,
                "seed": spec.seed,
                "rows": training_rows,
                "loss": losses,
                "dev": dev_scores,
                "training_seconds": training_seconds,
                "seconds": seconds,
            }
            (tmp_path / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
        loss = losses[-1] if losses else float("nan")
        on_dev = f"  dev {100 * max(dev_scores):.1f}" if dev_scores else ""
        speed = _member_settings(plan).steps(training_rows) / max(training_seconds, 1e-9)
        return JobResult(f"loss {loss:.4f}{on_dev}  {speed:.1f} steps/s  {seconds:,.0f} s with scoring")


def _finetune(worker: Worker, spec: MemberSpec, name: str) -> tuple[list[float], list[float], int]:
    """Train the worker's model; returns the losses, the metric on the development rows and the number of rows."""
    plan, model = worker.plan, worker.pretrained_model(spec.seed)
    prompts = worker.prompts.for_pair(spec.pair, spec.zero_points)
    (pattern,) = prompts.patterns
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
    length = min(plan.recipe.max_seq_length, model.max_length)
    settings = _member_settings(plan)

    def score_dev() -> NDArray[np.float32]:
        scores: NDArray[np.float32] = score_data_set(worker, prompts, "dev")[0]
        return scores

    with worker.monitor(name, settings.steps(len(labels)), score_dev) as (monitor, dev_scores):
        setup = TrainingSetup(
            settings, seed_everything(spec.seed), worker.context.accelerator, monitor, plan.recipe.balance
        )
        losses = finetune(
            model,
            pattern.words[0],
            EncodedRows(pattern.template, tokens, length),
            labels,
            EncodedRows(pattern.template, unlabeled, length) if plan.with_lm and unlabeled is not None else None,
            setup,
        )
    return losses, dev_scores, len(labels)


def evaluate_ensemble(
    plan: Plan, members: Sequence[Member], weights: Sequence[float], decision: Decision
) -> Evaluation:
    """The ensemble's metrics on the test rows."""
    scores = combine_scores([member.test_scores() for member in members], weights)  # (rows, labels)
    return _evaluate_scores(plan, scores, decision)


def _evaluate_scores(plan: Plan, scores: NDArray[Any], decision: Decision) -> Evaluation:
    assert plan.test is not None
    probabilities = decision.probabilities(scores)
    predicted, task = decision.predict(probabilities), plan.task
    return detailed_metrics(plan.test.targets, probabilities, task.labels, task.label_groups, predicted)


def evaluate_members(plan: Plan, members: Sequence[Member], decision: Decision) -> MembersMetrics:
    """Each member's metrics on the test rows, each pair's mean over its seeds, and the worst and the best pair."""
    each = []
    for member in members:
        evaluation = _evaluate_scores(plan, member.test_scores(), decision)
        pair = plan.task.pairs[member.pair].name
        detail = {"confusion", "labels"} if evaluation.confusion is not None else set()
        metrics = evaluation.model_dump(include={"accuracy", "macro_f1", "micro_f1", "calibration_error"} | detail)
        each.append(MemberMetrics(pair=pair, seed=member.seed, job=member.job, **metrics))
    pairs = {}
    for pair in dict.fromkeys(member.pair for member in each):
        seeds = [member for member in each if member.pair == pair]
        pairs[pair] = BasicMetrics(
            accuracy=float(np.mean([member.accuracy for member in seeds])),
            macro_f1=float(np.mean([member.macro_f1 for member in seeds])),
            micro_f1=mean_micro_f1(seeds),
        )
    accuracies = [pair.main for pair in pairs.values()]
    return MembersMetrics(
        accuracy=float(np.mean([member.accuracy for member in each])),
        macro_f1=float(np.mean([member.macro_f1 for member in each])),
        micro_f1=mean_micro_f1(each),
        min=min(accuracies),
        max=max(accuracies),
        pairs=pairs,
        each=each,
    )
