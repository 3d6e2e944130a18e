"""Scoring many unlabelled rows with one member, divided over the workers of a run.

One worker trains the member and saves its weights. Shards of rows are then jobs of their own, which any worker runs;
one that fails is run again alone. The shards' scores are put together as if one worker had scored all rows, and the
weights and shards are removed. A run that was stopped finds them again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from clozify.models.cloze import OFFSETS, ClozeModel
from clozify.pipeline.run import Run
from clozify.pipeline.scoring import write_unlabeled_scores
from clozify.runs.jobs import JobResult
from clozify.runs.keys import hash_key
from clozify.runs.records import UNLABELED_SCORES
from clozify.runs.worker import Worker
from clozify.utils.checked_files import open_npy, read_json
from clozify.utils.npy import create_npy

WEIGHTS = "weights.safetensors"


def shard_spans(run: Run) -> list[tuple[int, int]]:
    """First and last row of each shard, the last excluded; empty where one worker scores all rows."""
    size, unlabeled = run.plan.recipe.shard_rows, run.plan.unlabeled
    if unlabeled is None or not size or len(unlabeled) <= size or run.executor.workers == 1:
        return []
    return list(unlabeled.chunks(size))


def save_trained_weights(worker: Worker, key: str) -> None:
    """Save the weights of the member that was just trained, for all workers that score with it."""
    from safetensors.torch import save_file

    parameters = worker.model.model.named_parameters()
    trained = {name: parameter.detach().contiguous() for name, parameter in parameters if parameter.requires_grad}
    with worker.folder.writing("weights", key) as tmp_path:
        save_file(trained, tmp_path / WEIGHTS)
    worker.loaded_member = key


def _load_trained_weights(worker: Worker, key: str, seed: int) -> None:
    """Give the worker's model a member's weights, unless it has them."""
    from safetensors.torch import load_file

    if worker.loaded_member == key:
        return
    model = worker.pretrained_model(seed)
    with worker.folder.reading("weights", key) as path:
        weights = load_file(path / WEIGHTS)
        if f"{OFFSETS}.bias" in weights and isinstance(model, ClozeModel):
            model.add_label_offsets(len(weights[f"{OFFSETS}.bias"]))
        model.model.load_state_dict(weights, strict=False)  # frozen weights were not saved
    worker.loaded_member = key


@dataclass(frozen=True)
class ShardJob:
    """Scores a shard of the unlabelled rows with a member."""

    member: str  # the member's name in the log
    member_key: str
    pair: int
    seed: int
    start: int
    stop: int
    zero_points: tuple[float, ...] | None = None  # subtracted from the labels' scores, with several labels a row

    @property
    def name(self) -> str:
        """The job's name in the log."""
        return f"{self.member}  rows {self.start:,} to {self.stop:,}"

    @property
    def key(self) -> str:
        """The key of the shard's folder."""
        return hash_key(member=self.member_key, start=self.start, stop=self.stop)

    def run(self, worker: Worker) -> JobResult:
        """Write the scores of the shard's rows."""
        started = time.monotonic()
        _load_trained_weights(worker, self.member_key, self.seed)
        with worker.folder.writing("shards", self.key) as tmp_path:
            prompts = worker.prompts.for_pair(self.pair, self.zero_points)
            write_unlabeled_scores(worker, prompts, tmp_path, span=(self.start, self.stop))
            seconds = time.monotonic() - started
            (tmp_path / "shard.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
        return JobResult(f"labelled in {seconds:,.0f} s")


@dataclass
class ShardedScoring:
    """The members whose scoring is sharded and the shards that are not done yet, in the run's main process."""

    run: Run
    _shards: dict[str, list[ShardJob]] = field(default_factory=dict)  # member key -> its shards
    _pending: dict[str, set[str]] = field(default_factory=dict)  # member key -> keys of its shards

    def start(
        self, member: str, key: str, pair: int, seed: int, zero_points: tuple[float, ...] | None = None
    ) -> Sequence[ShardJob]:
        """The shards to score with a member that was trained, without those that an earlier run has scored."""
        self._shards[key] = [ShardJob(member, key, pair, seed, *span, zero_points) for span in shard_spans(self.run)]
        jobs = [shard for shard in self._shards[key] if not self.run.folder.has_job("shards", shard.key)]
        self._pending[key] = {shard.key for shard in jobs}
        if not jobs:
            self._assemble(key)
        return jobs

    def complete(self, shard: ShardJob) -> None:
        """Count a shard as done; after the last one the member's folder is written."""
        self._pending[shard.member_key].discard(shard.key)
        if not self._pending[shard.member_key]:
            self._assemble(shard.member_key)

    def _assemble(self, key: str) -> None:
        folder, plan = self.run.folder, self.run.plan
        trained, shards = folder.job_path("trained", key), self._shards.pop(key)
        paths = [folder.job_path("shards", shard.key) for shard in shards]
        record = read_json(trained / "member.json")
        record["seconds"] += sum(read_json(path / "shard.json")["seconds"] for path in paths)
        with folder.writing("members", key) as tmp_path:
            shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
            assert plan.unlabeled is not None
            shape = len(plan.unlabeled), len(plan.task.labels)
            stored = create_npy(tmp_path / UNLABELED_SCORES, plan.recipe.scores_dtype, shape)
            np.concatenate([open_npy(path / UNLABELED_SCORES) for path in paths], out=stored)
            del stored  # closes the file before it is moved
            (tmp_path / "member.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
        folder.remove(f"weights/{key}", f"trained/{key}", *[f"shards/{shard.key}" for shard in shards])
