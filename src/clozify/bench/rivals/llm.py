"""A large language model behind OpenAI's protocol, with the labelled rows as examples in its prompt.

The file of `--llm` has the entries of a teacher of the kind `openai`: `model`, `base_url`, `api_key_env` and others. A
row for which it names no label counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job
    from clozify.config.task import Task
    from clozify.config.teachers import OpenAIEntry

NAME = "llm"
TITLE = "LLM"
SETTINGS = "the teachers' prompt with up to 8 labelled rows as examples; no answer counts as wrong"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ()
PACKAGES: tuple[str, ...] = ("openai", "clozify")
ENCODER = "none"
UNLABELED = False
MAX_LENGTH = False
NEEDS = "llm"
KIND = "openai"  # of the teacher


def load_libraries() -> None:
    """Import the libraries."""
    import clozify.teachers.openai  # noqa: F401


def read_entry(path: str, task: Task) -> OpenAIEntry:
    """The entries of the file of `--llm`, for a task; raises `DataError`."""
    from pydantic import ValidationError

    from clozify.config.teacher_faults import explain_teacher_fault
    from clozify.config.teachers import OpenAIEntry
    from clozify.config.toml import parse_toml
    from clozify.errors import DataError

    source = f"The file '{path}' of --llm"
    try:
        content = {"kind": KIND} | parse_toml(Path(path).read_text(encoding="utf-8"), source, DataError)
        entry = OpenAIEntry.model_validate(content)
        problems = entry.problems(task.fields, task.labels)
    except UnicodeDecodeError as error:
        problems = [f"it is not UTF-8 text (byte {error.start}); save it as UTF-8."]
    except ValidationError as error:
        faults = [{**fault, "loc": ("teachers", 0, KIND, *fault["loc"])} for fault in error.errors()]
        sentences = [explain_teacher_fault(fault) for fault in faults]
        problems = [
            text.replace(" in number 1 of [[teachers]]", "").replace("number 1 of [[teachers]]", "it")
            for text in sentences
        ]
    if problems:
        raise DataError([f"{source}: {problem}" for problem in problems])
    return entry


class LlmModel:
    """A model on a server; nothing is trained, and answers are not kept between cells."""

    def __init__(self, job: Job) -> None:
        from clozify.config.task import load_task
        from clozify.data.rows import read_rows
        from clozify.teachers.base import ScoringContext
        from clozify.teachers.openai import OpenAITeacher

        task = load_task(job.task)
        self.teacher: Any = OpenAITeacher(read_entry(job.options["llm"], task), task)
        self.test, self.work, self.calls = read_rows(job.test, task), Path(job.work), 0
        self.context = ScoringContext(read_rows(job.labeled, task), job.device, self.work, print)

    @property
    def kept(self) -> Sequence[Path]:
        """Nothing on this machine."""
        return []

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows, -1 where the model named none; every call asks anew."""
        from dataclasses import replace

        self.calls += 1
        cache = self.work / f"answers-{self.calls}"
        scores = self.teacher.score(self.test.select(np.arange(rows)), replace(self.context, cache=cache))
        answered = ~np.isnan(scores).all(axis=-1)
        predicted = np.full(rows, -1, dtype=np.int64)
        predicted[answered] = np.nan_to_num(scores[answered], nan=-np.inf).argmax(axis=-1)
        return predicted


def train(job: Job) -> LlmModel:
    """Read the teacher's entries; there is nothing to train."""
    return LlmModel(job)
