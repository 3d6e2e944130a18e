"""Figures that others have published, each with the file or page it was read from; never mixed with measured ones."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

FILE = Path(__file__).with_name("published.toml")


class PublishedLine(BaseModel):
    """A line of a published table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    size: str = ""  # of the model, as the source states it
    values: list[str]


class PublishedTable(BaseModel):
    """A published table, or the part of it that was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    note: str
    source: str
    columns: list[str]
    rows: list[PublishedLine]

    @property
    def header(self) -> list[str]:
        """The header of the table."""
        return ["method", "model size", *self.columns]

    def lines(self) -> list[list[str]]:
        """The table's lines as text."""
        return [[row.method, row.size, *row.values] for row in self.rows]


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """The published tables."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(PublishedTable.model_validate(table) for table in content.get("tables", []))
