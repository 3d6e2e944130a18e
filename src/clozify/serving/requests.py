"""What a request may hold, as a check and as its description.

In: the bytes of a body. Out: texts by field; or a `RequestError` with a status and a sentence that names the fix. The
same limits are told in JSON Schema, which becomes part of the server's OpenAPI description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from clozify.config.task import Task
from clozify.errors import did_you_mean, quoted

JSON_TYPES = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


class RequestError(Exception):
    """A request that is not answered, and why."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers or {}


@dataclass(frozen=True)
class Limits:
    """How much a server takes on."""

    max_texts: int = 256  # a request
    max_body: int = 1_048_576  # bytes
    max_waiting: int = 128  # requests
    timeout: float = 30.0  # seconds from a request's first byte to its answer


class RequestForm:
    """The form of a request for one task: `text` or `texts` where it has one field, `rows` always."""

    def __init__(self, task: Task, limits: Limits) -> None:
        self.fields, self.optional, self.most = task.fields, task.optional, limits.max_texts
        self.keys = ["text", "texts", "rows"] if len(task.fields) == 1 else ["rows"]

    def texts(self, body: bytes) -> dict[str, list[str]]:
        """Each field's texts, or `RequestError`."""
        try:
            content = from_json(body, cache_strings=False)
        except ValueError as error:
            raise RequestError(400, f"The body is not JSON: {error}; send {self.example}.") from None
        if not isinstance(content, dict):
            raise RequestError(422, f"The body is {_kind(content)}, not an object; send {self.example}.")
        if unknown := [key for key in content if key not in self.keys]:
            near = did_you_mean(unknown[0], self.keys)
            raise RequestError(422, f"The entry {_quoted(unknown[0])} is not known{near}; send {self.example}.")
        if len(content) != 1:
            found = quoted(content) if content else "nothing"
            raise RequestError(
                422, f"The body holds {found}, not exactly one of {quoted(self.keys)}; send {self.example}."
            )
        ((key, value),) = content.items()
        if key == "text":
            return {self.fields[0]: [_text(value, "'text'")]}
        if not isinstance(value, list):
            raise RequestError(422, f"'{key}' is {_kind(value)}, not a list; send {self.example}.")
        if not 1 <= len(value) <= self.most:
            raise RequestError(
                422,
                f"'{key}' holds {len(value):,} texts; send 1 to {self.most:,} of them, in several requests if need be.",
            )
        if key == "texts":
            return {self.fields[0]: [_text(text, f"'texts[{n}]'") for n, text in enumerate(value)]}
        return self._rows(value)

    def _rows(self, rows: list[Any]) -> dict[str, list[str]]:
        columns: dict[str, list[str]] = {field: [] for field in self.fields}
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise RequestError(
                    422, f"'rows[{number}]' is {_kind(row)}, not an object by field; send {self.example}."
                )
            if unknown := [key for key in row if key not in columns]:
                near = did_you_mean(unknown[0], self.fields)
                raise RequestError(
                    422,
                    f"'rows[{number}]' has the field {_quoted(unknown[0])}, which the task does not have{near}; its "
                    f"fields are {quoted(self.fields)}.",
                )
            for field, texts in columns.items():
                if field not in row and field not in self.optional:
                    raise RequestError(
                        422, f"'rows[{number}]' lacks the field '{field}'; the fields are {quoted(self.fields)}."
                    )
                texts.append(_text(row.get(field, ""), f"'rows[{number}].{field}'"))
        return columns

    @property
    def example(self) -> str:
        """A right body, for messages and documentation."""
        if len(self.fields) == 1:
            return '{"text": "..."} or {"texts": ["...", "..."]}'
        row = ", ".join(f'"{field}": "..."' for field in self.fields)
        return '{"rows": [{' + row + "}]}"

    def schema(self) -> dict[str, Any]:
        """The form in JSON Schema."""
        text = {"type": "string"}
        row = {
            "type": "object",
            "properties": dict.fromkeys(self.fields, text),
            "required": [field for field in self.fields if field not in self.optional],
            "additionalProperties": False,
        }
        many = {"type": "array", "minItems": 1, "maxItems": self.most}
        forms = {"text": text, "texts": {**many, "items": text}, "rows": {**many, "items": row}}
        each = [
            {"type": "object", "properties": {key: forms[key]}, "required": [key], "additionalProperties": False}
            for key in self.keys
        ]
        return each[0] if len(each) == 1 else {"oneOf": each}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(422, f"{where} is {_kind(value)}, not text; put it in quotation marks.")
    return value


def _kind(value: Any) -> str:
    return JSON_TYPES.get(type(value), "a number")


def _quoted(name: str) -> str:
    return f"'{name[:40]}'"
