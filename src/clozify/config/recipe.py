"""How it is done: every number of the paper's appendix B, named as there.

In: the name of a recipe, a recipe file (TOML), and single settings such as `distill.max_steps=500`. Out: a checked
`Recipe`. A column of the appendix's table is a section; where the paper is silent, the field's help says what is
taken.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from clozify.config.sections import Adapter as Adapter
from clozify.config.sections import Augment as Augment
from clozify.config.sections import Mixtext as Mixtext
from clozify.config.sections import Section
from clozify.config.sections import Training as Training
from clozify.config.sections import Uda as Uda
from clozify.errors import RecipeError, did_you_mean, quoted

RECIPES = Path(__file__).parents[1] / "recipes"


class Finetune(Training):
    """Fine-tuning a pattern-verbalizer pair, with the auxiliary language-modelling task (section 3.2)."""

    alpha: float = Field(1e-4, ge=0, le=1, description="The weight of L_MLM: (1 - alpha) L_CE + alpha L_MLM.")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="The share of tokens to predict.")
    per_gpu_train_batch_size: int = Field(1, ge=1, description="Labelled rows in a micro-batch.")
    per_gpu_helper_batch_size: int = Field(3, ge=1, description="Unlabelled rows in a micro-batch.")
    max_steps: int = Field(1000, ge=0, description="Steps, exactly so many, however few rows there are.")
    lm_targets: Literal["text", "all"] = Field(
        "text",
        description="Tokens that may have to be predicted: all but special tokens, padding and the cloze slot; or, as "
        "in the authors' code, all but the tokens at a segment's ends: padding (to max_seq_length) and cloze slot too.",
    )


class Distill(Training):
    """Training the classifier C on the soft-labelled pile (section 3.3, step 3)."""

    temperature: float = Field(2.0, gt=0, description="Softens the ensemble's scores into the target.")
    student_temperature: float = Field(
        1.0, gt=0, description="Divides the classifier's own scores in the loss; the paper softens the target only."
    )
    scale_by_squared_temperature: bool = Field(
        False, description="Multiply the loss by the temperature squared, as the authors' code does."
    )
    max_steps: int = Field(5000, ge=0, description="Steps, exactly so many, however few rows there are.")


class Pretrain(Training):
    """In-domain pretraining: the masked language model goes on reading the task's own texts (section 5)."""

    learning_rate: float = Field(5e-5, gt=0, description="Adam's peak learning rate; it falls linearly to 0.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay; not on biases and layer norms.")
    gradient_accumulation_steps: int = Field(2, ge=1, description="Micro-batches in a step.")
    per_gpu_train_batch_size: int = Field(2, ge=1, description="Blocks in a micro-batch; the paper had three GPUs.")
    max_steps: int = Field(50_000, ge=0, description="Steps.")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="The share of tokens to predict.")
    block_size: int = Field(256, ge=8, description="Tokens of a block; texts are packed end to end.")


class IPet(Section):
    """iPET: generations of models, each trained on more rows that others labelled (section 3.4)."""

    d: int = Field(5, ge=2, description="The training set grows by this factor with every generation.")
    teachers: float = Field(
        0.25, gt=0, le=1, description="The paper's lambda: the share of the other models that label for one."
    )
    enough: int = Field(1000, ge=1, description="Generations go on until a training set has so many rows.")
    generations: int | None = Field(
        None, ge=0, description="k; by default the least with |T| d^k >= enough, and 4 without labelled rows."
    )
    draw: Literal["probability", "score"] = Field(
        "probability",
        description="Rows are drawn in proportion to the teachers' softmax at T = 1; or to their raw score, less the "
        "lowest of the rows to draw from (a raw score may be negative, which the paper leaves open).",
    )
    zero_shot_examples: int = Field(10, ge=1, description="Rows of the first generation's sets without labelled rows.")
    zero_shot_pool: int = Field(100, ge=1, description="They are drawn from so many best rows for a label.")
    skip_generations: bool = Field(False, description="Let M^1 label for the last generation at once (section 5).")


class Words(Section):
    """Automatic verbalizer search (appendix E)."""

    k: int = Field(250, ge=1, description="Random verbalizers in each round.")
    i_max: int = Field(5, ge=1, description="Rounds.")
    m: int = Field(10, ge=1, description="Words for each label.")
    epsilon: float = Field(1e-3, ge=0, description="The least weight of a word in the next round's draw.")
    candidates: int = Field(10_000, ge=1, description="The most frequent words of the rows that are tried.")


class Wording(Section):
    """How a row is written into a pattern, and a label into a word."""

    spacing: Literal["as-written", "between-parts"] = Field(
        "as-written",
        description="A pattern as it is written; or a space before each of its parts, as the authors' code.",
    )
    label_words: Literal["in-place", "leading-space"] = Field(
        "in-place", description="A label's word as it would stand at the mask; or always as behind a space."
    )
    truncation: Literal["longest-field", "longest-segment"] = Field(
        "longest-field",
        description="Long rows lose tokens of their longest field; or of the last field of their longer segment.",
    )


class Dev(Section):
    """What a development file decides, where there is one (`--dev`); the paper has none."""

    every: int = Field(25, ge=1, description="Steps between looks at the development rows; the best weights are kept.")
    patience: int = Field(4, ge=0, description="Looks without a gain before training stops; 0 trains to the end.")


