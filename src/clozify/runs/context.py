"""The surroundings of a run in one process: its device, its log, its trackers and its warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clozify.runs.tracking import Tracking

if TYPE_CHECKING:
    from accelerate import Accelerator


def no_log(message: str) -> None:
    """Discards a log message."""


class RunContext:
    """The device, log, trackers and warnings of a run; every process that works on the run has its own.

    - `device`: `cpu` or `cuda`.
    - `log`: called with every message.
    - `trackers`: names of Accelerate's trackers, which write to `trackers/` of the run's `folder`.
    - `tracking`: another receiver of losses, in processes without trackers.
    """

    def __init__(
        self,
        device: str,
        log: Callable[[str], None] = no_log,
        trackers: Sequence[str] = (),
        folder: Path | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        self.device, self.log, self.trackers = device, log, tuple(trackers)
        self.warnings: list[str] = []
        self._folder, self._tracking = folder, tracking

    def warn(self, text: str) -> None:
        """Log a warning and keep it for the run's metrics; one that was given before is not repeated."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.log(f"note: {text}")

    @cached_property
    def accelerator(self) -> Accelerator:
        """Accelerate's view of the device; the training loop decides on the precision.

        Accelerate keeps the device of the first accelerator for the life of the process. A run on another device, for
        example on the CPU after one on a GPU, starts from a fresh state.
        """
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState

        if PartialState._shared_state and PartialState().device.type != self.device:
            AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(
            cpu=self.device == "cpu",
            mixed_precision="no",
            log_with=list(self.trackers) if self.trackers and self._folder is not None else None,
            project_dir=None if self._folder is None else str(self._folder / "trackers"),
        )

    @cached_property
    def tracking(self) -> Tracking:
        """The receiver of losses and metrics."""
        return self._tracking or Tracking(self.accelerator)
