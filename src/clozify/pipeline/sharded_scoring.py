"""A member's labelling of a large pile, split over the workers that share a run.

In: members that one worker each has trained and put aside. Out: their folders, with the scores of the whole pile, as if
one worker had labelled it: shards of rows are pieces of work of their own, which any worker does with the member's
weights. A shard that fails is done again alone. What is only needed on the way (weights, shards) is dropped as soon as
a member is whole, and a run that was stopped finds it again.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

from clozify.methods.score import score_rows
from clozify.pipeline.run import Run
from clozify.pipeline.token_cache import keep_pile
from clozify.runs.jobs import Job, JobResult
from clozify.runs.keys import hash_key
from clozify.runs.worker import Worker
from clozify.utils.npy import cast_scores, npy_writer, open_npy

WEIGHTS = "weights.safetensors"


def shards_of(run: Run) -> list[tuple[int, int]]:
    """The borders of the pile's shards; none where it is labelled in one piece."""
    size, pile = run.plan.recipe.shard_rows, run.plan.unlabeled
    if pile is None or not size or len(pile) <= size or run.executor.workers == 1:
        return []
    return list(pile.chunks(size))


def put_aside(worker: Worker, key: str) -> None:
    """Keep the weights of the member that was just trained, for whoever labels with it."""
    from safetensors.torch import save_file

    with worker.folder.writing("weights", key) as beside:
        trained = {name: part.detach() for name, part in worker.model.model.named_parameters() if part.requires_grad}
        save_file({name: part.contiguous() for name, part in trained.items()}, beside / WEIGHTS)
    worker.loaded_member = key


def _take_up(worker: Worker, key: str, seed: int) -> None:
    """Give the model a member's weights, unless it has them."""
    from safetensors.torch import load_file

    if worker.loaded_member == key:
        return
    model = worker.pretrained_model(seed)
    with worker.folder.reading("weights", key) as place:
        model.model.load_state_dict(load_file(place / WEIGHTS), strict=False)  # what is frozen was not kept
    worker.loaded_member = key


@dataclass(frozen=True)
class ShardJob:
    """The work of labelling a shard of the pile with a member."""

    member: str  # what people know it by
    key: str  # the member's
    pair: int
    seed: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What people know it by."""
        return f"{self.member}  rows {self.start:,} to {self.stop:,}"

    @property
    def place(self) -> str:
        """The key of the shard's own folder."""
        return hash_key(member=self.key, start=self.start, stop=self.stop)

    def run(self, worker: Worker) -> JobResult:
        """Label the rows; returns what to say of it."""
        plan, began = worker.plan, time.monotonic()
        assert plan.unlabeled is not None
        _take_up(worker, self.key, self.seed)
        keep_pile(worker)
        question, kind = worker.prompts.for_pair(self.pair), plan.recipe.scores_dtype
        with worker.folder.writing("shards", self.place) as beside:
            with npy_writer(beside / "pile.npy", kind, len(plan.task.labels)) as append:
                length = plan.recipe.max_seq_length
                parts = score_rows(worker.model, question, plan.unlabeled, length, span=(self.start, self.stop))
                for _, part in parts:
                    append(cast_scores(part[0], kind))
            seconds = time.monotonic() - began
            (beside / "shard.json").write_text(json.dumps({"seconds": seconds}))
        return JobResult(f"labelled in {seconds:,.0f} s")


@dataclass
class Labelling:
    """The members whose labelling is split, and which of their shards are missing; for the run's own process."""

    run: Run
    shards: dict[str, list[ShardJob]] = field(default_factory=dict)  # by the member's key
    missing: dict[str, set[int]] = field(default_factory=dict)  # where the shards begin

    def begin(self, member: str, key: str, pair: int, seed: int) -> list[Job]:
        """A member is trained: what is to be labelled with it, less what a run that was stopped has labelled."""
        shards = [ShardJob(member, key, pair, seed, *borders) for borders in shards_of(self.run)]
        self.shards[key] = shards
        left: list[Job] = []
        for shard in shards:
            if not self.run.folder.job_path("shards", shard.place).exists():
                left.append(shard)
                self.missing.setdefault(key, set()).add(shard.start)
        if not left:
            self._assemble(key)
        return left

    def end(self, shard: ShardJob) -> None:
        """A shard is there; with the last of them the member is whole."""
        self.missing[shard.key].discard(shard.start)
        if not self.missing[shard.key]:
            self._assemble(shard.key)

    def _assemble(self, key: str) -> None:
        folder, plan = self.run.folder, self.run.plan
        trained, shards = folder.job_path("trained", key), self.shards.pop(key)
        places = [folder.job_path("shards", shard.place) for shard in shards]
        told: dict[str, Any] = json.loads((trained / "member.json").read_text())
        told["seconds"] += sum(json.loads((place / "shard.json").read_text())["seconds"] for place in places)
        with folder.writing("members", key) as beside:
            shutil.copytree(trained, beside, dirs_exist_ok=True)
            with npy_writer(beside / "pile.npy", plan.recipe.scores_dtype, len(plan.task.labels)) as append:
                for place in places:
                    append(open_npy(place / "pile.npy"))
            (beside / "member.json").write_text(json.dumps(told, indent=2))
        folder.remove(f"weights/{key}", f"trained/{key}", *[f"shards/{shard.place}" for shard in shards])
