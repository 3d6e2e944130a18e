"""Trackers by name (TensorBoard, W&B, MLflow and the others that Accelerate knows), and the bar on a terminal.

In: an accelerator that was made with `log_with`. Out: every training's course of the loss under its name, on one axis
of steps for the whole run, and the run's numbers at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from clozify.errors import RecipeError, did_you_mean, quoted
from clozify.utils.progress import progress

PACKAGES = {"comet_ml": "comet-ml"}  # where a tracker is not called as its package


def check_trackers(names: Sequence[str]) -> None:
    """Every name must be a tracker of Accelerate's that is installed; else it would be left out without a word."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known, installed = list(LOGGER_TYPE_TO_CLASS), [str(name) for name in get_available_trackers()]
    for name in names:
        if name not in known:
            raise RecipeError(
                f"There is no tracker '{name}'{did_you_mean(name, known)}; Accelerate knows {quoted(known, 9)}."
            )
        if name not in installed:
            package = PACKAGES.get(name, name)
            raise RecipeError(f"The tracker '{name}' is not installed; install it with: pip install {package}")


def flat(content: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings or numbers under names such as `distill.max_steps`; lists and texts of several are left out."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[before + name] = value
    return found


def plain(name: str) -> str:
    """A name that every tracker takes: MLflow allows no comma, for one."""
    return re.sub(r"[^/\w.\- ]", "_", name)


class Tracking:
    """One run's trackers; with none it does nothing but count steps."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.steps = 0  # of the whole run, so that one training follows another
        self._told: dict[str, int] = {}  # of each training under way, the step that was told last

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Tell the trackers what is run."""
        self.accelerator.init_trackers(run, config=flat(settings))

    def tell(self, name: str, step: int, loss: float) -> None:
        """A training's loss at a step; trainings that run at the same time share the axis of steps."""
        before = self._told.get(name, 0)
        self.steps += step - before if step > before else step  # a training that began anew counts anew
        self._told[name] = step
        self.accelerator.log({plain(f"{name}/loss"): loss}, step=self.steps)

    @contextmanager
    def training(self, name: str, steps: int) -> Iterator[Callable[[int, float], None]]:
        """One training: yields what is to be told each step and loss."""
        done = 0
        with progress(name, steps, "steps") as advance:

            def on_step(step: int, loss: float) -> None:
                nonlocal done
                advance(step - done)
                done = step
                self.tell(name, step, loss)

            yield on_step

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Tell the trackers what came of it."""
        numbers = {plain(name): value for name, value in flat(metrics).items() if isinstance(value, int | float)}
        self.accelerator.log(numbers, step=self.steps)
        for tracker in self.accelerator.trackers:  # not `end_training`, which ends other processes' company too
            tracker.finish()
