"""Recipes: every hyperparameter of the paper's appendix B under its name there, from TOML files and `--set` options.

Each column of the appendix's table is a section of the recipe. Where the paper is silent, a field's help text says
what is taken instead.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from clozify.config.baselines import Augment as Augment
from clozify.config.baselines import Mixtext as Mixtext
from clozify.config.baselines import Uda as Uda
from clozify.config.sections import Adapter as Adapter
from clozify.config.sections import Dev as Dev
from clozify.config.sections import Distill as Distill
from clozify.config.sections import Estimate as Estimate
from clozify.config.sections import Finetune as Finetune
from clozify.config.sections import Frozen as Frozen
from clozify.config.sections import Generative as Generative
from clozify.config.sections import IPet as IPet
from clozify.config.sections import MemberTraining as MemberTraining
from clozify.config.sections import Multilabel as Multilabel
from clozify.config.sections import PartialTraining as PartialTraining
from clozify.config.sections import Pretrain as Pretrain
from clozify.config.sections import Section
from clozify.config.sections import Static as Static
from clozify.config.sections import StudentTraining as StudentTraining
from clozify.config.sections import Training as Training
from clozify.config.sections import Wording as Wording
from clozify.config.sections import Words as Words
from clozify.config.toml import parse_toml
from clozify.errors import RecipeError, did_you_mean, quoted

RECIPES = Path(__file__).parents[1] / "recipes"


class Recipe(Section):
    """All settings of a run apart from the task, the data and the model."""

    name: str = "paper"
    adapt: bool = Field(
        False,
        description="Choose steps, learning rates, rows and members for the device, the model and the data when a run "
        "starts, as the recipe auto does.",
    )
    adapt_to: Literal["device", "cpu", "gpu"] = Field(
        "device",
        description="The device that `adapt` chooses for: the run's own; 'cpu' for few members and steps on a GPU; "
        "'gpu' for its more thorough settings on a CPU, where they take hours.",
    )
    seed: int = Field(42, ge=0, description="The first seed; repetition r uses seed + r.")
    repetitions: int = Field(3, ge=1, description="Models for each pair, and trainings of the final classifier.")
    max_seq_length: int = Field(
        256, ge=8, description="The largest number of tokens in a row; longer ones are truncated."
    )
    language_modeling: bool = Field(
        True, description="Train pairs with the auxiliary task (`finetune`) or without it (`finetune_without_lm`)."
    )
    weighting: Literal["weighted", "uniform"] = Field(
        "weighted",
        description="Members weigh by their pair's accuracy on the labelled rows before training, or all the same.",
    )
    attention_dropout: float | None = Field(
        None, ge=0, lt=1, description="Replaces the model's own; 0 makes training on a CPU faster."
    )
    distillation: bool = Field(
        True, description="Train a classifier on the soft labels; false keeps the ensemble instead."
    )
    balance: bool = Field(False, description="Weigh labelled rows so that every label counts the same in the loss.")
    seeding: Literal["repetition", "ensemble"] = Field(
        "repetition",
        description="Every pair gets the same seeds, one for each repetition; 'ensemble' gives each member its own, "
        "drawn from the first seed (the authors' code sets its seed once for an ensemble).",
    )
    selection: Literal["first", "random"] = Field(
        "first", description="Which rows of each label --examples takes: the first in the file, or random ones."
    )
    scores_dtype: Literal["float32", "float16"] = Field(
        "float32", description="Data type of the members' scores on disk; float16 takes half the space."
    )
    shard_rows: int = Field(
        65_536,
        ge=0,
        description="With several workers, a member's scoring of the unlabelled rows is split into shards of this many "
        "rows; 0: the worker that trained a member scores them all. Multiples of 16384 give bit-equal scores.",
    )
    max_pairs: int | None = Field(
        None,
        ge=1,
        description="Train members for at most so many pairs, those with the highest accuracy on the labelled rows "
        "before training; by default for all.",
    )
    unlabeled_rows: int | None = Field(
        None, ge=1, description="Unlabelled rows to label and to train on, at most; by default all."
    )
    overlap: bool = Field(
        False, description="Keep labelled and test rows among the unlabelled ones (the paper's D = T)."
    )
    kernels: Literal["auto", "torch"] = Field(
        "auto",
        description="What a GPU computes with: CUDA graphs, padding-free batches and fused kernels where they work; or "
        "'torch', plain PyTorch.",
    )
    precision: Literal["auto", "float32", "bf16"] = Field(
        "auto",
        description="What models are trained and rows scored in; weights are kept in float32. 'auto' is bf16 on a GPU "
        "and float32 on a CPU.",
    )
    scoring: Literal["float32", "bf16", "int8", "auto"] = Field(
        "float32",
        description="What members score rows in on a CPU where precision is 'auto', and what frozen layers run in; "
        "'auto' is bf16 where a trial finds it faster and close enough, 'int8' is float32 where the processor does not "
        "sum 8-bit products exactly and fast.",
    )
    gpu_scoring: Literal["auto", "bf16", "fp8"] = Field(
        "auto",
        description="What members score rows in on a GPU where precision is 'auto'; 'auto' is fp8 on GPUs that have it "
        "for encoders of 1,024 columns or more that read padding-free batches, else bf16.",
    )
    backslashes_to_spaces: bool = Field(False, description="Replace every backslash in the rows by a space.")
    wording: Wording = Wording()
    finetune: Finetune = Finetune()
    finetune_without_lm: MemberTraining = MemberTraining()
    adapter: Adapter = Adapter()
    generative: Generative = Generative()
    distill: Distill = Distill()
    supervised: StudentTraining = StudentTraining()
    ipet: IPet = IPet()
    frozen: Frozen = Frozen()
    multilabel: Multilabel = Multilabel()
    estimate: Estimate = Estimate()
    static: Static = Static()
    words: Words = Words()
    pretrain: Pretrain = Pretrain()
    uda: Uda = Uda()
    mixtext: Mixtext = Mixtext()
    augment: Augment = Augment()
    dev: Dev = Dev()

    def member_settings(self, with_lm: bool) -> MemberTraining:
        """The training settings of a member, with the auxiliary task or without it."""
        section = self.finetune if with_lm else self.finetune_without_lm
        if self.adapter.method == "none":
            return section
        return section.model_copy(update={"learning_rate": self.adapter.learning_rate})

    def for_generative(self) -> Recipe:
        """The recipe of causal and encoder-decoder members, without what there is for masked LMs alone."""
        masked_only = {"frozen_layers": 0.0, "contrastive": 0.0, "label_learning_rate": None}
        scoring = "bf16" if self.scoring == "bf16" else "float32"
        section = self.finetune_without_lm.model_copy(update=masked_only)
        changes = {"language_modeling": False, "finetune_without_lm": section, "scoring": scoring}
        return self.model_copy(update=changes)

    def to_toml(self) -> str:
        """The recipe as a TOML file with every setting and its help text."""
        return _to_toml(self, [])

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, content: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise `RecipeError` instead of Pydantic's error."""
        try:
            return validate(content)
        except ValidationError as error:
            raise RecipeError([_explain(fault) for fault in error.errors()]) from None

    def with_settings(self, settings: Sequence[str]) -> Recipe:
        """This recipe with settings such as `distill.max_steps=500` changed."""
        content = self.model_dump(exclude_none=True)
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise RecipeError(f"--set takes NAME=VALUE, as in --set distill.max_steps=500, not '{setting}'.")
            name = name.strip()
            setting_names = _setting_names(self)
            if name not in setting_names:
                near = did_you_mean(name, setting_names)
                raise RecipeError(f"There is no setting '{name}'{near}; clozify recipe paper lists all of them.")
            *sections, field = name.split(".")
            target: dict[str, Any] = content
            for section in sections:
                target = target[section]
            target[field] = _parse_value(text.strip())
        return _validate(content, "The settings")


