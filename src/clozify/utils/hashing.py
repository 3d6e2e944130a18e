"""Short hashes of JSON values and of files."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any


def hash_key(**inputs: Any) -> str:
    """A short hash of JSON values."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_file(file: Path) -> str:
    """A hash of a file's content."""
    return _hash_file(file, file.stat().st_size, file.stat().st_mtime_ns)


@cache
def _hash_file(file: Path, _size: int, _modified: int) -> str:
    """A hash of a file's content, computed once for each size and time of modification."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
