"""Parses the bodies of `POST /predict` and describes them in JSON Schema.

A task with one field accepts `text`, `texts` or `rows`; a task with several accepts `rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from clozify.config.task import Task
from clozify.errors import did_you_mean, quoted

JSON_TYPES = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


class RequestError(Exception):
    """A refused request: the status, a sentence that names the fix, and extra headers."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    max_texts: int = 256  # per request
    max_body: int = 1_048_576  # bytes per request
    max_waiting: int = 128  # requests without an answer yet
    timeout: float = 30.0  # seconds from a request's first byte to its answer


class RequestParser:
    """Parses request bodies for one task."""

    def __init__(self, task: Task, limits: Limits) -> None:
        self.fields, self.optional, self.max_texts = task.fields, task.optional, limits.max_texts
        self.keys = ["text", "texts", "rows"] if len(task.fields) == 1 else ["rows"]

    def texts(self, body: bytes) -> dict[str, list[str]]:
        """The texts of each field; raises `RequestError`."""
        try:
            content = from_json(body, cache_strings=False)
        except ValueError as error:
            raise RequestError(400, f"The body is not JSON: {error}; send {self.example}.") from None
        if not isinstance(content, dict):
            raise RequestError(422, f"The body is {_type_name(content)}, not an object; send {self.example}.")
        if unknown := [key for key in content if key not in self.keys]:
            hint = did_you_mean(unknown[0], self.keys)
            raise RequestError(422, f"The key {_short_quote(unknown[0])} is not known{hint}; send {self.example}.")
        if len(content) != 1:
            keys = quoted(content) if content else "no key"
            raise RequestError(
                422, f"The body has {keys}, not exactly one of {quoted(self.keys)}; send {self.example}."
            )
        ((key, value),) = content.items()
        if key == "text":
            return {self.fields[0]: [_check_text(value, "'text'")]}
        if not isinstance(value, list):
            raise RequestError(422, f"'{key}' is {_type_name(value)}, not a list; send {self.example}.")
        if not 1 <= len(value) <= self.max_texts:
            raise RequestError(
                422, f"'{key}' has {len(value):,} entries; send 1 to {self.max_texts:,} of them per request."
            )
        if key == "texts":
            return {self.fields[0]: [_check_text(text, f"'texts[{index}]'") for index, text in enumerate(value)]}
        return self._parse_rows(value)

    def _parse_rows(self, rows: list[Any]) -> dict[str, list[str]]:
        columns: dict[str, list[str]] = {field: [] for field in self.fields}
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                raise RequestError(422, f"'rows[{index}]' is {_type_name(row)}, not an object; send {self.example}.")
            if unknown := [key for key in row if key not in columns]:
                hint = did_you_mean(unknown[0], self.fields)
                raise RequestError(
                    422,
                    f"'rows[{index}]' has the field {_short_quote(unknown[0])}, which the task does not have{hint}; "
                    f"its fields are {quoted(self.fields)}.",
                )
            for field, texts in columns.items():
                if field not in row and field not in self.optional:
                    raise RequestError(
                        422, f"'rows[{index}]' lacks the field '{field}'; the fields are {quoted(self.fields)}."
                    )
                texts.append(_check_text(row.get(field, ""), f"'rows[{index}].{field}'"))
        return columns

    @property
    def example(self) -> str:
        """An example of a body, for error messages and documentation."""
        if len(self.fields) == 1:
            return '{"text": "..."} or {"texts": ["...", "..."]}'
        row = ", ".join(f'"{field}": "..."' for field in self.fields)
        return '{"rows": [{' + row + "}]}"

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a body."""
        text = {"type": "string"}
        row = {
            "type": "object",
            "properties": dict.fromkeys(self.fields, text),
            "required": [field for field in self.fields if field not in self.optional],
            "additionalProperties": False,
        }
        array = {"type": "array", "minItems": 1, "maxItems": self.max_texts}
        values = {"text": text, "texts": {**array, "items": text}, "rows": {**array, "items": row}}
        bodies = [
            {"type": "object", "properties": {key: values[key]}, "required": [key], "additionalProperties": False}
            for key in self.keys
        ]
        return bodies[0] if len(bodies) == 1 else {"oneOf": bodies}


def _check_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise RequestError(422, f"{path} is {_type_name(value)}, not text; put it in quotation marks.")
    return value


def _type_name(value: Any) -> str:
    return JSON_TYPES.get(type(value), "a number")


def _short_quote(name: str) -> str:
    return f"'{name[:40]}'"