def _setting_names(section: Section, prefix: str = "") -> list[str]:
    """The names of all settings, as `--set` takes them: `seed`, `finetune.alpha`."""
    names = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        names += _setting_names(value, f"{prefix}{name}.") if isinstance(value, Section) else [prefix + name]
    return names


def _parse_value(text: str) -> Any:
    """A TOML value; what is not valid TOML is a string without its quotation marks."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text


HEADINGS = {"supervised": "The supervised baseline.", "finetune_without_lm": "PET without the auxiliary task."}


def _to_toml(section: Section, path: list[str]) -> str:
    """A section as TOML, its help texts as comments, followed by its subsections."""
    lines, subsections = [], []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            heading = HEADINGS.get(name) or (type(value).__doc__ or "").splitlines()[0]
            subsections.append(f"\n# {heading}\n[{'.'.join([*path, name])}]\n{_to_toml(value, [*path, name])}")
        elif value is None:
            lines.append(f"# {name} =   # {field.description}")
        else:
            entry = tomli_w.dumps({name: value}).strip()
            lines.append(entry + (f"   # {field.description}" if field.description else ""))
    return "\n".join(lines) + "\n" + "".join(subsections)


def _validate(content: dict[str, Any], source: str) -> Recipe:
    """The recipe with this content; `source` names it in error messages."""
    try:
        return Recipe.model_validate(content)
    except RecipeError as error:
        raise RecipeError([f"{source}: {problem}" for problem in error.problems]) from None


def _explain(fault: Any) -> str:
    """One of Pydantic's errors as a sentence."""
    name = ".".join(str(key) for key in fault["loc"])
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(name, _setting_names(Recipe()))
        return f"there is no setting '{name}'{near}; clozify recipe paper lists all of them."
    return f"'{name}' is {fault['input']!r}: {fault['msg'][0].lower() + fault['msg'][1:]}."


