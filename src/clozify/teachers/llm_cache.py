"""Answers that were paid for, each under a hash of its request, in one SQLite file.

An answer is committed as soon as it is there, so a killed run loses only what was under way. The file holds answers and
hashes: neither prompts nor keys.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from clozify.errors import RunError
from clozify.teachers.llm_answers import Answer

FILE = "answers.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS server (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


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

    def _get(self, statement: str, key: str) -> str | None:
        with self._naming_file(), self._lock, closing(self._database.execute(statement, (key,))) as cursor:
            record = cursor.fetchone()
        return None if record is None else str(record[0])

    def _set(self, statement: str, key: str, value: str) -> None:
        with self._naming_file(), self._lock, self._database:  # one transaction
            self._database.execute(statement, (key, value))

    def get(self, key: str) -> Answer | None:
        """The answer to a request, if it was given before."""
        content = self._get("SELECT answer FROM answers WHERE key = ?", key)
        return None if content is None else Answer.model_validate_json(content)

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer."""
        self._set("INSERT OR REPLACE INTO answers VALUES (?, ?)", key, answer.model_dump_json(exclude_none=True))

    def server_fact(self, key: str) -> str | None:
        """What was learnt about a server, such as that it gives no log-probabilities."""
        return self._get("SELECT value FROM server WHERE key = ?", key)

    def set_server_fact(self, key: str, value: str) -> None:
        """Remember something about a server."""
        self._set("INSERT OR REPLACE INTO server VALUES (?, ?)", key, value)
