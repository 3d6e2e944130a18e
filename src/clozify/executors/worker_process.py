"""A worker process of `ProcessExecutor`: its main loop, and the imports that it begins with.

Libraries are imported within functions, so that no garbage is collected meanwhile (`gc_paused`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from clozify.utils.libraries import gc_paused

if TYPE_CHECKING:
    from clozify.runs.worker import Worker

PARENT_CHECK_SECONDS = 0.5


@gc_paused()
def import_libraries(gpus: int) -> None:
    """Do what a worker can do before it has the plan: open its GPU, and meanwhile import what every job needs."""
    import torch

    def open_gpu() -> None:
        with suppress(Exception):  # the first job meets the same error and reports it
            torch.zeros(1, device="cuda")

    opening = threading.Thread(target=open_gpu)
    if gpus:
        opening.start()
    import datasets  # noqa: F401
    from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer  # noqa: F401

    import clozify.runs.context  # noqa: F401

    if gpus:
        opening.join()


def run_worker(connection: Connection, parent: int, gpus: int) -> None:
    """Main loop of a worker process: receives the plan, then one job after another, until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    finished = threading.Event()

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            if finished.wait(PARENT_CHECK_SECONDS):
                return
        os._exit(1)  # at once: the run may be started again

    threading.Thread(target=exit_with_parent, daemon=True).start()
    import_libraries(gpus)
    from clozify.executors.job_queue import RelayTracking, run_job
    from clozify.runs.context import RunContext
    from clozify.runs.worker import Worker

    worker: Worker | None = None
    while True:
        try:
            with gc_paused():  # a job's modules are imported when it is received
                message = connection.recv()
        except EOFError:
            finished.set()
            return
        if worker is None:
            plan, device, open_folder = message
            tracking = RelayTracking(lambda *step: connection.send(step))
            worker = Worker(plan, open_folder(), RunContext(device, tracking=tracking))
            continue
        outcome = run_job(worker, message)
        print(outcome.traceback, end="", file=sys.stderr, flush=True)
        connection.send(outcome)


if __name__ == "__main__":
    run_worker(Connection(int(sys.argv[1])), *map(int, sys.argv[2:]))
