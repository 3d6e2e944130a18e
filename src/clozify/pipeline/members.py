"""The ensemble's members: every pair times every seed (section 3.3, step 1), and the pairs before any training.

In: a run's worker. Out: for each member its raw scores of the pile and the test rows. Scores are the artifact, not the
model: a member's weights are dropped once it has scored, unless they are the result.
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
from scipy.special import softmax

from clozify.config.recipe import Training
from clozify.data.rows import Rows
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.metrics import basic_metrics, detailed_metrics
from clozify.models.lora import save_adapter
from clozify.models.task_prompts import TaskPrompts
from clozify.pipeline.run import Run
from clozify.pipeline.sharded_scoring import Labelling, ShardJob, put_aside, shards_of
from clozify.pipeline.token_cache import keep_few, keep_pile
from clozify.prompts.encode import EncodedRows
from clozify.prompts.tokenizer import RaggedTokens
from clozify.runs.jobs import Job, JobResult
from clozify.runs.keys import hash_key, job_key, prompt_key
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup, seed_everything
from clozify.utils.npy import cast_scores, npy_writer


def untrained(run: Run) -> dict[str, Any]:
    """Every pair's accuracy before any training: on T, for the weights; on the test rows, the paper's lines 1 and 2."""
    plan, folder = run.plan, run.folder
    pairs = [[pair.pattern.text, pair.verbalizer.model_dump()] for pair in plan.task.pairs]
    truth = None if plan.test is None else hash_key(labels=plan.test.labels.tolist())
    key = job_key("untrained", pairs=pairs, truth=truth, **prompt_key(plan, run.context.device))
    place = folder.job_path("untrained", key) / "untrained.json"
    if not place.exists():
        run.context.log("scoring the labelled and test rows before training")
        started = time.monotonic()
        found: dict[str, Any] = {}
        for name, rows in (("labeled", plan.labeled), ("test", plan.test)):
            if rows is None or len(rows) == 0:
                continue
            scores = _scored(run.worker, run.worker.prompts, rows)
            each = [
                basic_metrics(rows.labels, of_pair.argmax(axis=-1), scores.shape[-1]).model_dump() for of_pair in scores
            ]
            if name == "labeled":
                found["accuracy_on_labeled"] = [result["accuracy"] for result in each]
            else:
                found["test"] = {
                    metric: float(np.mean([result[metric] for result in each])) for metric in ("accuracy", "macro_f1")
                } | {"best": max(result["accuracy"] for result in each), "pairs": each}
        found["seconds"] = time.monotonic() - started
        with folder.writing("untrained", key) as beside:
            (beside / "untrained.json").write_text(json.dumps(found, indent=2))
    result: dict[str, Any] = json.loads(place.read_text())
    return result | {"job": key}


def _scored(worker: Worker, questions: TaskPrompts, rows: Rows) -> NDArray[np.float32]:
    parts = [part for _, part in score_rows(worker.model, questions, rows, worker.plan.recipe.max_seq_length)]
    return np.concatenate(parts, axis=1)


def _write_scores(worker: Worker, question: TaskPrompts, folder: Path, pile: bool) -> None:
    """A pair's scores of the pile (unless nobody asks for them) and of the test rows, a stretch at a time."""
    plan, labels = worker.plan, len(worker.plan.task.labels)
    if pile:
        assert plan.unlabeled is not None
        keep_pile(worker)
        kind = plan.recipe.scores_dtype
        with npy_writer(folder / "pile.npy", kind, labels) as append:
            for _, part in score_rows(worker.model, question, plan.unlabeled, plan.recipe.max_seq_length):
                append(cast_scores(part[0], kind))
    if plan.test is not None:
        keep_few(worker, plan.test)
        np.save(folder / "test.npy", _scored(worker, question, plan.test)[0])


def untrained_on_pile(run: Run) -> list[dict[str, Any]]:
    """The pairs themselves as members, M^0 of zero-shot iPET: each scores the pile once, whatever the seeds."""
    plan, folder = run.plan, run.folder
    assert plan.unlabeled is not None
    members: list[dict[str, Any]] = []
    works: list[UntrainedJob] = []
    for place, pair in enumerate(plan.task.pairs):
        words = pair.verbalizer.words
        key = job_key("untrained pile", pattern=pair.pattern.text, words=words, **_scores_key(run))
        members.append({"pair": place, "seed": None, "folder": folder.job_path("untrained", key)})
        name = f"untrained {place + 1}/{len(plan.task.pairs)}  {pair.name}"
        if (folder.job_path("untrained", key) / "pile.npy").exists():
            run.context.log(f"{name}  already there")
        else:
            works.append(UntrainedJob(name, key, place))
    run.run_jobs(works, "the untrained pairs")
    return members


