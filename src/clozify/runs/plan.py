"""What a run works on: the task, the recipe, the models and the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from clozify.config.recipe import Recipe
from clozify.config.task import Task, Verbalizer
from clozify.data.rows import Rows
from clozify.gpu.options import GpuOptions
from clozify.models.builtin import is_builtin
from clozify.models.language_model import LanguageModel, load_model
from clozify.models.loading import LanguageModelKind, architecture_of
from clozify.models.lora import Base
from clozify.runs.keys import model_key


@dataclass(frozen=True)
class Plan:
    """What a run works on; every job of the run shares it."""

    task: Task
    recipe: Recipe
    method: str
    model: str
    student: str  # the model that the final classifier starts from
    labeled: Rows  # T
    unlabeled: Rows | None = None  # D
    test: Rows | None = None
    dev: Rows | None = None
    paraphrases: Rows | None = None  # of the unlabelled rows, for UDA and MixText
    static_rows: Rows | None = None  # that the classifier labels for a static one (--student static)
    warnings: tuple[str, ...] = ()
    choice: str = ""  # what the recipe auto chose
    key_labels: tuple[str, ...] = ()  # the labels' names in the keys of jobs, where an earlier run had other names

    def seeds(self, trainings: int = 1) -> list[list[int]]:
        """For each training its seeds, one per repetition."""
        repetitions = self.recipe.repetitions
        if self.recipe.seeding == "ensemble":
            drawn = np.random.SeedSequence(self.recipe.seed).generate_state(trainings * repetitions)
            return drawn.reshape(trainings, repetitions).tolist()
        return [[self.recipe.seed + repetition for repetition in range(repetitions)]] * trainings

    @property
    def key_names(self) -> list[str]:
        """The labels' names in the keys of jobs; a name changes no number."""
        return list(self.key_labels or self.task.labels)

    def key_words(self, verbalizer: Verbalizer) -> dict[str, tuple[str, ...]]:
        """The words of a pair's verbalizer in the keys of jobs."""
        return dict(zip(self.key_names, verbalizer.words.values(), strict=True))

    @property
    def member_pairs(self) -> int:
        """The number of pairs that members are trained for."""
        return min(len(self.task.pairs), self.recipe.max_pairs or len(self.task.pairs))

    @property
    def with_lm(self) -> bool:
        """Whether members are trained with the auxiliary language modeling task, which needs unlabelled rows."""
        return self.recipe.language_modeling and self.unlabeled is not None

    @property
    def is_distilled(self) -> bool:
        """Whether an ensemble's soft labels train a classifier."""
        wanted = self.recipe.frozen.distillation if self.method == "frozen" else self.recipe.distillation
        return self.unlabeled is not None and wanted

    @property
    def base(self) -> Base:
        """The model as the base of adapters; a folder's path is absolute, so that adapters can be used anywhere."""
        is_path = not is_builtin(self.model) and Path(self.model).exists()
        return Base(str(Path(self.model).resolve()) if is_path else self.model, model_key(self.model))

    @cached_property
    def architecture(self) -> LanguageModelKind:
        """What kind of language model its members are."""
        return architecture_of(self.model)

    @property
    def is_generative(self) -> bool:
        """Whether members are causal or encoder-decoder models."""
        return self.architecture != "masked LM"

    def with_model(self, model: str) -> Plan:
        """The same run with members of another language model."""
        plan = replace(self, model=model)
        return replace(plan, recipe=plan.recipe.for_generative()) if plan.is_generative else plan

    def load_model(self, device: str) -> LanguageModel:
        """The language model, with the recipe's adapter, dropout, kernels and precision."""
        dropout, adapter = self.recipe.attention_dropout, self.recipe.adapter
        options = GpuOptions.from_recipe(self.recipe)
        generative = self.recipe.generative
        return load_model(
            self.model, device, attention_dropout=dropout, adapter=adapter, options=options, generative=generative
        )


def empty_rows(task: Task) -> Rows:
    """A training set without rows, for zero-shot iPET."""
    from datasets import Dataset

    return Rows(Dataset.from_dict({name: [] for name in [*task.fields, task.label]}), task, "no labelled rows")
