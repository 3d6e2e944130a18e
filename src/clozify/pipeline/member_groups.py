"""Members that are trained in one batch: LoRA adapters of one frozen model (`methods/finetune_group.py`).

The groups depend on the members of the plan alone, not on those that an earlier run has finished. A group of which some
are finished is trained as a whole again, and the missing ones are written, since dropout is drawn for a whole group: a
run that was stopped ends with the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from clozify.executors.accelerate_launch import launched_processes
from clozify.methods.finetune_group import GroupMember, TrainedAdapter, finetune_group
from clozify.models.cloze import ClozeModel
from clozify.models.lora_group import supports_groups
from clozify.pipeline.member_jobs import MemberJob, encode_member_rows, member_settings
from clozify.pipeline.run import Run
from clozify.runs.jobs import Job, JobResult
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup
from clozify.utils.progress import progress

MEMBERS_ON_GPU = 6  # in a batch, where the recipe leaves it open


def jobs_of(job: Job) -> tuple[MemberJob, ...]:
    """The members that a job trains; none where it is another kind of job."""
    if isinstance(job, GroupJob):
        return job.members
    return (job,) if isinstance(job, MemberJob) else ()


def group_jobs(run: Run, jobs: Sequence[MemberJob], done: set[str]) -> list[Job]:
    """The jobs that train these members, in groups where that is possible; `done` are keys of finished members."""
    plan = run.plan
    settings = member_settings(plan)
    size = _group_size(run, len(jobs))

    def schedule(job: MemberJob) -> tuple[int, int | None]:
        rows = job.spec.training_rows(plan)
        return settings.steps(rows), settings.decay_steps(rows)

    result: list[Job] = []
    for _, same_schedule in groupby(jobs, schedule):
        of_schedule = list(same_schedule)
        for indices in np.array_split(np.arange(len(of_schedule)), -(-len(of_schedule) // size)):
            members = tuple(of_schedule[index] for index in indices)
            missing = [job for job in members if job.key not in done]
            if missing:
                result.append(missing[0] if len(members) == 1 else GroupJob(members, frozenset(done)))
    return result


def _group_size(run: Run, members: int) -> int:
    """The number of members in a batch: all workers get some; 1 where members are trained one after the other."""
    plan, adapter = run.plan, run.plan.recipe.adapter
    is_alone = plan.dev is not None or plan.is_generative or member_settings(plan).frozen_layers > 0
    if adapter.method == "none" or is_alone or launched_processes() > 1:
        return 1
    most = adapter.members_at_once or (MEMBERS_ON_GPU if run.context.device.startswith("cuda") else 1)
    return max(1, min(most, -(-members // run.executor.workers)))


@dataclass(frozen=True)
class GroupJob:
    """Trains several members in one batch, then scores rows with one after the other."""

    members: tuple[MemberJob, ...]
    done: frozenset[str] = frozenset()  # keys of members that an earlier run has finished

    @property
    def name(self) -> str:
        """The job's name in the log, such as 'member 1/12 to 6/12'."""
        first, last = (job.name.split("  ")[0] for job in (self.members[0], self.members[-1]))
        return f"{first} to {last.split()[-1]}"

    def run(self, worker: Worker) -> JobResult:
        """Train all members, and write those that are missing to the run's folder."""
        worker = worker.for_model(self.members[0].spec.model)
        missing = {job.key: job for job in self.members if job.key not in self.done and not job.is_trained(worker)}
        if not missing:
            return JobResult("already trained")
        model = worker.pretrained_model(self.members[0].spec.seed)
        if not isinstance(model, ClozeModel) or not supports_groups(model):
            summaries = [job.run(worker).summary for job in missing.values()]
            return JobResult(f"{'; '.join(summaries)}  one by one: this model's members cannot share a batch")
        started = time.monotonic()
        adapters, at_once = _train(worker, self.members)
        training_seconds = (time.monotonic() - started) / len(self.members)
        for job, adapter in zip(self.members, adapters, strict=True):
            if job.key in missing:
                worker.pretrained_model(job.spec.seed)
                worker.model.model.load_state_dict(adapter.weights, strict=False)  # the other weights are frozen
                job.score_and_write(worker, adapter.losses, [], training_seconds)
        steps = member_settings(worker.plan).steps(self.members[0].spec.training_rows(worker.plan))
        shown = ", ".join(f"{adapter.losses[-1]:.4f}" if adapter.losses else "nan" for adapter in adapters)
        fewer = "" if at_once == len(self.members) else f"  {at_once} at once, since memory was short"
        return JobResult(
            f"losses {shown}  {steps / max(training_seconds, 1e-9):.1f} steps/s over all members{fewer}  "
            f"{time.monotonic() - started:,.0f} s with scoring"
        )


def _train(worker: Worker, jobs: Sequence[MemberJob]) -> tuple[list[TrainedAdapter], int]:
    """Train members in one batch, or where memory does not suffice in halves; also returns the largest batch's size."""
    try:
        return _train_together(worker, jobs), len(jobs)
    except torch.OutOfMemoryError:
        if len(jobs) == 1:
            raise
    torch.cuda.empty_cache()  # not in the handler: the exception keeps the batch's tensors
    middle = -(-len(jobs) // 2)
    (first, size), (second, _) = _train(worker, jobs[:middle]), _train(worker, jobs[middle:])
    return first + second, size


def _train_together(worker: Worker, jobs: Sequence[MemberJob]) -> list[TrainedAdapter]:
    plan, tracking, settings = worker.plan, worker.context.tracking, member_settings(worker.plan)
    members = []
    for job in jobs:
        rng = np.random.default_rng(job.spec.seed)  # the order of rows, as for a member alone
        setup = TrainingSetup(settings, rng, worker.context.accelerator, balance=plan.recipe.balance)
        members.append(GroupMember(*encode_member_rows(worker, job.spec), job.spec.seed, setup))
    done = 0
    with progress(f"{len(jobs)} members", settings.steps(len(members[0].labels)), "steps") as advance:

        def on_step(step: int, losses: Sequence[float]) -> None:
            nonlocal done
            advance(step - done)
            done = step
            for job, loss in zip(jobs, losses, strict=True):
                tracking.log_loss(job.name, step, loss)

        return finetune_group(worker.cloze_model, members, on_step)
