"""Values of columns as text: the texts of fields, and the names of labels as data and tasks write them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from clozify.config.task import Task


def clean_texts(column: Any, task: Task) -> list[str]:
    """The texts of an Arrow column, trimmed; line breaks, also as the task writes them, become spaces."""
    import pyarrow.compute as pc

    for line_break in task.line_breaks:
        column = pc.replace_substring(column, line_break, " ")
    column = pc.replace_substring_regex(column, r"[ \t]*[\r\n]+[ \t]*", " ")
    texts: list[str] = pc.utf8_trim_whitespace(column).to_pylist()
    return texts


def parse_json(column: Any) -> Any:
    """JSON values as text."""
    import pyarrow as pa

    values = [None if text is None else json.loads(text) for text in column.to_pylist()]
    return pa.array([None if value is None else to_text(value) for value in values], pa.string())


def to_text(value: object) -> str:
    """A value as text; a number with a zero fraction is written without it, truth values and objects as in JSON."""
    if isinstance(value, float) and (value != value or value.is_integer()):
        return str(int(value)) if value == value else ""
    if isinstance(value, (bool, dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip()
    return str(value).strip()


def task_spelling(name: str, task_names: Collection[str]) -> str:
    """A label as the task writes it: 1.0 may be 1 there, True may be true."""
    spellings = [name, re.sub(r"\.0+$", "", name)]
    if name.lower() in ("true", "false"):
        spellings += [name.lower(), name.capitalize()]
    return next((spelling for spelling in spellings if spelling in task_names), spellings[1])
