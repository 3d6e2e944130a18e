"""The ensemble's members: a fine-tuned model for every pair and seed (section 3.3, step 1).

What is kept of a member are its raw scores of the unlabelled and the test rows. Its weights are kept only where the
ensemble itself is the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clozify.config.recipe import Training
from clozify.methods.ensemble import combine_scores
from clozify.methods.finetune import finetune
from clozify.metrics import BasicMetrics, Evaluation, detailed_metrics
from clozify.models.lora import save_adapter
from clozify.pipeline.run import Run
from clozify.pipeline.scoring import score_data_set, write_scores
from clozify.pipeline.sharded_scoring import ShardedScoring, ShardJob, save_trained_weights, shard_spans
from clozify.pipeline.token_cache import labeled_tokens, unlabeled_tokens
from clozify.pipeline.untrained import scores_inputs
from clozify.prompts.encode import EncodedRows
from clozify.prompts.tokenizer import RaggedTokens
from clozify.runs.jobs import Job, JobResult
from clozify.runs.keys import hash_key, job_key
from clozify.runs.metrics import MemberMetrics, MembersMetrics
from clozify.runs.plan import Plan
from clozify.runs.records import Member
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup, seed_everything

RECORD = "member.json"


@dataclass(frozen=True)
class DrawnRows:
    """Unlabelled rows with the labels that other members gave them (section 3.4)."""

    rows: NDArray[np.int64]  # indices of unlabelled rows
    labels: NDArray[np.int16]

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


def first_generation(plan: Plan, pair_weights: Sequence[float], keep_weights: bool = False) -> list[MemberSpec]:
    """Every pair with every seed, trained on T alone: the members of PET, and of iPET's M^0."""
    best = np.argsort([-weight for weight in pair_weights], kind="stable")[: plan.recipe.max_pairs]
    return [
        MemberSpec(pair, seed, keep_weights=keep_weights)
        for pair, seeds in enumerate(plan.seeds(len(plan.task.pairs)))
        for seed in seeds
        if pair in best
    ]


def train_members(run: Run, specs: Sequence[MemberSpec], group: str | None = None) -> list[Member]:
    """Fine-tune the members from the pretrained weights; their scores are written to the run's folder.

    `group` names the members in the log, such as "generation 1".
    """
    plan, folder = run.plan, run.folder
    members, jobs = list[Member](), list[MemberJob]()
    is_sharded = bool(shard_spans(run))
    for number, spec in enumerate(specs, start=1):
        key = _find_key(run, spec)
        members.append(Member(spec.pair, spec.seed, folder.job_path("members", key), spec.score_unlabeled))
        title = "member" if group is None else f"{group}, member"
        name = f"{title} {number}/{len(specs)}  {plan.task.pairs[spec.pair].name}  seed {spec.seed}"
        if folder.has_job("members", key, run.context.log):
            run.context.log(f"{name}  already done")
        else:
            jobs.append(MemberJob(name, key, spec, is_sharded and spec.score_unlabeled and not spec.keep_weights))
    sharded_scoring = ShardedScoring(run)

    def on_done(job: Job, _: JobResult) -> Sequence[Job]:
        if isinstance(job, ShardJob):
            sharded_scoring.complete(job)
        elif isinstance(job, MemberJob) and job.is_sharded:
            return sharded_scoring.start(job.name, job.key, job.spec.pair, job.spec.seed)
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
        adapter=plan.recipe.adapter.model_dump(mode="json"),
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
        kind = "trained" if self.is_sharded else "members"
        if self.is_sharded and worker.folder.has_job(kind, self.key):
            return JobResult("already trained")
        plan, spec, started = worker.plan, self.spec, time.monotonic()
        losses, dev_scores, training_rows = _finetune(worker, spec, self.name)
        training_seconds = time.monotonic() - started
        if self.is_sharded:
            save_trained_weights(worker, self.key)
        with worker.folder.writing(kind, self.key) as tmp_path:
            score_unlabeled = spec.score_unlabeled and plan.unlabeled is not None and not self.is_sharded
            write_scores(worker, worker.prompts.for_pair(spec.pair), tmp_path, score_unlabeled)
            if spec.keep_weights and worker.model.has_adapter:
                save_adapter(worker.model.model, tmp_path / "model", plan.base)
            elif spec.keep_weights:
                worker.model.save(tmp_path / "model")
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
    prompts = worker.prompts.for_pair(spec.pair)
    (pattern,) = prompts.patterns
    tokens, labels = labeled_tokens(worker), plan.labeled.labels
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


def evaluate_ensemble(plan: Plan, members: Sequence[Member], weights: Sequence[float]) -> Evaluation:
    """The ensemble's metrics on the test rows."""
    assert plan.test is not None
    scores = combine_scores([member.test_scores() for member in members], weights)  # (rows, labels)
    task = plan.task
    return detailed_metrics(plan.test.labels, softmax(scores, axis=-1), task.labels, task.label_groups)


def evaluate_members(plan: Plan, members: Sequence[Member]) -> MembersMetrics:
    """Each member's metrics on the test rows, each pair's mean over its seeds, and the worst and the best pair."""
    assert plan.test is not None
    each = []
    for member in members:
        evaluation = detailed_metrics(plan.test.labels, softmax(member.test_scores(), axis=-1), plan.task.labels)
        pair = plan.task.pairs[member.pair].name
        detail = {"confusion", "labels"} if evaluation.confusion is not None else set()
        metrics = evaluation.model_dump(include={"accuracy", "macro_f1", "calibration_error"} | detail)
        each.append(MemberMetrics(pair=pair, seed=member.seed, job=member.job, **metrics))
    pairs = {}
    for pair in dict.fromkeys(member.pair for member in each):
        seeds = [member for member in each if member.pair == pair]
        pairs[pair] = BasicMetrics(
            accuracy=float(np.mean([member.accuracy for member in seeds])),
            macro_f1=float(np.mean([member.macro_f1 for member in seeds])),
        )
    accuracies = [pair.accuracy for pair in pairs.values()]
    return MembersMetrics(
        accuracy=float(np.mean([member.accuracy for member in each])),
        macro_f1=float(np.mean([member.macro_f1 for member in each])),
        min=min(accuracies),
        max=max(accuracies),
        pairs=pairs,
        each=each,
    )
