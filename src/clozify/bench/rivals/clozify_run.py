"""The methods of `clozify.train` as methods of the bench.

They do not estimate their accuracy from the labelled rows: the bench measures it, and other methods have no such step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

PACKAGES: tuple[str, ...] = ("torch", "transformers", "clozify")


def load_libraries() -> None:
    """Import the libraries."""
    import clozify.inference.training  # noqa: F401


def run_settings(max_length: int, seed: int, settings: Sequence[str]) -> list[str]:
    """The settings of a run; `seed` and `max_seq_length` are the bench's, which `--set` may not change."""
    return ["estimate.folds=0", f"max_seq_length={max_length}", f"seed={seed}", *settings]


class RunModel:
    """A finished run."""

    def __init__(self, job: Job, method: str, student: str | None = None) -> None:
        from clozify.config.task import load_task
        from clozify.data.rows import read_rows
        from clozify.inference.training import train

        task = load_task(job.task)
        result = train(
            task,
            job.labeled,
            Path(job.work) / "run",
            unlabeled=job.unlabeled,
            method=method,
            model=job.model,
            student=student,
            recipe=job.recipe,
            settings=run_settings(job.max_length, job.seed, job.settings),
            allow_overlap=True,  # the bench has taken out labelled and test rows
            devices="cpu" if job.device == "cpu" else 1,
            log=lambda line: print(line, flush=True),
        )
        self.run = result.run
        self.test = read_rows(job.test, task)
        self.run.probabilities(self.test.select([0]))  # loads the model

    @property
    def kept(self) -> Sequence[Path]:
        """The classifier or, without one, the run with its members."""
        return [self.run.classifier or self.run.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        test = self.test.select(np.arange(rows))
        predicted: NDArray[np.int64] = self.run.decision.predict(self.run.probabilities(test))
        return predicted
