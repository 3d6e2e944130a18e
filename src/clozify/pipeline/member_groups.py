"""Members that are trained in one batch: LoRA adapters of one frozen model (`methods/finetune_group.py`).

Dropout is drawn for a whole group, so a member's key holds its group. The groups depend on the plan and on the number
of workers, not on what an earlier run has finished: of a group that was stopped all members are trained again, and the
missing ones are written, so a run that resumes on the same devices ends with the same numbers.
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
from clozify.pipeline.member_jobs import MemberJob, MemberSpec, encode_member_rows, member_settings
from clozify.pipeline.run import Run
from clozify.runs.jobs import Job, JobResult
from clozify.runs.plan import Plan
from clozify.runs.worker import Worker
from clozify.training.loop import TrainingSetup
from clozify.utils.progress import progress

MEMBERS_ON_GPU = 6  # in a batch, where the recipe leaves it open


def jobs_of(job: Job) -> tuple[MemberJob, ...]:
    """The members that a job trains; none where it is another kind of job."""
    if isinstance(job, GroupJob):
        return job.members
    return (job,) if isinstance(job, MemberJob) else ()


def group_members(run: Run, specs: Sequence[MemberSpec]) -> list[list[MemberSpec]]:
    """The members in groups that are trained in one batch; those of a group have the same number of steps."""
    plan = run.plan
    settings = member_settings(plan)
    size = min(max_group_size(plan, run.context.device), -(-len(specs) // run.executor.workers))  # all workers get some

    def schedule(spec: MemberSpec) -> tuple[int, int | None]:
        rows = spec.training_rows(plan)
        return settings.steps(rows), settings.decay_steps(rows)

    groups: list[list[MemberSpec]] = []
    for _, same_schedule in groupby(specs, schedule):
        members = list(same_schedule)
        parts = np.array_split(np.arange(len(members)), -(-len(members) // size))
        groups.extend([members[index] for index in part] for part in parts)
    return groups


def max_group_size(plan: Plan, device: str) -> int:
    """The largest number of members in a batch; 1 where members are trained one after the other."""
    adapter = plan.recipe.adapter
    is_alone = plan.dev is not None or plan.is_generative or member_settings(plan).frozen_layers > 0
    if adapter.method == "none" or is_alone or launched_processes() > 1:
        return 1
    return adapter.members_at_once or (MEMBERS_ON_GPU if device.startswith("cuda") else 1)


@dataclass(frozen=True)
class GroupJob:
    """Trains several members in one batch, then scores rows with one after the other."""

    members: tuple[MemberJob, ...]

    @property
    def name(self) -> str:
        """The job's name in the log, such as 'member 1/12 to 6/12'."""
        first, last = (job.name.split("  ")[0] for job in (self.members[0], self.members[-1]))
        return f"{first} to {last.split()[-1]}"

    def run(self, worker: Worker) -> JobResult:
        """Train all members, and write those that are missing to the run's folder."""
        worker = worker.for_model(self.members[0].spec.model)
        missing = {job.key: job for job in self.members if not job.is_trained(worker)}
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
                loaded = worker.model.model.load_state_dict(adapter.weights, strict=False)  # the others are frozen
                assert not loaded.unexpected_keys
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
    (first, first_size), (second, second_size) = _train(worker, jobs[:middle]), _train(worker, jobs[middle:])
    return first + second, max(first_size, second_size)


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
