"""Jobs of a run, which may come back from other processes as copies."""

import pickle
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from clozify.pipeline.run import Run
from clozify.runs.jobs import JobResult


@dataclass(frozen=True)
class ArrayJob:
    name: str
    rows: np.ndarray


class CopyingExecutor:
    workers = 2

    def __init__(self):
        self.jobs = []

    def submit(self, job):
        self.jobs.append(pickle.loads(pickle.dumps(job)))

    def as_completed(self):
        for job in self.jobs:
            yield job, JobResult("done")


def test_progress_counts_the_first_jobs_although_they_are_copies_with_arrays(monkeypatch):
    advanced, lines = [], []
    worker = SimpleNamespace(context=SimpleNamespace(log=lines.append))
    run = Run(worker, CopyingExecutor())
    monkeypatch.setattr(Run, "_progress", lambda *_: nullcontext(advanced.append))
    jobs = [ArrayJob(f"job {index}", np.arange(3)) for index in range(2)]
    run.run_jobs(jobs, "jobs", lambda job, _: [ArrayJob("shard", np.arange(2))] if job.name == "job 0" else [])
    assert advanced == [True, True, False]
    assert len(lines) == 3