class Recipe(Section):
    """Everything that decides a run's numbers apart from the task, the data and the model."""

    name: str = "paper"
    seed: int = Field(42, ge=0, description="The first seed; repetitions count on from it.")
    repetitions: int = Field(3, ge=1, description="Models for each pair, and trainings of the final classifier.")
    max_seq_length: int = Field(256, ge=8, description="The most tokens of a row.")
    language_modeling: bool = Field(
        True, description="Train pairs with the auxiliary task (`finetune`) or without it (`finetune_without_lm`)."
    )
    weighting: Literal["weighted", "uniform"] = Field(
        "weighted", description="Members weigh as much as their pair's accuracy on T before training, or all the same."
    )
    attention_dropout: float | None = Field(
        None, ge=0, lt=1, description="Instead of the model's own; 0 makes a training step on a CPU faster."
    )
    distillation: bool = Field(True, description="Train a classifier on the soft labels; or keep the ensemble itself.")
    balance: bool = Field(False, description="Weigh labelled rows so that every label counts the same in the loss.")
    seeding: Literal["repetition", "ensemble"] = Field(
        "repetition",
        description="Every pair gets the same seeds, one a repetition; or each member its own, drawn from the first "
        "seed (the authors' code sets its seed once an ensemble).",
    )
    selection: Literal["first", "random"] = Field(
        "first", description="Which rows of a label are taken when a number of examples is asked for."
    )
    scores_dtype: Literal["float32", "float16"] = Field(
        "float32", description="How members' scores of the pile are written; float16 takes half the disk."
    )
    shard_rows: int = Field(
        65_536,
        ge=0,
        description="Where several workers share a run, each labels so many rows of a larger pile for a member at a "
        "time; 0: who trained a member labels all. Multiples of 16384 leave the scores the same to the bit.",
    )
    overlap: bool = Field(False, description="Keep labelled and test rows in the pile (the paper's D = T).")
    scoring: Literal["float32", "bf16", "auto"] = Field(
        "float32",
        description="What members score rows in on a CPU; 'auto' is bf16 where a trial finds it faster and close "
        "enough. A GPU always takes bf16.",
    )
    backslashes_to_spaces: bool = Field(False, description="Every backslash of the rows becomes a space.")
    wording: Wording = Wording()
    finetune: Finetune = Finetune()
    finetune_without_lm: Training = Training()
    adapter: Adapter = Adapter()
    distill: Distill = Distill()
    supervised: Training = Training()
    ipet: IPet = IPet()
    words: Words = Words()
    pretrain: Pretrain = Pretrain()
    uda: Uda = Uda()
    mixtext: Mixtext = Mixtext()
    augment: Augment = Augment()
    dev: Dev = Dev()

    def of_member(self, with_lm: bool) -> Training:
        """How a member is trained, with the auxiliary task or without."""
        section = self.finetune if with_lm else self.finetune_without_lm
        own = {"learning_rate": self.adapter.learning_rate} if self.adapter.method != "none" else {}
        return section.model_copy(update=own)

    def to_toml(self) -> str:
        """The whole recipe as a file, each setting with its help."""
        return _documented(self, [])

    def with_settings(self, settings: Sequence[str]) -> Recipe:
        """This recipe with settings such as `distill.max_steps=500` changed."""
        content = self.model_dump(exclude_none=True)
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise RecipeError(f"--set takes NAME=VALUE, as in --set distill.max_steps=500, not '{setting}'.")
            *sections, last = name.strip().split(".")
            place: Any = content
            for section in sections:
                place = place.get(section) if isinstance(place, dict) else None
            known = _names(self)
            if not isinstance(place, dict) or name.strip() not in known:
                raise RecipeError(f"There is no setting '{name}'{did_you_mean(name, known)}; see clozify recipe paper.")
            place[last] = _value(text.strip())
        return _validated(content, "The settings")


def _names(recipe: Section, before: str = "") -> list[str]:
    found = []
    for name in type(recipe).model_fields:
        value = getattr(recipe, name)
        found += _names(value, f"{before}{name}.") if isinstance(value, Section) else [before + name]
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _documented(section: Section, path: list[str]) -> str:
    lines, after = [], []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            title = (type(value).__doc__ or "").splitlines()[0] if name != "supervised" else "The supervised baseline."
            heading = "PET without the auxiliary task." if name == "finetune_without_lm" else title
            after.append(f"\n# {heading}\n[{'.'.join([*path, name])}]\n{_documented(value, [*path, name])}")
        elif value is None:
            lines.append(f"# {name} =   # {field.description}")
        else:
            written = tomli_w.dumps({name: value}).strip()
            lines.append(written + (f"   # {field.description}" if field.description else ""))
    return "\n".join(lines) + "\n" + "".join(after)


def _validated(content: dict[str, Any], where: str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError([_sentence(fault, where) for fault in error.errors()]) from None


def _sentence(fault: Any, where: str) -> str:
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{where}: there is no setting '{name}'{did_you_mean(name, _names(Recipe()))}; see clozify recipe paper."
    return f"{where}: '{name}' is {fault['input']!r}: {fault['msg'][0].lower() + fault['msg'][1:]}."


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with clozify, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def load_recipe(recipe: str | Path | Recipe = "paper", settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name or from a TOML file; what a file leaves out is as in the paper."""
    if not isinstance(recipe, Recipe):
        shipped = shipped_recipes()
        path = shipped.get(str(recipe), Path(recipe))
        if not path.is_file():
            raise RecipeError(
                f"The recipe '{recipe}' is neither a file nor a shipped recipe{did_you_mean(str(recipe), shipped)}; "
                f"the shipped ones are {quoted(shipped)}."
            )
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"The recipe file '{path}' is not valid TOML: {error}.") from None
        recipe = _validated({"name": path.stem} | content, f"The recipe '{path.name}'")
    return recipe.with_settings(settings) if settings else recipe
