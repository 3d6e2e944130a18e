"""Teachers in a task file, besides its patterns: `[[rules]]` and `[[teachers]]`; `docs/teachers.md` explains them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

LABEL_SLOT = "{label}"  # where a label's word goes in a hypothesis


def _to_tuple(value: object) -> object:
    """One word without a list is a list of one word."""
    return (value,) if isinstance(value, str) else value


def _to_text(value: object) -> object:
    """Numbers and truth values as text: labels often are."""
    return str(value).lower() if isinstance(value, (bool, int)) else value


def _has_label_slot(hypothesis: str) -> str:
    if LABEL_SLOT not in hypothesis:
        raise PydanticCustomError("hypothesis", "it has no {slot} where the label's word goes", {"slot": LABEL_SLOT})
    return hypothesis


LabelName = Annotated[str, BeforeValidator(_to_text)]
RuleWords = Annotated[tuple[str, ...], BeforeValidator(_to_tuple)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuleEntry(_Entry):
    """A rule: it votes for its label on rows that meet all of its conditions, and abstains on all others."""

    label: LabelName
    any: RuleWords = ()  # one of these words or phrases occurs
    none: RuleWords = ()  # none of these occurs
    regex: str | None = None  # it matches somewhere
    field: str | None = None  # all fields without one
    name: str = ""


class ModelEntry(_Entry):
    """Another language model for the task's patterns: masked, causal or encoder-decoder."""

    kind: Literal["model"]
    model: str
    name: str = ""


class ClassifierEntry(_Entry):
    """A sequence classifier of Transformers, whose labels are mapped to the task's."""

    kind: Literal["classifier"]
    model: str
    labels: dict[str, LabelName] = {}  # the classifier's label -> the task's, where they differ
    pair: bool = True  # the last of several fields is the text pair; else all are joined
    name: str = ""


class NliEntry(_Entry):
    """A natural language inference model: a label's probability is that of its hypothesis."""

    kind: Literal["nli"]
    model: str
    hypothesis: Annotated[str, AfterValidator(_has_label_slot)] = f"This text is about {LABEL_SLOT}."
    name: str = ""


class OpenAIEntry(_Entry):
    """A model behind an address that speaks OpenAI's protocol."""

    kind: Literal["openai"]
    model: str
    base_url: str | None = None
    name: str = ""


TeacherEntry = Annotated[ModelEntry | ClassifierEntry | NliEntry | OpenAIEntry, Field(discriminator="kind")]
ENTRY_OF_KIND: dict[str, type[BaseModel]] = {
    "model": ModelEntry,
    "classifier": ClassifierEntry,
    "nli": NliEntry,
    "openai": OpenAIEntry,
}