@dataclass(frozen=True)
class UntrainedJob:
    """The work of scoring the pile with a pair before any training."""

    name: str
    key: str
    pair: int

    def run(self, worker: Worker) -> JobResult:
        """Score the pile and the test rows; returns what to say of it."""
        started = time.monotonic()
        worker.pretrained_model(0)
        with worker.folder.writing("untrained", self.key) as beside:
            _write_scores(worker, worker.prompts.for_pair(self.pair), beside, pile=True)
        return JobResult(f"scored the pile in {time.monotonic() - started:,.0f} s")


@dataclass(frozen=True)
class Drawn:
    """Rows of the pile with the labels that other members gave them (section 3.4)."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int16]

    @property
    def key(self) -> str:
        """What was drawn, for a job's key."""
        return hash_key(rows=self.rows.tolist(), labels=self.labels.tolist())


@dataclass(frozen=True)
class MemberSpec:
    """A member to be: a pair, a seed, and a training set, which is T and what was drawn for it."""

    pair: int  # its place in `task.pairs`
    seed: int
    drawn: Drawn | None = None
    score_pile: bool = True
    keep: bool = False  # its weights, where they are the result


def first_jobs(plan: Plan, score_pile: bool = True, keep: bool = False) -> list[MemberSpec]:
    """Every pair times every seed, on T alone."""
    seeds = plan.seeds(len(plan.task.pairs))
    return [MemberSpec(pair, seed, None, score_pile, keep) for pair, of_pair in enumerate(seeds) for seed in of_pair]


def train_members(run: Run, specs: Sequence[MemberSpec], what: str = "member") -> list[dict[str, Any]]:
    """Each job fine-tuned from the pretrained weights, its scores of the pile and the test rows kept."""
    plan, folder = run.plan, run.folder
    members: list[dict[str, Any]] = []
    works: list[MemberJob] = []
    split = bool(shards_of(run))
    for number, job in enumerate(specs, start=1):
        key = _key(run, job)
        scored = replace(job, score_pile=True)
        for more in (scored, replace(job, keep=True), replace(scored, keep=True)):  # one that did more will do
            other = _key(run, more)
            key = other if (folder.job_path("members", other) / "member.json").exists() else key
        members.append({"pair": job.pair, "seed": job.seed, "folder": folder.job_path("members", key)})
        name = f"{what} {number}/{len(specs)}  {plan.task.pairs[job.pair].name}  seed {job.seed}"
        if (folder.job_path("members", key) / "member.json").exists():
            run.context.log(f"{name}  already there")
        else:
            works.append(MemberJob(name, key, job, split and job.score_pile and not job.keep))
    labelling = Labelling(run)

    def then(done: Job, _: JobResult) -> list[Job]:
        if isinstance(done, ShardJob):
            labelling.end(done)
        elif isinstance(done, MemberJob) and done.split:
            return labelling.begin(done.name, done.key, done.job.pair, done.job.seed)
        return []

    run.run_jobs(works, "members" if what == "member" else what.split(", ")[0], then)
    return members


def _section(plan: Plan) -> Training:
    return plan.recipe.member_settings(plan.with_lm)


def _scores_key(run: Run) -> dict[str, Any]:
    """What every job that scores the pile depends on; scores are of float32 unless others are asked for."""
    return prompt_key(run.plan, run.context.device) | {"scores_dtype": run.plan.recipe.scores_dtype}


def _key(run: Run, job: MemberSpec) -> str:
    plan = run.plan
    pair = plan.task.pairs[job.pair]
    return job_key(
        "finetune",
        pattern=pair.pattern.text,
        words=pair.verbalizer.words,
        seed=job.seed,
        drawn=None if job.drawn is None else job.drawn.key,
        settings=_section(plan).model_dump(),
        with_lm=plan.with_lm,
        balance=plan.recipe.balance,
        attention_dropout=plan.recipe.attention_dropout,
        score_pile=job.score_pile,
        keep=job.keep,
        **({} if plan.recipe.adapter.method == "none" else {"adapter": plan.recipe.adapter.model_dump(mode="json")}),
        **_scores_key(run),
    )


