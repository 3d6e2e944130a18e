"""Rules of a task file: each votes for its label on rows that meet all of its conditions, and abstains on all others.

Nothing of a task file is evaluated: words and regular expressions are compiled by the `regex` package, whose `timeout`
stops a search that runs away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from clozify.config.rule_patterns import compile_regex, compile_words
from clozify.config.task import Task
from clozify.config.teacher_faults import rule_names
from clozify.config.teachers import RuleEntry
from clozify.data.ids import row_name
from clozify.data.rows import Rows
from clozify.errors import TaskError
from clozify.teachers.base import Cost, ScoringContext, votes

if TYPE_CHECKING:
    import regex

SEARCH_SECONDS = 1.0  # after which a search in a row's field is stopped; a usual one takes microseconds
MAX_STOPPED_ROWS = 5  # of a rule, at which it is an error, so that no run hangs


@dataclass(frozen=True)
class RuleTeacher:
    """A rule of a task with these fields and labels."""

    rule: RuleEntry
    name: str
    fields: tuple[str, ...]  # that the rule reads
    labels: tuple[str, ...]
    kind: str = "rule"

    def key(self) -> dict[str, Any]:
        """The rule without its name, its fields and the task's labels."""
        content = self.rule.model_dump(mode="json", exclude={"name", "field"})
        return {"rule": content, "fields": list(self.fields), "labels": list(self.labels)}

    def cost(self, rows: Rows) -> Cost:  # noqa: ARG002
        """Rules are free."""
        return Cost()

    def score(self, rows: Rows, context: ScoringContext) -> NDArray[np.float32]:
        """Votes for the rule's label on the rows that match: (rows, labels)."""
        (matches,) = match_rules([self], rows, context.log)
        return votes(np.where(matches, self.labels.index(self.rule.label), -1), len(self.labels))

    @cached_property
    def conditions(self) -> list[tuple[regex.Pattern[str], bool]]:
        """Patterns, and whether each has to occur in one of the fields, or in none."""
        words, forbidden = (tuple(normalize("NFC", word) for word in of) for of in (self.rule.any, self.rule.none))
        conditions = [(compile_words(words), True)] if words else []
        if self.rule.regex is not None:
            conditions.append((compile_regex(self.rule.regex), True))
        return [*conditions, (compile_words(forbidden), False)] if forbidden else conditions

    def matching(self, texts: Mapping[str, Sequence[str]], max_stopped: int) -> tuple[Sequence[int], list[int]]:
        """The indices of the rows that meet all conditions, and of those in which a search was stopped.

        `texts` has each field's text in every row. After `max_stopped` of the latter no more rows are searched.
        """
        columns, stopped = [texts[field] for field in self.fields], list[int]()
        indices: Sequence[int] = range(len(columns[0]))
        for pattern, must_occur in self.conditions:
            kept = []
            for index in indices:
                try:
                    occurs = any(pattern.search(column[index], timeout=SEARCH_SECONDS) for column in columns)
                except TimeoutError:
                    stopped.append(index)
                    if len(stopped) == max_stopped:
                        return [], stopped
                    continue
                if occurs == must_occur:
                    kept.append(index)
            indices = kept
        return indices, stopped


def rule_teachers(task: Task) -> list[RuleTeacher]:
    """The rules of a task."""
    return [
        RuleTeacher(rule, name, tuple(task.fields) if rule.field is None else (rule.field,), tuple(task.labels))
        for name, rule in zip(rule_names(task.rules), task.rules, strict=True)
    ]


def match_rules(rules: Sequence[RuleTeacher], rows: Rows, log: Callable[[str], None]) -> NDArray[np.bool_]:
    """Whether each rule matches each row: (rules, rows).

    A search that takes too long counts as no match; `log` gets one warning a rule, and several such rows are an error.
    """
    matches = np.zeros((len(rules), len(rows)), dtype=bool)
    stopped_rows = [list[int]() for _ in rules]
    fields = {field for rule in rules for field in rule.fields}
    for start, stop in rows.chunks():
        texts = {field: [normalize("NFC", text) for text in rows.texts(field, start, stop)] for field in fields}
        for rule, matched, stopped in zip(rules, matches, stopped_rows, strict=True):
            indices, newly_stopped = rule.matching(texts, MAX_STOPPED_ROWS - len(stopped))
            matched[start + np.asarray(indices, dtype=np.int64)] = True
            stopped += [start + index for index in newly_stopped]
            if len(stopped) == MAX_STOPPED_ROWS:
                raise TaskError(
                    _runaway(rule, stopped, rows, "rewrite it, mostly a repeat within a repeat is too slow")
                )
    for rule, stopped in zip(rules, stopped_rows, strict=True):
        if stopped:
            log(_runaway(rule, stopped, rows, "it abstains there"))
    return matches


def _runaway(rule: RuleTeacher, stopped: Sequence[int], rows: Rows, consequence: str) -> str:
    """The sentence about a rule whose search was stopped in these rows."""
    names = ", ".join(row_name(rows, index) for index in stopped)
    return (
        f"The rule '{rule.name}' was stopped after {SEARCH_SECONDS:g} s in {names} of '{rows.source}'; {consequence}."
    )
