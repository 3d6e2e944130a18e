"""Teachers from the entries of a task file and from Python objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from clozify.config.budget import Budget, parse_budget
from clozify.config.task import Task
from clozify.config.teachers import ClassifierEntry, ModelEntry, NliEntry, OpenAIEntry
from clozify.errors import TaskError
from clozify.teachers.base import Teacher
from clozify.teachers.classifier import ClassifierTeacher
from clozify.teachers.estimator import EstimatorTeacher
from clozify.teachers.functions import rule
from clozify.teachers.llm_limits import Tally
from clozify.teachers.nli import NliTeacher
from clozify.teachers.openai import OpenAITeacher
from clozify.teachers.rules import rule_teachers


def build_teachers(task: Task, objects: Iterable[Any] = (), budget: str | None = None) -> tuple[Teacher, ...]:
    """The task's rules and teachers, then those of Python: all teachers besides the patterns, with unique names.

    `budget` limits what all teachers together spend that are paid for.
    """
    entries = [entry for entry in task.teachers if not isinstance(entry, ModelEntry)]  # a model answers patterns
    limits = None if budget is None else parse_budget(budget)
    spent = Tally()
    of_task = [_from_entry(entry, task, limits, spent) for entry in entries]
    teachers = [*rule_teachers(task), *of_task, *map(_from_object, objects)]
    if teachers and task.multilabel:
        raise TaskError("Rules and other teachers need one label a row; remove them, or multilabel = true.")
    names = [teacher.name for teacher in teachers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskError(f"Two teachers are called '{twice[0]}'; give each a name of its own.")
    return tuple(teachers)


def _from_entry(
    entry: ClassifierEntry | NliEntry | OpenAIEntry, task: Task, budget: Budget | None, spent: Tally
) -> Teacher:
    if isinstance(entry, ClassifierEntry):
        classifier = ClassifierTeacher(entry.model, entry.labels, entry.pair, entry.name)
        classifier.check(task)  # before anything is trained
        return classifier
    if isinstance(entry, NliEntry):
        nli = NliTeacher(entry.model, entry.hypothesis, entry.name)
        nli.check(task)
        return nli
    return OpenAITeacher(entry, task, budget, spent)


def _from_object(value: Any) -> Teacher:
    """A teacher, a function of a row, or an estimator of scikit-learn, as a teacher."""
    if all(hasattr(value, name) for name in ("name", "kind", "key", "cost", "score")):
        teacher: Teacher = value
        return teacher
    if inspect.isfunction(value):
        return rule(value)
    if hasattr(value, "predict"):
        return EstimatorTeacher(value)
    raise TaskError(
        f"A teacher is a function decorated with clozify.rule, an estimator of scikit-learn or an object with the "
        f"methods of clozify.teachers.base.Teacher, not of the type {type(value).__name__}."
    )