@dataclass(frozen=True)
class MemberJob:
    """The work of training one member and writing what it scored; where this is split, of the test rows alone."""

    name: str
    key: str
    job: MemberSpec
    split: bool = False

    def run(self, worker: Worker) -> JobResult:
        """Train it from the pretrained weights; returns what to say of it."""
        if self.split and (worker.folder.job_path("trained", self.key) / "member.json").exists():
            return JobResult("already trained")
        return _train_member(worker, self)


def _train_member(worker: Worker, work: MemberJob) -> JobResult:
    job, started = work.job, time.monotonic()
    plan, prompts, model = worker.plan, worker.prompts, worker.pretrained_model(job.seed)
    question = prompts.for_pair(job.pair)
    template = question.patterns[0].template
    length = min(plan.recipe.max_seq_length, model.max_length)
    columns, labels = prompts.keep(model, plan.labeled), plan.labeled.labels
    pile = keep_pile(worker) if plan.unlabeled is not None else None
    if job.drawn is not None:
        assert pile is not None
        columns = {
            column: RaggedTokens.concat(columns[column], pile[column].select(job.drawn.rows)) for column in columns
        }
        labels = np.concatenate([labels, job.drawn.labels])

    def on_dev() -> NDArray[np.float32]:
        assert plan.dev is not None
        keep_few(worker, plan.dev)
        return _scored(worker, question, plan.dev)[0]  # type: ignore[no-any-return]

    steps = _section(plan).steps(len(labels))
    with worker.monitor(work.name, steps, on_dev) as (monitor, looks):
        setup = TrainingSetup(
            _section(plan), seed_everything(job.seed), worker.context.accelerator, monitor, plan.recipe.balance
        )
        course = finetune(
            model,
            question.patterns[0].words[0],
            EncodedRows(template, columns, length),
            labels,
            EncodedRows(template, pile, length) if plan.with_lm and pile is not None else None,
            setup,
        )
    trained = time.monotonic() - started
    if work.split:
        put_aside(worker, work.key)
    with worker.folder.writing("trained" if work.split else "members", work.key) as beside:
        _write_scores(worker, question, beside, job.score_pile and plan.unlabeled is not None and not work.split)
        if job.keep and model.has_adapter:
            save_adapter(model.model, beside / "model", plan.base)
        elif job.keep:
            model.save(beside / "model")
        description = {
            "pair": plan.task.pairs[job.pair].name,
            "pattern": plan.task.pairs[job.pair].pattern.text,
            "seed": job.seed,
            "rows": len(labels),
            "loss": course,
            "dev": looks,
            "training_seconds": trained,
            "seconds": time.monotonic() - started,
        }
        (beside / "member.json").write_text(json.dumps(description, indent=2))
    loss = course[-1] if course else float("nan")
    on_dev_rows = f"  dev {100 * max(looks):.1f}" if looks else ""
    speed = steps / max(trained, 1e-9)
    return JobResult(f"loss {loss:.4f}{on_dev_rows}  {speed:.1f} steps/s  {description['seconds']:,.0f} s with scoring")


def member_metrics(plan: Plan, members: list[dict[str, Any]], truth: NDArray[np.int16]) -> dict[str, Any]:
    """Each member's numbers on the test rows, each pair's mean, and the worst and the best pair."""
    each = []
    for member in members:
        scores = np.load(member["folder"] / "test.npy")
        result = detailed_metrics(truth, softmax(scores, axis=-1), plan.task.labels).model_dump()
        job = f"{member['folder'].parent.name}/{member['folder'].name}"
        each.append({"pair": plan.task.pairs[member["pair"]].name, "seed": member["seed"], "job": job, **result})
    pairs = {
        pair.name: {
            metric: float(np.mean([m[metric] for m in each if m["pair"] == pair.name]))
            for metric in ("accuracy", "macro_f1")
        }
        for pair in plan.task.pairs
    }
    accuracies = [of_pair["accuracy"] for of_pair in pairs.values()]
    return {
        "accuracy": float(np.mean([m["accuracy"] for m in each])),
        "macro_f1": float(np.mean([m["macro_f1"] for m in each])),
        "min": min(accuracies),
        "max": max(accuracies),
        "pairs": pairs,
        "each": each,
    }
