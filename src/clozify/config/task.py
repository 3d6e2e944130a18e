"""What is asked: one TOML file with the fields, the labels, the patterns and the verbalizers (section 3).

In: a task file or the name of a shipped task. Out: a checked `Task`. Everything that can be told from the file
alone is checked here and reported at once; what needs the tokenizer or the data is checked in `check.py`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from clozify.config.pattern import MASK, Pattern
from clozify.errors import TaskError, did_you_mean, quoted

SHIPPED = Path(__file__).parents[1] / "tasks"


def _words(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _texts(value: object) -> object:
    """Labels in data are often numbers; in a task they are text."""
    if not isinstance(value, list) or not all(isinstance(names, list) for names in value):
        return value
    return [[str(name) if isinstance(name, int) else name for name in names] for names in value]


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class Verbalizer(BaseModel):
    """The function v of the paper: a word, or several, for each label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: dict[str, Words]
    name: str = ""

    def problems(self, labels: list[str]) -> list[str]:
        """What is wrong with these words for a task with these labels, one sentence each."""
        where = f"The verbalizer '{self.name}'" if self.name else "The table [labels]"
        found = []
        if missing := [label for label in labels if not self.words.get(label)]:
            found.append(f"{where} has no word for the label {quoted(missing)}; give every label one word or more.")
        if extra := [label for label in self.words if label not in labels]:
            found.append(f"{where} has words for {quoted(extra)}, but the labels are {quoted(labels)}.")
        for label, words in self.words.items():
            found += [
                f"{where} gives the label '{label}' the word '{word}'; a word is text without white space around it."
                for word in words
                if not word or word != word.strip()
            ]
        single = [(words[0], label) for label, words in self.words.items() if len(words) == 1]
        owner: dict[str, str] = {}
        for word, label in single:
            if word in owner:
                found.append(
                    f"{where} gives the labels '{owner[word]}' and '{label}' the same word '{word}', so they could "
                    "never be told apart; give each its own."
                )
            owner.setdefault(word, label)
        return found


@dataclass(frozen=True)
class Pair:
    """A pattern-verbalizer pair (PVP), with its name within the task: `p1`, or `p1-v2` with several verbalizers."""

    name: str
    pattern: Pattern
    verbalizer: Verbalizer


