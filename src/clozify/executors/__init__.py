"""Where a run's jobs run: in this process, in several processes, under Accelerate's launcher, or on a Ray cluster.

The pipeline submits jobs (`clozify.runs.jobs.Job`) to an `Executor` (`base.py`) and takes their results as they are
completed. To add an executor, write one module here:

1. Implement `Executor`: `workers`, `start`, `submit`, `as_completed`. Where jobs run in other processes, subclass
   `WorkerPool` (`worker_pool.py`) instead: it queues, distributes and retries the jobs, and a subclass only starts,
   stops and talks to its workers (`start_worker`, `stop_worker`, `send_job`, `wait_for_outcomes`).
2. In a worker, create a `Worker` from the plan, `folder.opener()` and a `RunContext`, and run every job by `run_job`
   (`job_queue.py`), which turns exceptions into outcomes.
3. Name it in `select.py`, which maps `--executor` to a class.

A job may run twice, and its results are files in the run's folder, so an executor need not care about half-done jobs.
"""
