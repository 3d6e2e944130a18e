"""The ensemble's members: a fine-tuned model for every pair and seed (section 3.3, step 1).

What is kept of a member are its raw scores of the unlabelled and the test rows. Its weights are kept only where the
ensemble itself is the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.data.decision import Decision
from clozify.methods.ensemble import combine_scores
from clozify.methods.label_set_reliability import HeldOutLabelSets
from clozify.metrics import BasicMetrics, Evaluation, detailed_metrics, mean_micro_f1
from clozify.pipeline.folds import make_folds
from clozify.pipeline.member_groups import GroupJob, group_members, jobs_of
from clozify.pipeline.member_jobs import MemberJob, MemberSpec
from clozify.pipeline.run import Run
from clozify.pipeline.scope import MEMBER_SCOPE
from clozify.pipeline.sharded_scoring import ShardedScoring, ShardJob, shard_spans
from clozify.pipeline.thresholds import decide_by_folds, decide_without_folds
from clozify.pipeline.token_cache import tokenizing_in_background
from clozify.pipeline.untrained import scores_inputs
from clozify.runs.jobs import Job, JobResult
from clozify.runs.keys import job_key
from clozify.runs.metrics import MemberMetrics, MembersMetrics
from clozify.runs.plan import Plan
from clozify.runs.records import Member

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
    plan, folder, title = run.plan, run.folder, "member" if group is None else f"{group}, member"
    members, remaining, done = list[Member](), list[Job](), set[str]()
    is_sharded = bool(shard_spans(run))
    for batch in group_members(run, [replace(spec, model=run.model) for spec in specs]):
        jobs, batch_keys = list[MemberJob](), _batch_keys(run, batch)
        for spec in batch:
            key = _find_key(run, spec, batch_keys)
            path = folder.job_path("members", key)
            members.append(Member(spec.pair, spec.seed, path, spec.score_unlabeled, spec.zero_points))
            name = f"{title} {len(members)}/{len(specs)}  {plan.task.pairs[spec.pair].name}  seed {spec.seed}"
            shards = is_sharded and spec.score_unlabeled and not spec.keep_weights and spec.model is None
            jobs.append(MemberJob(name, key, spec, shards))
            if folder.has_job("members", key, run.context.log):
                run.context.log(f"{name}  already done")
                done.add(key)
        if any(job.key not in done for job in jobs):
            remaining.append(jobs[0] if len(jobs) == 1 else GroupJob(tuple(jobs)))
    sharded_scoring = ShardedScoring(run)

    def on_done(job: Job, _: JobResult) -> Sequence[Job]:
        if isinstance(job, ShardJob):
            sharded_scoring.complete(job)
        following = list[Job]()
        for each in jobs_of(job):
            if each.is_sharded and each.key not in done:
                following += sharded_scoring.start(
                    each.name, each.key, each.spec.pair, each.spec.seed, each.spec.zero_points
                )
        return following

    with tokenizing_in_background(run.worker) if remaining else nullcontext():
        run.run_jobs(remaining, group or "members", on_done)
    return members


def _key(run: Run, spec: MemberSpec, batch: list[str] | None = None) -> str:
    plan = run.plan
    pair = plan.task.pairs[spec.pair]
    return job_key(
        "finetune",
        pattern=pair.pattern.text,
        words=plan.key_words(pair.verbalizer),
        seed=spec.seed,
        drawn=None if spec.drawn is None else spec.drawn.key,
        settings=plan.recipe.member_settings(plan.with_lm).model_dump(),
        with_lm=plan.with_lm,
        balance=plan.recipe.balance,
        attention_dropout=plan.recipe.attention_dropout,
        score_unlabeled=spec.score_unlabeled,
        keep_weights=spec.keep_weights,
        **(MEMBER_SCOPE if spec.keep_weights else {}),
        adapter=plan.recipe.adapter.model_dump(mode="json", exclude={"members_at_once"}),
        **({} if spec.fold is None else {"fold": [spec.fold.index, spec.fold.count, plan.recipe.seed]}),
        **({} if batch is None else {"batch": batch}),
        **scores_inputs(run),
    )


def _batch_keys(run: Run, batch: Sequence[MemberSpec]) -> list[str] | None:
    """What identifies the members that are trained in one batch, whatever is written of each; None for one alone."""
    if len(batch) == 1:
        return None
    return [_key(run, replace(spec, score_unlabeled=True, keep_weights=False)) for spec in batch]


def _find_key(run: Run, spec: MemberSpec, batch: list[str] | None) -> str:
    """The member's key, or that of a member in the folder for which the same and more was written."""
    scored = replace(spec, score_unlabeled=True)
    key = _key(run, spec, batch)
    for superset in (scored, replace(spec, keep_weights=True), replace(scored, keep_weights=True)):
        other = _key(run, superset, batch)
        key = other if run.folder.has_job("members", other, run.context.log) else key
    return key


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
