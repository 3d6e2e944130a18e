"""The ensemble of a finished run (section 3.2 of the paper): its members, their weights and other teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clozify.config.task import Task
from clozify.data.decision import Decision, decision_of
from clozify.data.rows import Rows
from clozify.errors import RunError
from clozify.inference.frozen import FrozenMember
from clozify.inference.loaded_member import LoadedMember
from clozify.inference.voting import VotingTeachers
from clozify.methods.ensemble import combine_scores
from clozify.models.cloze import ClozeModel
from clozify.models.language_model import LanguageModel, load_model
from clozify.models.lora import Base, base_of
from clozify.models.task_prompts import compile_task
from clozify.runs.keys import model_key
from clozify.runs.records import ENSEMBLE_FILE, LABEL_VECTORS, EnsembleRecord
from clozify.runs.results import first_method, jobs_folder
from clozify.utils.checked_files import open_npy
from clozify.utils.progress import progress


class FinishedEnsemble:
    """The members in a run's folder, loaded one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._base_models: dict[Base, LanguageModel] = {}  # shared by adapters

    @cached_property
    def record(self) -> EnsembleRecord:
        """The content of ensemble.json."""
        return EnsembleRecord.load(self.folder)

    @property
    def task(self) -> Task:
        """The task that the members were trained for."""
        return self.record.task

    @cached_property
    def decision(self) -> Decision:
        """How scores become probabilities and labels; with several labels a row, by the run's thresholds."""
        decision = decision_of(self.task, self.record.thresholds, str(self.folder / ENSEMBLE_FILE))
        return replace(decision, temperature=self.record.temperature)

    @cached_property
    def teachers(self) -> VotingTeachers | None:
        """The teachers besides the patterns."""
        records = self.record.teachers
        return None if records is None else VotingTeachers(self.task, records, self.device)

    def members(self) -> Iterator[LoadedMember | FrozenMember]:
        """The ensemble's members, loaded one after the other."""
        recipe = self.record.recipe
        names = [pair.name for pair in self.task.pairs]
        if first_method(self.folder) == "frozen":
            yield from self._frozen_members()
            return
        for member in self.record.weights:
            model, activate_adapter = self._load_member(member.member)
            prompts = compile_task(model, self.task, wording=recipe.wording)
            prompts = prompts.for_pair(names.index(member.pair), member.zero_points)
            yield LoadedMember(model, prompts, recipe.max_seq_length, member.weight, activate_adapter)

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """s_M of the rows, (rows, labels)."""
        scores, weights = [], []
        with progress("predicting", len(rows) * len(self.record.weights)) as advance:
            for member in self.members():
                scores.append(member.scores(rows, advance))
                weights.append(member.weight)
        return self.combine(scores, weights, rows)

    def combine(
        self, scores: Sequence[NDArray[np.floating]], weights: Sequence[float], rows: Rows
    ) -> NDArray[np.float64]:
        """s_M of the rows from its members' scores, together with the votes of other teachers: (rows, labels)."""
        models = [member.teacher for member in self.record.weights]
        if self.teachers is None or len(set(models)) == 1:
            combined = combine_scores(scores, weights)
            return combined if self.teachers is None else self.teachers.combine([combined], rows)
        of_models = []
        for model in dict.fromkeys(models):  # in the order of the ensemble's teachers
            chosen = [index for index, of_member in enumerate(models) if of_member == model]
            of_models.append(combine_scores([scores[i] for i in chosen], [weights[i] for i in chosen]))
        return self.teachers.combine(of_models, rows)

    def _frozen_members(self) -> Iterator[FrozenMember]:
        """A member for each pattern, with the label vectors of all its pairs; the encoder is loaded once."""
        folders = {member.pair: jobs_folder(self.folder) / "members" / member.member for member in self.record.weights}
        weights = {member.pair: member.weight for member in self.record.weights}
        base = base_of(next(iter(folders.values())) / "model")
        if base is None:
            raise RunError(f"The members of '{self.folder}' have no label vectors; train again.")
        recipe, model = self.record.recipe, self._base_model(base)
        assert isinstance(model, ClozeModel)
        names = [pair.name for pair in self.task.pairs]
        for prompt in compile_task(model, self.task, wording=recipe.wording).patterns:
            pairs = [names[pair] for pair in prompt.pairs]
            vectors = [open_npy(folders[pair] / "model" / LABEL_VECTORS) for pair in pairs]
            yield FrozenMember.combine(model, prompt, recipe.max_seq_length, vectors, [weights[pair] for pair in pairs])

    def _load_member(self, key: str) -> tuple[LanguageModel, Callable[[], None]]:
        """A member's model, and the function that activates its adapter where several members share the model."""
        path, generative = jobs_folder(self.folder) / "members" / key / "model", self.record.recipe.generative
        if (base := base_of(path)) is None:
            return load_model(path, self.device, safetensors_only=True, generative=generative), lambda: None
        model = self._base_model(base)
        model.use_adapter(path, key)
        return model, partial(model.use_adapter, path, key)

    def _base_model(self, base: Base) -> LanguageModel:
        """The model that adapters or label vectors belong to, loaded once."""
        if base not in self._base_models:
            self._base_models[base] = load_model(base.model, self.device, generative=self.record.recipe.generative)
            if model_key(base.model) != base.key:
                raise RunError(
                    f"The members of '{self.folder}' belong to the model '{base.model}', which has changed since; "
                    "restore the model or train again."
                )
        return self._base_models[base]
