"""Teachers in a task file, besides its patterns: `[[rules]]` and `[[teachers]]`; `docs/teachers.md` explains them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from clozify.errors import quoted, unknown_names

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

OPENAI_URL = "https://api.openai.com/v1"
EXAMPLE_URL = "http://localhost:8000/v1"
PLACEHOLDERS = ("task", "labels", "examples", "row", "code")  # in an LLM's prompt, besides the task's fields


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

    @property
    def title(self) -> str:
        """Its name in logs and reports: its own, or the last part of the model's."""
        return self.name or self.model.rstrip("/").rpartition("/")[2]


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
    """A large language model behind an address that speaks OpenAI's protocol; it is asked for each row's label."""

    kind: Literal["openai"]
    model: str = Field(min_length=1, description="The model's name on the server.")
    base_url: str = Field(OPENAI_URL, description="The server's address, such as http://localhost:8000/v1.")
    name: str = Field("", description="The teacher's name in the log and the report; the model's name without one.")
    api_key_env: str = Field("OPENAI_API_KEY", description="The environment variable that holds the key, if any.")
    rows: int | None = Field(None, ge=1, description="How many rows it is asked about, the least certain first.")
    prompt: str = Field("", description="Another prompt, with {row} or fields, {labels}, {examples}, {task}, {code}.")
    descriptions: dict[str, str] = Field({}, description="What labels mean, a sentence each; for some or all labels.")
    examples: int = Field(8, ge=0, description="How many labelled rows a prompt holds at most.")
    characters: int = Field(4_000, ge=1, description="How many characters of a field's text a prompt holds at most.")
    logprobs: Literal["auto", True, False] = Field("auto", description="Whether to ask for log-probabilities.")
    answers: int = Field(1, ge=1, description="How many answers are sampled a row where there are no probabilities.")
    temperature: float | None = Field(None, ge=0, description="Of sampling; else 0 for one answer, 1 for several.")
    answer_tokens: int = Field(16, ge=1, description="How long an answer may be; a model that reasons needs more.")
    max_requests: int | None = Field(None, ge=0, description="Requests in a run at most; other rows get no vote.")
    max_tokens: int | None = Field(None, ge=0, description="Input and output tokens in a run at most.")
    input_price: float | None = Field(None, ge=0, description="The price of a million input tokens.")
    output_price: float | None = Field(None, ge=0, description="The price of a million output tokens.")
    concurrency: int = Field(8, ge=1, description="How many requests are under way at a time.")
    timeout: float = Field(60.0, gt=0, description="Seconds to wait for an answer.")
    retries: int = Field(6, ge=0, description="How often a request is repeated after an error or a time-out.")

    def problems(self, fields: Sequence[str], labels: Sequence[str]) -> list[str]:
        """The faults of this entry for a task with these fields and labels, one sentence each.

        No sentence repeats what may be a key in the wrong place.
        """
        where = f"The teacher '{self.name or self.model}'"
        problems = list[str]()
        try:
            address = urlsplit(self.base_url)
        except ValueError:
            address = urlsplit("")
        if address.scheme not in ("http", "https") or not address.hostname:
            problems.append(f"{where} has a base_url that is no address; write one such as {EXAMPLE_URL}.")
        if address.username or address.password or address.query or address.fragment:
            problems.append(
                f"{where} has a base_url with a user, a password or a query; write the address alone, and put the key "
                "into an environment variable that api_key_env names."
            )
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            problems.append(
                f"{where} has an api_key_env that is no name of an environment variable; put the key into a variable "
                "and write the variable's name."
            )
        if unknown := [label for label in self.descriptions if label not in labels]:
            problems.append(
                f"{where} describes the label {unknown_names(unknown, labels)}, which the task does not have; its "
                f"labels are {quoted(labels)}."
            )
        return problems + self._prompt_problems(where, fields)

    def _prompt_problems(self, where: str, fields: Sequence[str]) -> list[str]:
        if not self.prompt:
            return []
        try:
            parts = list(Formatter().parse(self.prompt))
        except ValueError:
            return [f"{where} has a prompt with a single brace; write {{{{ or }}}} for a brace that is text."]
        names = [name for _, name, _, _ in parts if name is not None]
        valid = [*PLACEHOLDERS, *(field for field in fields if field not in PLACEHOLDERS)]
        problems = list[str]()
        if unknown := [name for name in names if name not in valid]:
            problems.append(
                f"{where} has a prompt with the placeholder {unknown_names(unknown, valid)}; the placeholders are "
                f"{quoted(valid)}."
            )
        if any(spec or conversion for _, _, spec, conversion in parts):
            problems.append(f"{where} has a prompt with a placeholder that holds ':' or '!'; write its name alone.")
        if not {"row", *fields} & set(names):
            problems.append(f"{where} has a prompt without a row's text; put {{row}} or a field into it.")
        return problems


TeacherEntry = Annotated[ModelEntry | ClassifierEntry | NliEntry | OpenAIEntry, Field(discriminator="kind")]
ENTRY_OF_KIND: dict[str, type[BaseModel]] = {
    "model": ModelEntry,
    "classifier": ClassifierEntry,
    "nli": NliEntry,
    "openai": OpenAIEntry,
}
