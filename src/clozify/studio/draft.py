"""A task while it is being written: patterns and words as a person types them, right or wrong.

In: columns, patterns, labels and their words, as text. Out: a `Task` once all is well; until then every problem, beside
the field that it concerns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from clozify.config.pattern import Pattern
from clozify.config.task import Task, Verbalizer
from clozify.errors import TaskError

KEPT = ("description", "optional", "metric", "aliases", "line_breaks")  # what the page does not show, but keeps

Problems = dict[str, list[str]]  # place -> sentences; a place is "fields", "labels", "task", "pattern 0", "label 0"


@dataclass
class Draft:
    """A task in the making. `words` holds, for each label, its name and its words with commas between them."""

    name: str = "task"
    fields: list[str] = field(default_factory=list)
    label: str = "label"
    patterns: list[str] = field(default_factory=lambda: [""])
    words: list[tuple[str, str]] = field(default_factory=lambda: [("", ""), ("", "")])
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task) -> Draft:
        """A task as text; of several verbalizers the first."""
        return cls(
            task.name,
            list(task.fields),
            task.label,
            list(task.patterns),
            [(label, ", ".join(words)) for label, words in task.verbalizers[0].words.items()],
            {name: value for name, value in task.model_dump(exclude_defaults=True).items() if name in KEPT},
        )

    @property
    def labels(self) -> list[str]:
        """The names of the labels, without those that have none yet."""
        return [name.strip() for name, _ in self.words if name.strip()]

    @property
    def given(self) -> dict[str, tuple[str, ...]]:
        """Each named label's words."""
        return {name.strip(): split(words) for name, words in self.words if name.strip()}

    def problems(self) -> Problems:
        """Everything that shows without a model, by the field that it concerns."""
        found: Problems = defaultdict(list)
        if not self.fields:
            found["fields"].append("Choose a column that patterns may use.")
        if self.label in self.fields:
            found["fields"].append(f"The column '{self.label}' holds the labels; the model would read the answer.")
        for place, text in enumerate(self.patterns):
            if not text.strip():
                found[f"pattern {place}"].append("Write a pattern, with {mask} where the word belongs.")
            elif text in self.patterns[:place]:
                found[f"pattern {place}"].append("This pattern stands above already.")
            elif self.fields:
                found[f"pattern {place}"] += Pattern(text).problems(self.fields)
        if not self.patterns:
            found["task"].append("Add a pattern.")
        for place, (name, words) in enumerate(self.words):
            found[f"label {place}"] += self._label_problems(place, name.strip(), split(words))
        if len(set(self.labels)) < 2:
            found["labels"].append("Classification needs two labels or more.")
        return {place: sentences for place, sentences in found.items() if sentences}

    def _label_problems(self, place: int, name: str, words: tuple[str, ...]) -> list[str]:
        if not name:
            return ["Give the label a name."]
        if name in [other.strip() for other, _ in self.words[:place]]:
            return [f"The label '{name}' stands above already."]
        if not words:
            return [f"Give the label '{name}' a word, or several with commas."]
        for other, theirs in self.words[:place]:
            if len(words) == 1 and split(theirs) == words:
                return [
                    f"The labels '{other.strip()}' and '{name}' have the same word '{words[0]}', so they could never "
                    "be told apart; give each its own."
                ]
        return []

    def task(self, patterns: Sequence[str] | None = None, words: dict[str, tuple[str, ...]] | None = None) -> Task:
        """The task, perhaps with some of the patterns or words only; raises `TaskError` where it is none yet."""
        content = {
            **self.more,
            "name": self.name.strip() or "task",
            "fields": self.fields,
            "label": self.label,
            "patterns": list(self.patterns if patterns is None else patterns),
            "verbalizers": [Verbalizer(words=self.given if words is None else words)],
        }
        if len(content.get("optional", [])) and not set(content["optional"]) <= set(self.fields):
            content["optional"] = [name for name in content["optional"] if name in self.fields]
        if any(len(names) != len(self.labels) for names in content.get("aliases", [])):
            del content["aliases"]  # they were made for other labels
        try:
            task = Task.model_validate(content)
        except ValidationError as error:
            raise TaskError([f"The task is not whole: {fault['msg']}." for fault in error.errors()]) from None
        if problems := task.problems():
            raise TaskError(problems)
        return task


def split(words: str) -> tuple[str, ...]:
    """The words of a label: what stands between commas."""
    return tuple(word.strip() for word in words.split(",") if word.strip())