def shipped_recipes() -> dict[str, Path]:
    """The recipe files that come with clozify, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def _setting_text(name: str, value: Any) -> str:
    """A setting's value from Python as `--set` takes it."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise RecipeError(
            f"The setting '{name}' is of the type {type(value).__name__}; pass a number, text, a truth value or a list."
        ) from None


def load_recipe(recipe: str | Path | Recipe = "paper", settings: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """A recipe by name or from a TOML file, with settings changed.

    `settings` are `{"distill.max_steps": 500}` or `["distill.max_steps=500"]`. What a file leaves out is as in
    the paper.
    """
    if isinstance(settings, str):
        settings = [settings]
    if isinstance(settings, Mapping):
        settings = [f"{name}={_setting_text(name, value)}" for name, value in settings.items()]
    if not isinstance(recipe, (str, Path, Recipe)):
        raise RecipeError(
            f"A recipe is a name, a file or a Recipe, not of the type {type(recipe).__name__}; change single settings "
            'with settings={"distill.max_steps": 500}.'
        )
    if not isinstance(settings, Sequence) or not all(isinstance(setting, str) for setting in settings):
        raise RecipeError(
            f'Settings are a dict such as {{"distill.max_steps": 500}}, or texts such as "distill.max_steps=500", not '
            f"{settings!r}."
        )
    if not isinstance(recipe, Recipe):
        shipped = shipped_recipes()
        path = shipped.get(str(recipe), Path(recipe))
        if not path.is_file():
            raise RecipeError(
                f"The recipe '{recipe}' is neither a file nor a shipped recipe{did_you_mean(str(recipe), shipped)}; "
                f"the shipped ones are {quoted(shipped)}."
            )
        source = f"The recipe file '{path}'"
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise RecipeError(f"{source} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
        content = parse_toml(text, source, RecipeError)
        recipe = _validate({"name": path.stem} | content, f"The recipe '{path.name}'")
    return recipe.with_settings(settings) if settings else recipe
