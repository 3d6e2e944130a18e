"""What a run is divided into: jobs, which a worker runs and an executor distributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from clozify.runs.worker import Worker


@dataclass(frozen=True)
class JobResult:
    """What a job returns: a summary for the log and, for few jobs, a value that can be pickled.

    Large results are files in the run's folder.
    """

    summary: str
    value: Any = None


class Job(Protocol):
    """A unit of work that can be sent to another process; run a second time, it leaves the same results."""

    @property
    def name(self) -> str:
        """The job's name in the log."""

    def run(self, worker: Worker) -> JobResult:
        """Do the work and write its results to the run's folder."""
