"""Tasks: fields, labels, patterns and verbalizers (section 3), written as one TOML file.

All faults that show in the file alone are reported here, together; `inference/check.py` checks a task against a
model's tokenizer and the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from clozify.config.groups import LabelGroups, group_problems
from clozify.config.label_names import name_to_words, words_of_names
from clozify.config.label_sets import SEPARATOR as SEPARATOR
from clozify.config.label_sets import multilabel_problems
from clozify.config.pattern import MASK, Pattern
from clozify.config.teacher_faults import explain_teacher_fault, teacher_problems
from clozify.config.teachers import RuleEntry, TeacherEntry
from clozify.config.toml import parse_toml
from clozify.errors import TaskError, did_you_mean, quoted, unknown_names
from clozify.utils.atomic import atomic_write_text

TaskSource: TypeAlias = "str | Path | Task | Mapping[str, Any]"  # a file, a shipped task's name, or the task itself
SHIPPED = Path(__file__).parents[1] / "tasks"
# not dumped where they have their defaults: hashes of tasks stay the same
LATER_ENTRIES = ("multilabel", "separator", "rules", "teachers")


def _to_tuple(value: object) -> object:
    """One word without a list is a list of one word."""
    return (value,) if isinstance(value, str) else value


def _numbers_to_text(value: object) -> object:
    """Aliases with numbers as text: labels in data are often numbers."""
    if not isinstance(value, list) or not all(isinstance(names, list) for names in value):
        return value
    return [[str(name) if isinstance(name, int) else name for name in names] for names in value]


def _group_labels(value: object) -> object:
    """A group's labels: a single one without a list, and numbers as text."""
    names = [value] if isinstance(value, (str, int)) else value
    return [str(name) if isinstance(name, int) else name for name in names] if isinstance(names, list) else names


Words = Annotated[tuple[str, ...], BeforeValidator(_to_tuple)]


