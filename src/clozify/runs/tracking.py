"""Experiment trackers by name (TensorBoard, W&B, MLflow and the others that Accelerate supports).

Every training logs its loss as `NAME/loss`, on one axis of steps for the run; the run logs its metrics at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from clozify.errors import RecipeError, did_you_mean, quoted
from clozify.utils.progress import progress

PACKAGES = {"comet_ml": "comet-ml"}  # trackers whose package has another name


def check_trackers(names: Sequence[str]) -> None:
    """Raise where a name is no tracker of Accelerate's or is not installed: Accelerate would leave it out silently."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    supported, installed = list(LOGGER_TYPE_TO_CLASS), [str(name) for name in get_available_trackers()]
    for name in names:
        if name not in supported:
            raise RecipeError(
                f"There is no tracker '{name}'{did_you_mean(name, supported)}; Accelerate knows {quoted(supported, 9)}."
            )
        if name not in installed:
            package = PACKAGES.get(name, name)
            raise RecipeError(f"The tracker '{name}' is not installed; install it with: pip install {package}")


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings or metrics under names such as `distill.max_steps`; lists are left out."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            flat[prefix + name] = value
    return flat


def tracker_name(name: str) -> str:
    """A name in characters that every tracker accepts; MLflow, for one, refuses commas."""
    return re.sub(r"[^/\w.\- ]", "_", name)


class Tracking:
    """One run's trackers; without any it only counts steps and shows progress bars."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.steps = 0  # of the run: a training's axis starts where the last one ended
        self._last_step: dict[str, int] = {}  # of each training

    def start(self, run: str, settings: Mapping[str, Any]) -> None:
        """Start the trackers with the run's settings."""
        self.accelerator.init_trackers(run, config=flatten(settings))

    def log_loss(self, name: str, step: int, loss: float) -> None:
        """Log a training's loss; trainings that run at the same time share the axis of steps."""
        last_step = self._last_step.get(name, 0)
        self.steps += step - last_step if step > last_step else step  # a training that was started again counts anew
        self._last_step[name] = step
        self.accelerator.log({tracker_name(f"{name}/loss"): loss}, step=self.steps)

    @contextmanager
    def training(self, name: str, steps: int) -> Iterator[Callable[[int, float | None], None]]:
        """Show a training's progress bar; yields a function that takes a step and its loss, None if not read."""
        done = 0
        with progress(name, steps, "steps") as advance:

            def on_step(step: int, loss: float | None) -> None:
                nonlocal done
                advance(step - done)
                done = step
                if loss is not None:
                    self.log_loss(name, step, loss)

            yield on_step

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Log the run's metrics and close the trackers."""
        numbers = {name: value for name, value in flatten(metrics).items() if isinstance(value, int | float)}
        self.accelerator.log({tracker_name(name): value for name, value in numbers.items()}, step=self.steps)
        for tracker in self.accelerator.trackers:  # not `end_training`, which also ends the process group
            tracker.finish()
