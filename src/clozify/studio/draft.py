"""A task while it is being edited: patterns and label words as typed, complete or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from clozify.config.pattern import Pattern
from clozify.config.task import SEPARATOR, Task, Verbalizer
from clozify.errors import TaskError

# kept, but not shown on the page
HIDDEN_SETTINGS = (
    "description",
    "optional",
    "id",
    "metric",
    "columns",
    "aliases",
    "line_breaks",
    "multilabel",
    "separator",
    "groups",
    "rules",
    "teachers",
)

Problems = dict[str, list[str]]  # form field -> messages; "fields", "labels", "task", "pattern 0", "label 0", ...


@dataclass
class TaskDraft:
    """An unfinished task. `words` has each label's name and its words as typed, separated by commas."""

    name: str = "task"
    fields: list[str] = field(default_factory=list)
    label: str = "label"
    patterns: list[str] = field(default_factory=lambda: [""])
    words: list[tuple[str, str]] = field(default_factory=lambda: [("", ""), ("", "")])
    hidden_settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_task(cls, task: Task) -> TaskDraft:
        """The draft of a finished task; only the first verbalizer is kept."""
        return cls(
            task.name,
            list(task.fields),
            task.label,
            list(task.patterns),
            [(label, ", ".join(words)) for label, words in task.verbalizers[0].words.items()],
            {name: value for name, value in task.model_dump(exclude_defaults=True).items() if name in HIDDEN_SETTINGS},
        )

    @property
    def labels(self) -> list[str]:
        """The names of the labels, without empty ones."""
        return [name.strip() for name, _ in self.words if name.strip()]

    @property
    def multilabel(self) -> bool:
        """Whether a row may have several labels, or none."""
        return bool(self.hidden_settings.get("multilabel", False))

    @multilabel.setter
    def multilabel(self, several: bool) -> None:
        self.hidden_settings = {
            name: value
            for name, value in self.hidden_settings.items()
            if name not in ("multilabel", "separator", "metric")  # the metric has another default
        }
        if several:
            self.hidden_settings["multilabel"] = True

    @property
    def separator(self) -> str:
        """What stands between several labels."""
        return str(self.hidden_settings.get("separator", SEPARATOR))

    @property
    def words_by_label(self) -> dict[str, tuple[str, ...]]:
        """The words of each named label."""
        return {name.strip(): split_words(words) for name, words in self.words if name.strip()}

    def problems(self) -> Problems:
        """Every problem that can be detected without a model, by form field."""
        problems: Problems = defaultdict(list)
        if not self.fields:
            problems["fields"].append("Choose a column for the patterns.")
        if self.label in self.fields:
            problems["fields"].append(f"The column '{self.label}' has the labels; the model would read the answer.")
        for index, text in enumerate(self.patterns):
            key = f"pattern {index}"
            if not text.strip():
                problems[key].append("Write a pattern, with {mask} where the label's word belongs.")
            elif text in self.patterns[:index]:
                problems[key].append("This pattern is a duplicate.")
            elif self.fields:
                problems[key] += Pattern(text).problems(self.fields)
        if not self.patterns:
            problems["task"].append("Add a pattern.")
        for index, (name, words) in enumerate(self.words):
            problems[f"label {index}"] += self._label_problems(index, name.strip(), split_words(words))
        if len(set(self.labels)) < 2:
            problems["labels"].append("Classification needs at least two labels.")
        return {key: messages for key, messages in problems.items() if messages}

    def empty_inputs(self) -> set[str]:
        """The form fields that are yet to be filled in: their problems are hints, not mistakes."""
        empty = {f"pattern {index}" for index, text in enumerate(self.patterns) if not text.strip()}
        empty |= {f"label {i}" for i, (name, words) in enumerate(self.words) if not (name.strip() and words.strip())}
        if not self.fields:
            empty.add("fields")
        if any(not name.strip() for name, _ in self.words):
            empty.add("labels")
        return empty

    @property
    def is_empty(self) -> bool:
        """Whether nothing was typed yet."""
        return not self.labels and not any(text.strip() for text in self.patterns)

    def _label_problems(self, index: int, name: str, words: tuple[str, ...]) -> list[str]:
        if not name:
            return ["Give the label a name."]
        if name in [other.strip() for other, _ in self.words[:index]]:
            return [f"The label '{name}' is a duplicate."]
        if not words:
            return [f"Give the label '{name}' a word, or several separated by commas."]
        for other, other_words in self.words[:index]:
            if len(words) == 1 and split_words(other_words) == words:
                return [
                    f"The labels '{other.strip()}' and '{name}' have the same word '{words[0]}', so they would always "
                    "get the same score; give each its own word."
                ]
        return []

    def to_task(self, patterns: Sequence[str] | None = None, words: dict[str, tuple[str, ...]] | None = None) -> Task:
        """The task, with other `patterns` or `words` if given; raises `TaskError` if the draft is incomplete."""
        content = {
            **self.hidden_settings,
            "name": self.name.strip() or "task",
            "fields": self.fields,
            "label": self.label,
            "patterns": list(self.patterns if patterns is None else patterns),
            "verbalizers": [Verbalizer(words=self.words_by_label if words is None else words)],
        }
        if "optional" in content:
            content["optional"] = [name for name in content["optional"] if name in self.fields]
        if not {*self.fields} <= {*content.get("columns", self.fields), *content.get("optional", [])}:
            del content["columns"]  # they belong to other files
        if any(len(names) != len(self.labels) for names in content.get("aliases", [])):
            del content["aliases"]  # they belong to other labels
        if "groups" in content:  # of the labels that are left
            kept = {name: [each for each in of if each in self.labels] for name, of in content["groups"].items()}
            content["groups"] = {name: labels for name, labels in kept.items() if labels}
        if "rules" in content:
            content["rules"] = [
                rule
                for rule in content["rules"]
                if rule["label"] in self.labels and rule.get("field") in (None, *self.fields)
            ]
        if "teachers" in content:
            content["teachers"] = [self._of_labels(teacher) for teacher in content["teachers"]]
        try:
            task = Task.model_validate(content)
        except ValidationError as error:
            raise TaskError([f"The task is incomplete: {fault['msg']}." for fault in error.errors()]) from None
        if problems := task.problems():
            raise TaskError(problems)
        return task

    def _of_labels(self, teacher: dict[str, Any]) -> dict[str, Any]:
        """A teacher's entry without what it says about labels that the draft no longer has."""
        if "descriptions" in teacher:
            kept = {label: text for label, text in teacher["descriptions"].items() if label in self.labels}
            teacher = teacher | {"descriptions": kept}
        return teacher


def split_words(text: str) -> tuple[str, ...]:
    """A label's words from text with commas between them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
