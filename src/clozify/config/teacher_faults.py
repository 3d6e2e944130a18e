"""The faults of `[[rules]]` and `[[teachers]]` in a task file, one sentence each, and the names of these teachers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clozify.config.rule_patterns import regex_fault
from clozify.config.teachers import ENTRY_OF_KIND, ClassifierEntry, ModelEntry, OpenAIEntry, RuleEntry, TeacherEntry
from clozify.errors import did_you_mean, quoted, unknown_names

if TYPE_CHECKING:
    from clozify.config.task import Task

_EXPECTED = {  # Pydantic's types of errors, in the terms of TOML
    "tuple_type": 'write a list, such as ["one", "two"]',
    "list_type": 'write a list, such as ["one", "two"]',
    "dict_type": 'write a table, such as { "a" = "b" }',
    "string_type": "write it in quotation marks",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
}


def rule_names(rules: Sequence[RuleEntry]) -> list[str]:
    """Each rule's name; one without is named by its number in the file and its label, such as `rule 3 (billing)`."""
    return [rule.name or f"rule {number} ({rule.label})" for number, rule in enumerate(rules, start=1)]


def teacher_names(teachers: Sequence[TeacherEntry]) -> list[str]:
    """Each teacher's name; one without has that of its model."""
    return [teacher.title if isinstance(teacher, ModelEntry) else teacher.name or teacher.model for teacher in teachers]


def teacher_problems(task: Task) -> list[str]:
    """The faults of a task's rules and teachers, one sentence each."""
    problems = []
    entries = [name for name, listed in (("[[rules]]", task.rules), ("[[teachers]]", task.teachers)) if listed]
    if entries and task.multilabel:
        problems.append(
            f"{' and '.join(entries)} need one label a row, and multilabel = true; remove them, or multilabel."
        )
    for name, rule in zip(rule_names(task.rules), task.rules, strict=True):
        problems += [f"The {_subject(name)} {fault}" for fault in _rule_faults(rule, task)]
    for name, teacher in zip(teacher_names(task.teachers), task.teachers, strict=True):
        if isinstance(teacher, ClassifierEntry):
            problems += _mapping_faults(name, teacher, task)
        if isinstance(teacher, OpenAIEntry):
            problems += teacher.problems(task.fields, task.labels)
    names = [*rule_names(task.rules), *teacher_names(task.teachers)]
    problems += [
        f"The name '{name}' stands for {count} rules or teachers; give each its own with name = \"...\"."
        for name, count in Counter(names).items()
        if count > 1
    ]
    if clash := [name for name in dict.fromkeys(names) if name in {"patterns", *(pair.name for pair in task.pairs)}]:
        problems.append(f"A rule or teacher is called {quoted(clash)}, which is a name of patterns; rename it.")
    return problems


def _subject(name: str) -> str:
    return name if name.startswith("rule ") else f"rule '{name}'"


def _rule_faults(rule: RuleEntry, task: Task) -> list[str]:
    """What is wrong with a rule, each as the rest of a sentence about it."""
    faults = []
    if rule.label not in task.labels:
        faults.append(
            f"votes for '{rule.label}', which is no label{did_you_mean(rule.label, task.labels)}; the labels are "
            f"{quoted(task.labels, 5)}."
        )
    if rule.field is not None and rule.field not in task.fields:
        faults.append(
            f"reads the field '{rule.field}', which the task does not have{did_you_mean(rule.field, task.fields)}; its "
            f"fields are {quoted(task.fields, 5)}."
        )
    if not rule.any and rule.regex is None:
        faults.append('never votes; add any = ["..."] with words, or regex = "...".')
    for entry, words in (("any", rule.any), ("none", rule.none)):
        if any(not word.strip() for word in words):
            faults.append(f"has an empty word in '{entry}'; remove it.")
        if wild := [word for word in words if word.strip() and not word.strip("* \t\n")]:
            faults.append(
                f"has {quoted(wild)} in '{entry}', which every text matches; write letters before or after *."
            )
    if both := [word for word in dict.fromkeys(rule.any) if word in rule.none]:
        faults.append(f"has {quoted(both)} in both 'any' and 'none'; remove one of them.")
    if rule.regex is not None and (fault := regex_fault(rule.regex)):
        faults.append(fault)
    return faults


def _mapping_faults(name: str, teacher: ClassifierEntry, task: Task) -> list[str]:
    """A sentence where a classifier's labels are mapped to labels that the task does not have."""
    names = {label.casefold() for labels in (task.labels, *task.aliases) for label in labels}
    unknown = [label for label in dict.fromkeys(teacher.labels.values()) if label.casefold() not in names]
    if not unknown:
        return []
    return [
        f"The teacher '{name}' maps labels to {unknown_names(unknown, task.labels)}, which the task does not have; its "
        f"labels are {quoted(task.labels, 5)}."
    ]


def explain_teacher_fault(fault: Any) -> str:
    """One of Pydantic's errors about `rules` or `teachers` as a sentence in the terms of the task file."""
    entry, *path = [str(key) for key in fault["loc"]]
    table, value = f"[[{entry}]]", fault["input"]
    if not path:
        return f"the entry '{entry}' is {value!r}; write a table {table} for each."
    number, model = int(path[0]) + 1, ENTRY_OF_KIND.get(path[1], RuleEntry) if len(path) > 1 else RuleEntry
    subject, kinds = f"number {number} of {table}", list(ENTRY_OF_KIND)
    if fault["type"] == "union_tag_not_found":
        return f'{subject} has no kind; add kind = "..." with one of {quoted(kinds)}.'
    if fault["type"] == "union_tag_invalid":
        kind = fault["ctx"]["tag"]
        return (
            f"{subject} has the unknown kind '{kind}'{did_you_mean(str(kind), kinds)}; the kinds are {quoted(kinds)}."
        )
    if len(path) == 1:
        return f"{subject} is {value!r}; write a table {table} for each."
    name = ".".join(path[1:] if entry == "rules" else path[2:])
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(name, model.model_fields)
        return f"the entry '{name}' in {subject} is not known{near}; remove or rename it."
    if fault["type"] == "missing":
        return f"{subject} lacks the entry '{name}'; add it."
    expected = _EXPECTED.get(fault["type"]) or f"{fault['msg'][0].lower()}{fault['msg'][1:]}"
    return f"the entry '{name}' in {subject} is {value!r}: {expected}."
