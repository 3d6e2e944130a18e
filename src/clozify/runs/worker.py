"""The state of a process that runs jobs: the plan, the run's folder, its context, and the model, loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify.methods.multilabel import best_metric
from clozify.metrics import basic_metrics
from clozify.models.cloze import ClozeModel
from clozify.models.language_model import LanguageModel
from clozify.models.loading import load_config, load_tokenizer
from clozify.models.lora import reset_adapter
from clozify.models.task_prompts import TaskPrompts, compile_task
from clozify.prompts.encode import FieldInContext
from clozify.prompts.tokenizer import PromptTokenizer, RaggedTokens
from clozify.runs.context import RunContext
from clozify.runs.folder import RunFolder
from clozify.runs.plan import Plan
from clozify.training.loop import Monitor


class Worker:
    """What jobs work with in one process."""

    def __init__(self, plan: Plan, folder: RunFolder, context: RunContext) -> None:
        self.plan, self.folder, self.context = plan, folder, context
        self.loaded_member: str | None = None  # key of the member whose weights the model has
        self._other: Worker | None = None
        self.tokens: dict[str, dict[FieldInContext, RaggedTokens]] = {}  # data set -> its rows in the prompts' tokens

    @cached_property
    def model(self) -> LanguageModel:
        """The language model; `pretrained_model` resets its weights."""
        return self.plan.load_model(self.context.device)

    @property
    def cloze_model(self) -> ClozeModel:
        """The model, for methods that need a masked one."""
        assert isinstance(self.model, ClozeModel)
        return self.model

    @cached_property
    def prompts(self) -> TaskPrompts:
        """The task's patterns and verbalizers in the model's tokens."""
        rows = self.plan.labeled if len(self.plan.labeled) else self.plan.unlabeled
        return compile_task(self.model, self.plan.task, rows, self.plan.recipe.wording)

    @cached_property
    def student_tokenizer(self) -> PromptTokenizer:
        """The tokenizer of the final classifier."""
        if self.plan.student == self.plan.model:
            return self.model.tokenizer
        load_config(self.plan.student, from_hub=True)  # its errors say more than the tokenizer's
        return PromptTokenizer(load_tokenizer(self.plan.student))

    @cached_property
    def _pretrained_weights(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.model.model.state_dict().items()}

    def pretrained_model(self, seed: int) -> LanguageModel:
        """The model with its pretrained weights; an adapter is initialised anew from the seed."""
        self.loaded_member = None
        if isinstance(self.model, ClozeModel):
            self.model.remove_label_offsets()
        if self.model.has_adapter:
            reset_adapter(self.model.model, seed)
        else:
            self.model.model.load_state_dict(self._pretrained_weights)
        return self.model

    def for_model(self, model: str | None) -> Worker:
        """The worker of members of another language model; one such model is kept loaded besides the run's own."""
        if model is None or model == self.plan.model:
            return self
        if self._other is None or self._other.plan.model != model:
            if self._other is not None:
                self._other.release_model()
            self._other = Worker(self.plan.with_model(model), self.folder, self.context)
        return self._other

    def release_model(self) -> None:
        """Free the model's memory; it is loaded again when it is next used."""
        self.loaded_member = None
        self.tokens.clear()
        for name in ("model", "prompts", "_pretrained_weights"):
            self.__dict__.pop(name, None)
        self._other = None

    @contextmanager
    def monitor(
        self, name: str, steps: int, score_dev: Callable[[], NDArray[np.float32]]
    ) -> Iterator[tuple[Monitor, list[float]]]:
        """Yields a training's monitor, and the list that it fills with the metric on the development rows.

        `score_dev` returns the scores of the development rows, (rows, labels), by the model in training.
        """
        plan = self.plan
        dev_scores: list[float] = []

        def evaluate_on_dev() -> float:
            assert plan.dev is not None
            if plan.task.multilabel:
                dev_scores.append(best_metric(score_dev(), plan.dev.label_matrix, plan.task.metric))
                return dev_scores[-1]
            metrics = basic_metrics(plan.dev.labels, score_dev().argmax(axis=-1), len(plan.task.labels))
            dev_scores.append(getattr(metrics, plan.task.metric.replace("-", "_")))
            return dev_scores[-1]

        with self.context.tracking.training(name, steps) as on_step:
            yield Monitor(on_step, evaluate_on_dev if plan.dev is not None else None, plan.recipe.dev), dev_scores