class Verbalizer(BaseModel):
    """The function v of the paper: a word, or several, for each label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: dict[str, Words]
    name: str = ""

    def problems(self, labels: list[str]) -> list[str]:
        """The faults of these words for a task with these labels, one sentence each."""
        subject = f"The verbalizer '{self.name}'" if self.name else "The entry 'labels'"
        problems = []
        if missing := [label for label in labels if not self.words.get(label)]:
            problems.append(
                f"{subject} has no word for the label {quoted(missing)}; give every label one word or more."
            )
        if extra := [label for label in self.words if label not in labels]:
            problems.append(f"{subject} has words for {quoted(extra)}, but the labels are {quoted(labels)}.")
        for label, words in self.words.items():
            problems += [
                f"{subject} gives the label '{label}' the word '{word}'; a word is text without white space around it."
                for word in words
                if not word or word != word.strip()
            ]
        single_words = [(words[0], label) for label, words in self.words.items() if len(words) == 1]
        label_of_word: dict[str, str] = {}
        for word, label in single_words:
            if word in label_of_word:
                problems.append(
                    f"{subject} gives the labels '{label_of_word[word]}' and '{label}' the same word '{word}', so they "
                    "could never be told apart; give each its own."
                )
            label_of_word.setdefault(word, label)
        return problems


@dataclass(frozen=True)
class Pair:
    """A pattern-verbalizer pair (PVP), with its name within the task: `p1`, or `p1-v2` with several verbalizers."""

    name: str
    pattern: Pattern
    verbalizer: Verbalizer


class Task(BaseModel):
    """A classification task; `docs/tasks.md` explains every entry of its TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    description: str = ""
    fields: list[str] = Field(min_length=1)
    optional: list[str] = []
    label: str = "label"
    id: str | None = None
    multilabel: bool = False
    separator: str = SEPARATOR
    metric: Literal["accuracy", "macro-f1", "micro-f1"] = "accuracy"
    patterns: list[str] = Field(min_length=1)
    columns: list[str] | None = None
    aliases: Annotated[list[list[str]], BeforeValidator(_numbers_to_text)] = []
    line_breaks: list[str] = []
    verbalizers: list[Verbalizer] = Field(min_length=1)
    groups: dict[str, Annotated[list[str], BeforeValidator(_group_labels)]] = {}
    rules: list[RuleEntry] = []
    teachers: list[TeacherEntry] = []

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, content: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise `TaskError` instead of Pydantic's error; the metric of several labels a row is micro-F1 by default."""
        if isinstance(content, Mapping) and content.get("multilabel") is True:
            content = {"metric": "micro-f1", **content}
        try:
            return validate(content)
        except ValidationError as error:
            raise TaskError([_explain(fault) for fault in error.errors()]) from None

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialize(self)
        defaults = {name: Task.model_fields[name].default for name in LATER_ENTRIES}
        return {name: value for name, value in content.items() if name not in defaults or value != defaults[name]}

    def with_changes(self, **update: Any) -> Task:
        """A copy of the task with these entries replaced, validated anew."""
        return Task.model_validate(self.model_dump() | update)

    @property
    def labels(self) -> list[str]:
        """The set L of the paper, in the order of the file."""
        return list(self.verbalizers[0].words)

    @cached_property
    def label_groups(self) -> LabelGroups | None:
        """The group of each label; None where the task has no groups."""
        return LabelGroups(self.labels, self.groups) if self.groups else None

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every pattern with every verbalizer."""
        several = len(self.verbalizers) > 1
        ordered = [  # scores come in the order of the task's labels, whatever the order in a verbalizer
            Verbalizer(name=verbalizer.name, words={label: verbalizer.words[label] for label in self.labels})
            for verbalizer in self.verbalizers
        ]
        return [
            Pair(f"p{index}-{verbalizer.name}" if several else f"p{index}", Pattern(text), verbalizer)
            for index, text in enumerate(self.patterns, start=1)
            for verbalizer in ordered
        ]

    def problems(self) -> list[str]:
        """The faults that show in the file alone, one sentence each."""
        problems = []
        if MASK in self.fields:
            problems.append("A field is called 'mask', which a pattern would take for the mask; rename the column.")
        if self.label in self.fields:
            problems.append(
                f"The label column '{self.label}' is a field, too, so the model would read the answer; remove it."
            )
        if padded := [name for name in self.labels if name != name.strip() or not name]:
            problems.append(f"The label {quoted(padded)} is empty or has white space around it; data never match that.")
        for entry, names in (
            ("fields", self.fields),
            ("patterns", self.patterns),
            ("columns", self.columns or []),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                problems.append(f"{quoted(twice)} stands twice in '{entry}'; remove one.")
        if unknown := [name for name in self.optional if name not in self.fields]:
            problems.append(f"{quoted(unknown)} under 'optional' is not a field; the fields are {quoted(self.fields)}.")
        if self.columns is not None and (
            missing := [name for name in self.fields if name not in [*self.columns, *self.optional]]
        ):
            problems.append(
                f"'columns' names the columns of files without a header, but lacks the field {quoted(missing)}."
            )
        if any(not text for text in self.line_breaks):
            problems.append("'line_breaks' holds an empty text, which would match everywhere; remove it.")
        if len(self.labels) < 2:
            labels = f"is only the label {quoted(self.labels)}" if self.labels else "is no label"
            problems.append(f"There {labels}; classification needs two or more.")
        problems += [
            f"'aliases' has a list of {len(names)} names ({quoted(names, 4)}) for {len(self.labels)} labels; "
            "each list names all labels, each once, in their order."
            for names in self.aliases
            if len(names) != len(self.labels) or len(set(names)) != len(names)
        ]
        problems += multilabel_problems(self)
        for pattern in self.patterns:
            problems += Pattern(pattern).problems(self.fields)
        names = [verbalizer.name for verbalizer in self.verbalizers]
        if len(names) > 1 and (len(set(names)) != len(names) or "" in names):
            problems.append('Each of several [[verbalizers]] needs a name of its own; add name = "..." to each.')
        for verbalizer in self.verbalizers:
            problems += verbalizer.problems(self.labels)
        return problems + group_problems(self.labels, self.groups) + teacher_problems(self)

    def to_toml(self) -> str:
        """The task as TOML text; `parse_task` reads it back."""
        content: dict[str, Any] = self.model_dump(exclude_defaults=True)
        verbalizers = [
            {**entry, "words": {label: _unwrap(words) for label, words in entry["words"].items()}}
            for entry in content.pop("verbalizers")
        ]
        if len(verbalizers) == 1 and not self.verbalizers[0].name:
            words = verbalizers[0]["words"]
            names_only = all(name_to_words(label) == words for label, words in words.items())
            labels = list(words) if names_only else words
            return tomli_w.dumps({**content, "labels": labels}, multiline_strings=False)
        return tomli_w.dumps({**content, "verbalizers": verbalizers}, multiline_strings=False)

    def save(self, path: str | Path) -> None:
        """Write the task file atomically."""
        atomic_write_text(Path(path), self.to_toml())


def _unwrap(words: tuple[str, ...]) -> str | list[str]:
    """A single word without a list."""
    return words[0] if len(words) == 1 else list(words)


def parse_task(text: str, source: str = "the task") -> Task:
    """A task from TOML text; `source` names it in error messages."""
    return build_task(parse_toml(text, source, TaskError), source)


def build_task(content: Mapping[str, Any], source: str, more_labels: Sequence[str] = ()) -> Task:
    """A task from the content of a task file; `more_labels` are added to its labels, with their names as words."""
    problems = list[str]()
    try:
        content, problems = _with_verbalizers(content, more_labels)
        task = Task.model_validate(content)
        problems += task.problems()
    except TaskError as error:
        problems += error.problems
    if problems:
        raise TaskError([f"{source}: {problem}" for problem in problems])
    return task


def has_labels(content: Mapping[str, Any]) -> bool:
    """Whether the content of a task file has labels."""
    return "labels" in content or "verbalizers" in content


def _with_verbalizers(content: Mapping[str, Any], more_labels: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The content with `verbalizers` instead of `labels` and `words`, and the faults of a list of labels."""
    content = dict(content)
    labels, words = content.pop("labels", None), content.pop("words", {})
    if labels is not None and "verbalizers" in content:
        raise TaskError("there are both [labels] and [[verbalizers]]; keep one of them.")
    if words and (isinstance(labels, Mapping) or "verbalizers" in content):
        raise TaskError("the entry 'words' belongs to a list of labels; write the words where the labels are.")
    if labels is None and "verbalizers" not in content and not more_labels:
        raise TaskError(
            'there are no labels; write labels = ["...", "..."] with their names or a table [labels] with a word for '
            "each, or take them from a file with --labels-from."
        )
    problems = list[str]()
    if isinstance(labels, (list, tuple)):
        labels, problems = words_of_names(labels)
    verbalizers = content.setdefault("verbalizers", [{"words": {} if labels is None else labels}])
    if more_labels:
        verbalizers = _with_labels(verbalizers, more_labels)
    own_words = verbalizers[0]["words"] if words else None
    if not isinstance(words, Mapping):
        problems.append(f"the entry 'words' is {words!r}; write a table with words for some of the labels.")
    elif isinstance(own_words, Mapping):
        if unknown := [name for name in words if name not in own_words]:
            names = unknown_names(unknown, list(own_words))
            problems.append(f"The entry 'words' has the label {names}, which is not in 'labels'; add it there.")
        verbalizers = [{"words": {name: words.get(name, own) for name, own in own_words.items()}}]
    return {**content, "verbalizers": verbalizers}, problems


