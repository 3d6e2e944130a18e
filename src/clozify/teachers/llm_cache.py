"""Answers that were paid for, each under a hash of its request, and what they cost, in one SQLite file.

An answer and its cost are committed together as soon as the answer is there, so a killed run loses only what was under
way. The file holds answers and hashes: neither prompts nor keys.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozify.errors import RunError
from clozify.teachers.llm_answers import Answer

FILE = "answers.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (
  teacher TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL, price REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS server (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Spent:
    """What answers have cost."""

    requests: int = 0
    tokens: int = 0
    price: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.requests + other.requests, self.tokens + other.tokens, self.price + other.price)


def request_key(request: dict[str, Any]) -> str:
    """SHA-256 of all that a request's answer depends on."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class AnswerCache:
    """The answers in a folder; may be used by several threads and processes at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        with self._naming_file():
            self._database = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
            self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RunError(
                f"The answers in '{self.path}' cannot be used ({error}); if the file is damaged, delete it: the "
                "questions are then asked, and paid for, again."
            ) from None

    def _query(self, statement: str, *values: Any) -> list[Any]:
        with self._naming_file(), self._lock, closing(self._database.execute(statement, values)) as cursor:
            return cursor.fetchall()

    def get(self, key: str) -> Answer | None:
        """The answer to a request, if it was given before."""
        records = self._query("SELECT answer FROM answers WHERE key = ?", key)
        return Answer.model_validate_json(records[0][0]) if records else None

    def add(self, key: str, answer: Answer, teacher: str, cost: Spent) -> None:
        """Keep an answer and add its cost to what the teacher has spent."""
        with self._naming_file(), self._lock, self._database:  # one transaction
            self._database.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer.model_dump_json(exclude_none=True))
            )
            self._database.execute(
                "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT (teacher) DO UPDATE SET requests = requests + "
                "excluded.requests, tokens = tokens + excluded.tokens, price = price + excluded.price",
                (teacher, cost.requests, cost.tokens, cost.price),
            )

    def spent(self, teacher: str | None = None) -> Spent:
        """What a teacher, or all teachers, have spent in this folder."""
        statement = "SELECT COALESCE(SUM(requests), 0), COALESCE(SUM(tokens), 0), COALESCE(SUM(price), 0.0) FROM spent"
        if teacher is None:
            return Spent(*self._query(statement)[0])
        return Spent(*self._query(f"{statement} WHERE teacher = ?", teacher)[0])

    def server_fact(self, key: str) -> str | None:
        """What was learnt about a server, such as that it gives no log-probabilities."""
        records = self._query("SELECT value FROM server WHERE key = ?", key)
        return str(records[0][0]) if records else None

    def set_server_fact(self, key: str, value: str) -> None:
        """Remember something about a server."""
        with self._naming_file(), self._lock, self._database:
            self._database.execute("INSERT OR REPLACE INTO server VALUES (?, ?)", (key, value))
