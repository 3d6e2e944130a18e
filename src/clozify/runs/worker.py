"""Where a run's work is done: a process with the plan, the run's folder and the model, loaded once.

In: pieces of work, each of which leaves a folder of results in the run. Out: what to say of each, as it ends. An
executor decides where they are done: here one after another, or in `executors/` by several processes at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from clozify.models.cloze import ClozeModel
from clozify.models.lora import reset_adapter
from clozify.models.task_prompts import TaskPrompts, compile_task
from clozify.runs.folder import RunFolder
from clozify.runs.plan import Plan


class Work(Protocol):
    """A piece of work: it can be sent to another process, and done twice it leaves the same results."""

    @property
    def name(self) -> str:
        """What people know it by."""

    def do(self, bench: WorkerContext) -> str:
        """Do it, leave the results in the run's folder, and return what to say of it."""


class Executor(Protocol):
    """Where work is done."""

    @property
    def workers(self) -> int:
        """How many pieces are done at a time."""

    def begin(self, bench: WorkerContext, pieces: int) -> None:  # noqa: ARG002
        """So many pieces of work will come first: who has to get ready for them may do so now."""
        return

    def __call__(self, bench: WorkerContext, works: Sequence[Work]) -> Iterator[tuple[int, str]]:
        """Do all of it; yields the place of each piece, as it ends, and what to say of it.

        Whoever is told of a piece may add more to the end of `works`; these are done next.
        """


class Here(Executor):
    """One piece after another, in this process."""

    workers = 1

    def __call__(self, bench: WorkerContext, works: Sequence[Work]) -> Iterator[tuple[int, str]]:
        """Do all of it; what is added on the way is done at the end."""
        for place, work in enumerate(works):
            yield place, work.do(bench)


here = Here()


class WorkerContext:
    """What a process has at hand for a run's work."""

    def __init__(self, plan: Plan, folder: RunFolder, executor: Executor = here) -> None:
        self.plan, self.folder, self.executor = plan, folder, executor
        self.holds: str | None = None  # the member whose weights the model has

    @cached_property
    def model(self) -> ClozeModel:
        """The masked language model; `restored` gives it its pretrained weights again."""
        return self.plan.load_model()

    @cached_property
    def questions(self) -> TaskPrompts:
        """The task as cloze questions for the model."""
        shown = self.plan.labeled if len(self.plan.labeled) else self.plan.unlabeled
        return compile_task(self.model, self.plan.task, shown, self.plan.recipe.wording)

    @cached_property
    def _initial(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.model.model.state_dict().items()}

    def restored(self, seed: int) -> ClozeModel:
        """The model as it was before any training; a new adapter, where there is one, is drawn from the seed."""
        self.holds = None
        if self.model.has_adapter:
            reset_adapter(self.model.model, seed)
        else:
            self.model.model.load_state_dict(self._initial)
        return self.model

    def release(self) -> None:
        """Let go of the model: what follows has one of its own."""
        self.holds = None
        for name in ("model", "questions", "_initial"):
            self.__dict__.pop(name, None)

    def carry_out(
        self, works: Sequence[Work], what: str, then: Callable[[Work], Sequence[Work]] = lambda work: ()
    ) -> None:
        """Have all of it done, and say of each piece how it went and how long the rest will take.

        `then` gives what is to be done after a piece, in this process at once or as more work.
        """
        began, works = time.monotonic(), list(works)
        for done, (place, said) in enumerate(self.executor(self, works), start=1):
            works += then(works[place])
            left = (len(works) - done) * (time.monotonic() - began) / done
            self.plan.say(f"{works[place].name}  {said}  about {left / 60:,.0f} min left for {what}")