def _with_labels(verbalizers: Any, names: Sequence[str]) -> Any:
    """Verbalizers with more labels; what is no verbalizer is left for validation to report."""
    names_as_words = words_of_names(names)[0]
    if not isinstance(verbalizers, list) or not all(isinstance(entry, Mapping) for entry in verbalizers):
        return verbalizers
    return [
        {**entry, "words": {**entry["words"], **{n: w for n, w in names_as_words.items() if n not in entry["words"]}}}
        if isinstance(entry.get("words"), Mapping)
        else entry
        for entry in verbalizers
    ]


def _check(task: Task) -> Task:
    """The task; an error where a pattern, a label or a word cannot be used."""
    if problems := task.problems():
        raise TaskError(problems)
    return task


def _explain(fault: Any) -> str:
    """One of Pydantic's errors as a sentence in the terms of the task file."""
    path = [str(key) for key in fault["loc"]]
    if path[:3] == ["verbalizers", "0", "words"]:
        path = ["labels", *path[3:]]
    if path[0] in ("rules", "teachers"):
        return explain_teacher_fault(fault)
    name = ".".join(path)
    if fault["type"] == "extra_forbidden" and path[0] in ("labels", "words"):
        return f"'{name}' is an entry of a task file: give clozify.load_task a dict with it instead of calling Task."
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(path[-1], [*Task.model_fields, "labels", "words"])
        return f"the entry '{name}' is not known{near}; remove or rename it."
    if fault["type"] == "missing" and path == ["labels"]:
        return 'a verbalizer has no words; add words = { label = "word", ... } to it.'
    if fault["type"] in ("tuple_type", "string_type") and path[0] == "labels":
        return f"the entry '{name}' is {fault['input']!r}, not a word; write it in quotation marks, or a list of words."
    if fault["type"] == "dict_type" and path == ["labels"]:
        return (
            f"the entry 'labels' is {fault['input']!r}; write a list of names, or a table with a word for each label."
        )
    if fault["type"] == "missing":
        return f"the entry '{name}' is missing; add it."
    return f"the entry '{name}' is {fault['input']!r}: {fault['msg'][0].lower() + fault['msg'][1:]}."


def shipped_tasks() -> dict[str, Path]:
    """The task files that come with clozify, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def load_task(task: TaskSource) -> Task:
    """A task from a TOML file, from a dict with the entries of such a file, or by the name of one that is shipped.

    A dict needs `fields`, `patterns` and `labels`:
    `{"fields": ["text"], "patterns": ["It was {mask}. {text}"], "labels": {"good": "great", "bad": "terrible"}}`.
    """
    return _check(task) if isinstance(task, Task) else build_task(*read_task(task))


def read_task(task: TaskSource) -> tuple[dict[str, Any], str]:
    """The entries of a task file, not yet validated, and what messages call it."""
    if isinstance(task, Task):
        return task.model_dump(), "The task"
    if isinstance(task, Mapping):
        content = {"name": "task", **task}
        if isinstance(content.get("labels"), Mapping):
            content["labels"] = {str(name): words for name, words in content["labels"].items()}  # labels may be numbers
        return content, "The task"
    if not isinstance(task, (str, Path)):
        raise TaskError(
            f"A task is a file's name, a dict or a Task, not of the type {type(task).__name__}; pass one of these."
        )
    shipped = shipped_tasks()
    path = shipped.get(str(task), Path(task))
    if not path.is_file():
        reason = "is a folder, not a task file" if path.is_dir() else "is neither a file nor a shipped task"
        raise TaskError(
            f"The task '{task}' {reason}{did_you_mean(str(task), shipped)}; "
            f"name a TOML file or one of {', '.join(shipped)}."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"The task file '{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    source = f"Task file '{path.name if path in shipped.values() else path}'"
    return parse_toml(text, source, TaskError), source
