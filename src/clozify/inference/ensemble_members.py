"""The members of a finished run's ensemble, loaded to score rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from clozify.errors import RunError
from clozify.inference.frozen import FrozenMember
from clozify.inference.loaded_member import LoadedMember
from clozify.models.cloze import ClozeModel
from clozify.models.language_model import LanguageModel, load_model
from clozify.models.loading import architecture_of
from clozify.models.lora import Base, base_of
from clozify.models.task_prompts import compile_task
from clozify.runs.keys import model_key
from clozify.runs.records import LABEL_VECTORS, EnsembleMember, EnsembleRecord
from clozify.runs.results import jobs_folder
from clozify.utils.checked_files import open_npy


class EnsembleMembers:
    """Loads the members of a run's folder one after the other; adapters share the model that they belong to."""

    def __init__(self, folder: Path, record: EnsembleRecord, device: str, is_frozen: bool) -> None:
        self.folder, self.record, self.device, self.is_frozen = folder, record, device, is_frozen
        self.base_models: dict[Base, LanguageModel] = {}

    def load(self) -> Iterator[LoadedMember | FrozenMember]:
        """All members; with a frozen encoder, one for each pattern."""
        if self.is_frozen:
            yield from self._frozen_members()
            return
        yield from map(self._load_member, self.record.weights)

    @property
    def _heaviest(self) -> EnsembleMember:
        """The member with the highest weight, of equal ones the first."""
        return max(self.record.weights, key=lambda member: member.weight)

    @property
    def scope_folder(self) -> Path:
        """The folder of the member whose states out-of-scope scores compare: the one with the highest weight."""
        return self._model_path(self._heaviest.member)

    @property
    def has_states(self) -> bool:
        """Whether that member is a masked language model, which alone has such states."""
        base = base_of(self.scope_folder)
        return architecture_of(self.scope_folder if base is None else base.model) == "masked LM"

    def load_scope_member(self) -> LoadedMember | FrozenMember:
        """That member; with a frozen encoder, its pattern."""
        if self.is_frozen:
            return next(member for member in self._frozen_members() if member.folder == self.scope_folder)
        return self._load_member(self._heaviest)

    def _load_member(self, member: EnsembleMember) -> LoadedMember:
        names, recipe = [pair.name for pair in self.record.task.pairs], self.record.recipe
        model, activate_adapter = self._load_model(member.member)
        prompts = compile_task(model, self.record.task, wording=recipe.wording)
        prompts = prompts.for_pair(names.index(member.pair), member.zero_points)
        path = self._model_path(member.member)
        return LoadedMember(model, prompts, recipe.max_seq_length, member.weight, path, activate_adapter)

    def _model_path(self, key: str) -> Path:
        return jobs_folder(self.folder) / "members" / key / "model"

    def _frozen_members(self) -> Iterator[FrozenMember]:
        """A member for each pattern, with the label vectors of all its pairs; the encoder is loaded once."""
        paths = {member.pair: self._model_path(member.member) for member in self.record.weights}
        weights = {member.pair: member.weight for member in self.record.weights}
        base = base_of(next(iter(paths.values())))
        if base is None:
            raise RunError(f"The members of '{self.folder}' have no label vectors; train again.")
        recipe, task, model = self.record.recipe, self.record.task, self._base_model(base)
        assert isinstance(model, ClozeModel)
        names = [pair.name for pair in task.pairs]
        for prompt in compile_task(model, task, wording=recipe.wording).patterns:
            pairs = [names[pair] for pair in prompt.pairs]
            vectors = [open_npy(paths[pair] / LABEL_VECTORS) for pair in pairs]
            of_pairs = [weights[pair] for pair in pairs]
            heaviest = paths[max(pairs, key=lambda pair: weights[pair])]
            yield FrozenMember.combine(model, prompt, recipe.max_seq_length, vectors, of_pairs, heaviest)

    def _load_model(self, key: str) -> tuple[LanguageModel, Callable[[], None]]:
        """A member's model, and the function that activates its adapter where several members share the model."""
        path, generative = self._model_path(key), self.record.recipe.generative
        if (base := base_of(path)) is None:
            return load_model(path, self.device, safetensors_only=True, generative=generative), lambda: None
        model = self._base_model(base)
        model.use_adapter(path, key)
        return model, partial(model.use_adapter, path, key)

    def _base_model(self, base: Base) -> LanguageModel:
        """The model that adapters or label vectors belong to, loaded once."""
        if base not in self.base_models:
            self.base_models[base] = load_model(base.model, self.device, generative=self.record.recipe.generative)
            if model_key(base.model) != base.key:
                raise RunError(
                    f"The members of '{self.folder}' belong to the model '{base.model}', which has changed since; "
                    "restore the model or train again."
                )
        return self.base_models[base]