class Task(BaseModel):
    """A classification task in words. Written as TOML; `docs/tasks.md` shows every entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    description: str = ""
    fields: list[str] = Field(min_length=1)
    optional: list[str] = []
    label: str = "label"
    id: str | None = None
    metric: Literal["accuracy", "macro-f1"] = "accuracy"
    patterns: list[str] = Field(min_length=1)
    columns: list[str] | None = None
    aliases: Annotated[list[list[str]], BeforeValidator(_texts)] = []
    line_breaks: list[str] = []
    verbalizers: list[Verbalizer] = Field(min_length=1)

    def changed(self, **update: Any) -> Task:
        """The same task with other content; checked, and without what was worked out from the old one."""
        return Task.model_validate(self.model_dump() | update)

    @property
    def labels(self) -> list[str]:
        """The set L of the paper, in the order of the file."""
        return list(self.verbalizers[0].words)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every pattern with every verbalizer."""
        several = len(self.verbalizers) > 1
        ordered = [  # whatever order a verbalizer lists the labels in, scores come in the task's
            Verbalizer(name=verbalizer.name, words={label: verbalizer.words[label] for label in self.labels})
            for verbalizer in self.verbalizers
        ]
        return [
            Pair(f"p{number}-{verbalizer.name}" if several else f"p{number}", Pattern(text), verbalizer)
            for number, text in enumerate(self.patterns, start=1)
            for verbalizer in ordered
        ]

    def problems(self) -> list[str]:
        """Everything wrong that shows in the file alone, one sentence each."""
        found = []
        if MASK in self.fields:
            found.append("A field is called 'mask', which a pattern would take for the mask; rename the column.")
        for what, names in (
            ("fields", self.fields),
            ("patterns", self.patterns),
            ("columns", self.columns or []),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                found.append(f"{quoted(twice)} stands twice in '{what}'; once is enough.")
        if unknown := [name for name in self.optional if name not in self.fields]:
            found.append(f"{quoted(unknown)} under 'optional' is not a field; the fields are {quoted(self.fields)}.")
        if self.columns is not None and (
            missing := [name for name in self.fields if name not in [*self.columns, *self.optional]]
        ):
            found.append(
                f"'columns' names the columns of files without a header, but lacks the field {quoted(missing)}."
            )
        if any(not text for text in self.line_breaks):
            found.append("'line_breaks' holds an empty text, which stands everywhere; remove it.")
        if len(self.labels) < 2:
            only = f"is only the label {quoted(self.labels)}" if self.labels else "is no label"
            found.append(f"There {only}; classification needs two or more.")
        found += [
            f"'aliases' has a list of {len(names)} names ({quoted(names, 4)}) for {len(self.labels)} labels; "
            "each list names all labels, each once, in their order."
            for names in self.aliases
            if len(names) != len(self.labels) or len(set(names)) != len(names)
        ]
        for pattern in self.patterns:
            found += Pattern(pattern).problems(self.fields)
        names = [verbalizer.name for verbalizer in self.verbalizers]
        if len(names) > 1 and (len(set(names)) != len(names) or "" in names):
            found.append('Each of several [[verbalizers]] needs a name of its own; add name = "..." to each.')
        for verbalizer in self.verbalizers:
            found += verbalizer.problems(self.labels)
        return found

    def to_toml(self) -> str:
        """The task as a file that reads back as the same task."""
        content: dict[str, Any] = self.model_dump(exclude_defaults=True)
        verbalizers = [
            {**entry, "words": {label: _short(words) for label, words in entry["words"].items()}}
            for entry in content.pop("verbalizers")
        ]
        if len(verbalizers) == 1 and not self.verbalizers[0].name:
            return tomli_w.dumps({**content, "labels": verbalizers[0]["words"]}, multiline_strings=False)
        return tomli_w.dumps({**content, "verbalizers": verbalizers}, multiline_strings=False)

    def save(self, path: str | Path) -> None:
        """Write the task file."""
        Path(path).write_text(self.to_toml(), encoding="utf-8")


def _short(words: tuple[str, ...]) -> str | list[str]:
    return words[0] if len(words) == 1 else list(words)


def parse_task(text: str, where: str = "the task") -> Task:
    """A task from TOML text; `where` names its origin in messages."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{where} is not valid TOML: {error}.") from None
    if "labels" in content and "verbalizers" in content:
        raise TaskError(f"{where}: there are both [labels] and [[verbalizers]]; keep one of them.")
    if "labels" in content:
        content["verbalizers"] = [{"words": content.pop("labels")}]
    elif "verbalizers" not in content:
        raise TaskError(f"{where}: there are no labels; add a table [labels] with a word for each label.")
    try:
        task = Task.model_validate(content)
    except ValidationError as error:
        raise TaskError([f"{where}: {_sentence(fault)}" for fault in error.errors()]) from None
    if problems := task.problems():
        raise TaskError([f"{where}: {problem}" for problem in problems])
    return task


def _sentence(fault: Any) -> str:
    """One of Pydantic's findings as a sentence in the words of the task file."""
    place = [str(part) for part in fault["loc"]]
    if place[:3] == ["verbalizers", "0", "words"]:
        place = ["labels", *place[3:]]
    name = ".".join(place)
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(place[-1], [*Task.model_fields, "labels"])
        return f"the entry '{name}' is not known{near}; remove or rename it."
    if fault["type"] == "missing" and place == ["labels"]:
        return 'a verbalizer has no words; add words = { label = "word", ... } to it.'
    if fault["type"] in ("tuple_type", "string_type") and place[0] == "labels":
        return f"the entry '{name}' is {fault['input']!r}, not a word; write it in quotation marks, or a list of words."
    if fault["type"] == "missing":
        return f"the entry '{name}' is missing; add it."
    return f"the entry '{name}' is {fault['input']!r}: {fault['msg'][0].lower() + fault['msg'][1:]}."


def shipped_tasks() -> dict[str, Path]:
    """The task files that come with clozify, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load_task(task: str | Path | Task) -> Task:
    """A task from a TOML file, or a shipped one by its name."""
    if isinstance(task, Task):
        return task
    shipped = shipped_tasks()
    path = shipped.get(str(task), Path(task))
    if not path.is_file():
        what = "is a folder, not a task file" if path.is_dir() else "is neither a file nor a shipped task"
        raise TaskError(
            f"The task '{task}' {what}{did_you_mean(str(task), shipped)}; "
            f"name a TOML file or one of {', '.join(shipped)}."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"The task file '{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    return parse_task(text, where=f"Task file '{path.name if path in shipped.values() else path}'")
