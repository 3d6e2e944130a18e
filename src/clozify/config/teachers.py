"""Teachers in a task file, besides its patterns: `[[rules]]` and `[[teachers]]`; `docs/teachers.md` explains them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

LABEL_SLOT = "{label}"  # where a label's word goes in a hypothesis


def _has_label_slot(hypothesis: str) -> str:
    if LABEL_SLOT not in hypothesis:
        raise PydanticCustomError("hypothesis", "it has no {slot} where the label's word goes", {"slot": LABEL_SLOT})
    return hypothesis


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuleEntry(_Entry):
    """A rule: it votes for its label on rows that match, and abstains on all others."""

    label: str
    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    regex: str | None = None
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
    labels: dict[str, str] = {}  # the classifier's label -> the task's, where they differ
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
