"""Whether the teachers of a task file can be used, as far as that shows without weights and requests."""

from __future__ import annotations

from clozify.config.task import Task
from clozify.config.teacher_faults import teacher_names
from clozify.config.teachers import ModelEntry
from clozify.errors import ClozifyError
from clozify.models.loading import architecture_of
from clozify.runs.metrics import Record
from clozify.teachers.base import readiness_notes
from clozify.teachers.build import build_teachers


class TeacherCheck(Record):
    """A teacher of a task file that is no rule."""

    name: str
    kind: str
    model: str
    problems: list[str]
    warnings: list[str]


def check_teachers(task: Task) -> list[TeacherCheck]:
    """The task's teachers besides its rules: models that exist, labels that can be mapped, keys that are set."""
    checks = []
    for name, entry in zip(teacher_names(task.teachers), task.teachers, strict=True):
        problems, warnings = list[str](), list[str]()
        try:
            if isinstance(entry, ModelEntry):
                architecture_of(entry.model)
            alone = task.model_copy(update={"rules": [], "teachers": [entry]})
            warnings += readiness_notes(build_teachers(alone))
        except ClozifyError as error:
            problems += [f"The teacher '{name}' cannot be used: {problem}" for problem in error.problems]
        checks.append(TeacherCheck(name=name, kind=entry.kind, model=entry.model, problems=problems, warnings=warnings))
    return checks
