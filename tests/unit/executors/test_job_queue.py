"""The scheduling that executors with workers share: order, retries, memory and errors, without any process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clozify.errors import DataError, RunError
from clozify.executors.job_queue import JobOutcome, JobQueue, run_job
from clozify.executors.worker_pool import WorkerHandle, WorkerPool
from clozify.runs.folder import RunFolder
from clozify.runs.jobs import JobResult


@dataclass
class FakeJob:
    """Fails with each of the errors in turn, then succeeds."""

    name: str
    errors: tuple[object, ...] = ()
    runs: int = 0

    def run(self, worker) -> JobResult:  # noqa: ARG002
        self.runs += 1
        if self.runs <= len(self.errors):
            raise self.errors[self.runs - 1]
        return JobResult(f"{self.name} is done", self.runs)


class FakePool(WorkerPool[WorkerHandle]):
    """Workers that run a job in this process when their outcome is waited for; one that is killed gives no outcome."""

    def __init__(self, count: int, before_wait: Callable[["FakePool"], None] = lambda pool: None) -> None:
        super().__init__(count)
        self.before_wait = before_wait
        self.started: list[int] = []
        self.stopped: list[int] = []
        self.sent: list[str] = []
        self.starts_at_once = True

    def start_worker(self, slot):
        self.started.append(slot)
        return WorkerHandle(slot=slot, log=Path(f"{slot}.txt"), ready=self.starts_at_once)

    def stop_worker(self, handle):
        self.stopped.append(handle.slot)

    def send_job(self, handle, job):  # noqa: ARG002
        self.sent.append(job.name)

    def wait_for_outcomes(self):
        self.before_wait(self)
        return [
            (handle, run_job(self.worker, handle.queued.job)) for handle in self.handles if handle.queued is not None
        ]


@pytest.fixture
def worker(tmp_path):
    lines: list[str] = []
    folder = RunFolder(tmp_path / "run")
    folder.address = "run"
    yield SimpleNamespace(context=SimpleNamespace(log=lines.append), folder=folder, lines=lines)
    folder.close()


def run_all(pool, worker, jobs):
    pool.start(worker, len(jobs))
    for job in jobs:
        pool.submit(job)
    return [(job.name, result.summary) for job, result in pool.as_completed()]


def jobs_named(*names):
    return [FakeJob(name) for name in names]


def test_every_job_is_run_once_and_no_worker_is_started_without_a_job(worker):
    pool = FakePool(3)
    assert run_all(pool, worker, jobs_named("a", "b")) == [("a", "a is done"), ("b", "b is done")]
    assert pool.started == [0, 1]
    assert not pool.stopped
    assert pool.queue.unfinished == 0
    pool.submit(FakeJob("c"))  # an executor may be used again
    assert [job.name for job, _ in pool.as_completed()] == ["c"]
    assert pool.started == [0, 1]


def test_a_job_that_is_submitted_while_iterating_is_run_next(worker):
    """A shard waits for its member alone, and frees the space of its weights sooner."""
    pool, order = FakePool(1), []
    pool.start(worker, 3)
    for job in jobs_named("a", "b", "c"):
        pool.submit(job)
    for job, _ in pool.as_completed():
        order.append(job.name)
        if job.name == "a":
            for following in jobs_named("a1", "a2"):
                pool.submit(following)
        if job.name == "c":
            pool.submit(FakeJob("last"))
    assert order == ["a", "a1", "a2", "b", "c", "last"]


def test_a_job_that_fails_twice_is_run_a_third_time_by_new_workers(worker):
    pool, job = FakePool(1), FakeJob("member", (ValueError("no luck\nat all"), OSError("disk")))
    assert run_all(pool, worker, [job]) == [("member", "member is done")]
    assert pool.started == [0, 0, 0]
    assert pool.stopped == [0, 0]
    assert worker.lines == [
        "member  failed: ValueError: no luck (1 of 3 tries)",
        "member  failed: OSError: disk (2 of 3 tries)",
    ]


def test_a_job_that_fails_three_times_ends_the_run_and_its_log_is_named(worker):
    pool = FakePool(2)
    jobs = [FakeJob("good"), FakeJob("bad", (ValueError("no luck"),) * 3)]
    pool.start(worker, 2)
    for job in jobs:
        pool.submit(job)
    with pytest.raises(
        RunError, match="'bad' failed 3 times, the last time with: ValueError: no luck; see run/workers"
    ):
        run_all(pool, worker, jobs)
    assert jobs[0].runs == 1
    assert jobs[1].runs == 3


def test_failures_are_counted_for_each_job(worker):
    pool = FakePool(1)
    jobs = [FakeJob(name, (ValueError("no luck"),) * 2) for name in "ab"]
    assert len(run_all(pool, worker, jobs)) == 2


def test_a_worker_without_memory_is_not_replaced_and_its_job_runs_on_another(worker):
    """Two models that do not fit on a GPU together fit one after the other."""
    error = torch.OutOfMemoryError("CUDA out of memory")
    pool = FakePool(3)
    jobs = [FakeJob("a", (error,) * 2), FakeJob("b"), FakeJob("c")]
    assert {name for name, _ in run_all(pool, worker, jobs)} == {"a", "b", "c"}
    assert pool.workers == 1
    assert worker.lines == [
        "a  ran out of memory; continuing with 2 at once",
        "a  ran out of memory; continuing with 1 at once",
    ]


def test_the_last_worker_without_memory_counts_as_a_failure(worker):
    """Else the run would never end."""
    pool = FakePool(2)
    with pytest.raises(RunError, match="failed 3 times, the last time with: OutOfMemoryError"):
        run_all(pool, worker, [FakeJob("a", (torch.OutOfMemoryError("CUDA out of memory"),) * 4)])
    assert pool.workers == 1


def test_an_error_that_the_user_can_correct_is_raised_at_once(worker):
    job = FakeJob("member", (DataError("The column 'text' is empty."),))
    with pytest.raises(DataError, match="The column 'text' is empty"):
        run_all(FakePool(2), worker, [job])
    assert job.runs == 1


def test_a_full_disk_is_an_error_that_the_user_can_correct(worker):
    job = FakeJob("member", (OSError(28, "No space left on device"),))
    with pytest.raises(RunError, match="no space left on the disk for the run 'run'"):
        run_all(FakePool(1), worker, [job])
    assert job.runs == 1


def test_a_worker_gets_no_job_before_it_is_ready_and_no_more_are_started_than_jobs(worker):
    """On a cluster a worker may wait for hours for resources, while others do the work."""

    def only_the_second_gets_ready(pool):
        pool.slots[1].ready = True

    pool = FakePool(5, only_the_second_gets_ready)
    pool.starts_at_once = False
    assert len(run_all(pool, worker, jobs_named("a", "b", "c"))) == 3
    assert pool.started == [0, 1, 2]
    assert not pool.slots[0].ready


def test_an_outcome_keeps_the_traceback_for_the_worker_s_log(worker):
    outcome = run_job(worker, FakeJob("a", (KeyError("scores"),)))
    assert outcome.kind == "failed"
    assert outcome.reason == "KeyError: 'scores'"
    assert "Traceback" in outcome.traceback
    assert run_job(worker, FakeJob("a")) == JobOutcome("done", JobResult("a is done", 1))


def test_the_queue_counts_jobs_that_wait_and_that_run():
    queue = JobQueue(lambda line: None)
    assert queue.take() is None
    for name in "ab":
        queue.submit(FakeJob(name))
    assert (queue.pending, queue.running, queue.unfinished) == (2, 0, 2)
    first = queue.take()
    assert (queue.pending, queue.running, queue.unfinished) == (1, 1, 2)
    queue.retry(first, "no luck", "log")
    assert (queue.pending, queue.running, queue.unfinished) == (2, 0, 2)
    assert queue.take() is first  # at once
    queue.complete()
    assert (queue.pending, queue.running, queue.unfinished) == (1, 0, 1)
